// One row vector of a format with a half-precision scale a block times 3 to 8 tokens with NEON. Included by simd/neon.h
// alone.
//
// Tokens are multiplied in groups of up to four: where four sums take turns, no dot product waits for the one before
// it, whichever pipe that is on. The work is cut into parts, one block of one group each. As in simd/neon_few.h, vector
// instructions stay where the source has them, and multiply-adds that end a part stand in pairs between the dot
// products of the next part. Loads stand some dot products ahead of their use, so that a part begins with what the one
// before has loaded. Scales become floats on the way, once for all groups.
//
// No operand of an instruction that takes a register over (a load, then a multiply-add onto it) outlives that one
// statement: compilers would copy it, and a copy costs as much as a dot product.
#pragma once

#include "kernels/unrolled.h"

namespace qeff::QEFF_ISA {

struct GroupUnit {
  // One instruction each.
  template <int Lane>
  static inline void dot(int32x4_t& sum, uint8x16_t w, int8x16_t x) {
    asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(w), "w"(x), "i"(Lane));
  }
  template <int Lane>
  static inline void add_lane(float32x4_t& sum, float32x4_t a, float32x4_t b) {
    asm volatile("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(sum) : "w"(a), "w"(b), "i"(Lane));
  }

  // How weights lie in a panel; in 16 rows of a block, and the lines that a quarter of it may touch; how many groups of
  // columns ahead they are loaded. Weights of 8 bits.
  struct EightBits {
    static constexpr int kBlockBytes = 544, kLines = 3, kAhead = 2;
    static constexpr bool kIsPacked = false;
    static constexpr int at(int group) { return 64 * group; }
  };
  // Codes of 4 bits: the upper halves of the bytes of groups 0 to 3 are groups 4 to 7.
  struct FourBits {
    static constexpr int kBlockBytes = 288, kLines = 2, kAhead = 3;
    static constexpr bool kIsPacked = true;
    static constexpr int at(int group) { return 64 * (group % 4); }
  };
  template <bool IsWhole, class Whole, class Half>
  struct Either {
    using Type = Half;
  };
  template <class Whole, class Half>
  struct Either<true, Whole, Half> {
    using Type = Whole;
  };
  template <int Bits>
  using CodesOf = typename Either<Bits == 8, EightBits, FourBits>::Type;

  // All that is in use while a row vector of NT tokens goes over its blocks. Tokens are NT times 32 bytes, kFloats
  // scales and as many other floats, and what their sums begin with; TokenStep bytes a block. In every block a quarter
  // of one is asked for at `near` and at `far`.
  template <class Codes, int NT, int TokenStep>
  struct Strip {
    static constexpr int kFloats = (NT + 3) / 4 * 4, kScale = 32 * NT, kStart = kScale + 8 * kFloats;
    static constexpr int kNumGroups = NT <= 4 ? 1 : 2;
    static constexpr int first_of(int group) { return group == 0 ? 0 : (NT + 1) / 2; }
    static constexpr int size_of(int group) { return kNumGroups == 1 ? NT : group == 0 ? (NT + 1) / 2 : NT / 2; }
    static constexpr int other(int group) { return kNumGroups == 1 ? 0 : 1 - group; }

    // Before which dot product of a part pair number `pair` of the multiply-adds stands that end the part before.
    static constexpr int end_at(int group, int pair) {
      const int size = size_of(other(group));
      return 6 + pair * (size == 4 ? 2 : size == 2 ? 8 : size_of(group) == 2 ? 4 : 6);
    }

    const uint8_t *units, *next_units;  // the block's, and that of the block after it or, at the end, the same
    const int8_t *tokens, *next_tokens, *tokens_before;
    int64_t left;  // blocks after this one
    int64_t scales_at;  // of the row vector, from where its codes begin
    const uint8_t *near, *far;
    uint8x16_t mask, packed[8], w[8];
    int8x16_t low[4], high[4];
    int32x4_t sums[2][4];
    float32x4_t result[NT], product[4], lanes, d, halves, excess, factor;
    float* excess_at;  // -start * d of a block

    template <int G>
    [[gnu::always_inline]] inline void load_weights(const uint8_t* from) {
      (Codes::kIsPacked ? packed : w)[G] = pinned<uint8x16_t>(from + Codes::at(G));
    }
    template <int G>
    [[gnu::always_inline]] inline void unpack() {
      if constexpr (!Codes::kIsPacked) return;
      if constexpr (G < 4) asm volatile("and %0.16b, %1.16b, %2.16b" : "=w"(w[G]) : "w"(packed[G]), "w"(mask));
      if constexpr (G >= 4) asm volatile("ushr %0.16b, %1.16b, #4" : "=w"(w[G]) : "w"(packed[G]));
    }
    template <int Group, int T>
    [[gnu::always_inline]] inline void load_low(const int8_t* from) {
      low[T] = pinned<int8x16_t>(from + 32 * (first_of(Group) + T));
    }
    template <int Group, int Set, int T>
    [[gnu::always_inline]] inline void load_start(const int8_t* from) {
      sums[Set][T] = pinned<int32x4_t>(from + kStart + 16 * (first_of(Group) + T));
    }

    // Multiply-add number K of those that end a part of a group, whose sums are of set Set.
    template <int Group, int Set, int K>
    [[gnu::always_inline]] inline void end_part() {
      constexpr int kSize = size_of(Group), t = K % kSize;
      if constexpr (K < kSize) {
        asm volatile("ldr %q0, %1\n\tfmla %0.4s, %2.4s, %3.4s"
                     : "=&w"(product[t])
                     : "m"(*reinterpret_cast<const float32x4_t*>(excess_at)), "w"(sums[Set][t]), "w"(d));
      } else {
        add_lane<t>(result[first_of(Group) + t], product[t], lanes);
      }
    }
    template <int Group>
    [[gnu::always_inline]] inline void load_lanes(const int8_t* from) {
      lanes = pinned<float32x4_t>(from + kScale + 4 * first_of(Group));
    }

    // What makes the scales of a block before dot product number K, when the block before has no more use for its own.
    template <int K>
    [[gnu::always_inline]] inline void make_scales() {
      if constexpr (K == 10) {
        asm volatile("ldr %d0, %1" : "=w"(halves) : "m"(*reinterpret_cast<const int64_t*>(units + scales_at)));
      } else if constexpr (K == 14) {
        asm volatile("fcvtl %0.4s, %1.4h" : "=w"(d) : "w"(halves));
      } else if constexpr (K == 16) {
        asm volatile("fmul %0.4s, %1.4s, %2.4s" : "=w"(excess) : "w"(d), "w"(factor));
      } else if constexpr (K == 20) {
        asm volatile("str %q1, %0" : "=m"(*reinterpret_cast<float32x4_t*>(excess_at)) : "w"(excess));
      }
    }
    // Dot product number K of a part, and what stands before it. HasBefore: whether there is a part that it ends.
    template <int Group, int Set, bool HasBefore, int K>
    [[gnu::always_inline]] inline void do_dot() {
      constexpr int kSize = size_of(Group), kBefore = size_of(other(Group));
      constexpr int g = K / kSize, t = K % kSize;
      constexpr bool kIsLast = Group == kNumGroups - 1;
      const uint8_t* units_after = kIsLast ? next_units : units;
      const int8_t* tokens_after = kIsLast ? next_tokens : tokens;
      // Weights that took instructions to unpack stay for the next group.
      constexpr bool kHasWeights = Codes::kIsPacked && Group > 0;
      constexpr bool kLeavesWeights = Codes::kIsPacked && !kIsLast;
      if constexpr (t == 0 && !(g + Codes::kAhead < 8 ? kHasWeights : kLeavesWeights)) {
        load_weights<(g + Codes::kAhead) % 8>(g + Codes::kAhead < 8 ? units : units_after);
      }
      if constexpr (t == 1 && !(g + 1 < 8 ? kHasWeights : kLeavesWeights)) unpack<(g + 1) % 8>();
      constexpr int kHighAt = kHasWeights ? 3 * kSize - 1 : 2 * kSize;
      if constexpr (K >= kHighAt && K < kHighAt + kSize) {
        high[K - kHighAt] = pinned<int8x16_t>(tokens + 32 * (first_of(Group) + K - kHighAt) + 16);
      }
      constexpr int kNextSize = kBefore;
      if constexpr (K >= 5 * kSize && K < 5 * kSize + kNextSize) {
        load_start<other(Group), 1 - Set, K - 5 * kSize>(tokens_after);
      }
      if constexpr (K >= 6 * kSize && K < 6 * kSize + kNextSize) {
        load_low<other(Group), K - 6 * kSize>(tokens_after);
      }
      // The end of the part before.
      if constexpr (HasBefore) {
        unrolled<kBefore>([this](auto pair) QEFF_INLINE_BODY {
          constexpr int kAt = end_at(Group, pair), f = 2 * pair;
          if constexpr (K == kAt - 2) {
            if constexpr (f == kBefore || f + 1 == kBefore) {
              load_lanes<other(Group)>(Group == 0 ? tokens_before : tokens);
            }
          }
          if constexpr (K == kAt) {
            end_part<other(Group), 1 - Set, f>();
            end_part<other(Group), 1 - Set, f + 1>();
          }
        });
      }
      if constexpr (Group == 0) make_scales<K>();
      if constexpr (Group == 0 && K % 4 == 3 && K / 4 < 2 * Codes::kLines) {
        constexpr int kAt = 64 * (K / 8);
        if constexpr (K % 8 == 3) asm volatile("prfm pldl1keep, [%0, %1]" : : "r"(near), "i"(kAt));
        if constexpr (K % 8 == 7) asm volatile("prfm pldl2keep, [%0, %1]" : : "r"(far), "i"(kAt));
      }
      dot<g % 4>(sums[Set][t], w[g], g < 4 ? low[t] : high[t]);
    }
    template <int Group, int Set, bool HasBefore>
    [[gnu::always_inline]] inline void do_part() {
      static_assert(end_at(Group, size_of(other(Group)) - 1) < 8 * size_of(Group) && 8 * size_of(0) > 20);
      unrolled<8 * size_of(Group)>([this](auto k) QEFF_INLINE_BODY { do_dot<Group, Set, HasBefore, k>(); });
    }
    // From one block to the next.
    [[gnu::always_inline]] inline void advance() {
      near += Codes::kBlockBytes / 4;
      far += Codes::kBlockBytes / 4;
      tokens_before = tokens;
      units = next_units;
      tokens = next_tokens;
      --left;
      next_units += left > 0 ? Codes::kBlockBytes : 0;
      next_tokens += left > 0 ? TokenStep : 0;
      asm volatile("" : "+r"(next_units), "+r"(next_tokens));  // no address of its own for every load
    }
    [[gnu::always_inline]] inline void begin() {
      unrolled<size_of(0)>([this](auto t) QEFF_INLINE_BODY {
        load_start<0, 0, t>(tokens);
        load_low<0, t>(tokens);
      });
      unrolled<Codes::kAhead>([this](auto g) QEFF_INLINE_BODY { load_weights<g>(units); });
      unpack<0>();
    }
    template <int Set>
    [[gnu::always_inline]] inline void end() {
      constexpr int kGroup = kNumGroups - 1, kSize = size_of(kGroup);
      load_lanes<kGroup>(tokens_before);
      unrolled<2 * kSize>([this](auto k) QEFF_INLINE_BODY { end_part<kGroup, Set, k>(); });
    }
  };

  // Adds num_blocks > 0 blocks to the results of row vector v of NT tokens. start: the float that sums begin with, were
  // all activations zero. near, far: quarter v of num_blocks blocks there is asked for, into a first-level cache and a
  // larger one.
  template <class Codes, int NT, int TokenStep>
  [[gnu::always_inline]] static inline void add_blocks(const uint8_t* units, int64_t num_blocks, int v,
                                                       const int8_t* tokens, float start, const uint8_t* near,
                                                       const uint8_t* far, F32 (&results)[NT]) {
    alignas(16) float excess[4];
    Strip<Codes, NT, TokenStep> strip;
    units += 32 + 16 * v;
    strip.units = units;
    strip.tokens = tokens;
    strip.left = num_blocks - 1;
    strip.next_units = units + (num_blocks > 1 ? Codes::kBlockBytes : 0);
    strip.next_tokens = tokens + (num_blocks > 1 ? TokenStep : 0);
    strip.scales_at = -32 - 8 * v;
    strip.near = near + v * num_blocks * (Codes::kBlockBytes / 4);
    strip.far = far + v * num_blocks * (Codes::kBlockBytes / 4);
    strip.excess_at = excess;
    strip.mask = vdupq_n_u8(15);
    strip.factor = vdupq_n_f32(-start);
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY { strip.result[t] = results[t].v; });
    strip.begin();
    strip.template do_part<0, 0, false>();
    if constexpr (strip.kNumGroups == 1) {
      strip.advance();
      while (strip.left > 0) {
        strip.template do_part<0, 1, true>();
        strip.advance();
        strip.template do_part<0, 0, true>();
        strip.advance();
      }
      if (strip.left == 0) {
        strip.template do_part<0, 1, true>();
        strip.advance();
        strip.template end<1>();
      } else {
        strip.template end<0>();
      }
    } else {
      strip.template do_part<1, 1, true>();
      strip.advance();
      while (strip.left >= 0) {
        strip.template do_part<0, 0, true>();
        strip.template do_part<1, 1, true>();
        strip.advance();
      }
      strip.template end<1>();
    }
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY { results[t].v = strip.result[t]; });
  }
};

}  // namespace qeff::QEFF_ISA

// One row vector of a K format times a few tokens with NEON. Included by simd/neon.h alone.
//
// The work is cut into parts: a block where it has one sum, half a block where it has two. Vector instructions stay
// where the source has them, so that compilers choose registers and nothing else: multiply-adds that end a part stand
// in pairs between the dot products of the next part, which simd/neon_strip.h gives the reason for. Two parts share a
// turn of the loop, so that no sum is copied from one to the other. All state is in one struct, which compilers take
// apart into registers; they do not where lambdas hold references to arrays.
#pragma once

#include "kernels/unrolled.h"

namespace qeff::QEFF_ISA {

struct FewUnit {
  // What a part needs of its unit, for one row vector: d, -start * d and the minimum where there is one. What each has
  // too much when it is multiplied with what rows() gives stands behind it, negated.
  struct Head {
    float d[4], d_excess[4], start[4], start_excess[4], least[4], least_excess[4];
  };

  struct alignas(16) Sixteen {
    uint8_t v[16];
  };
  static constexpr Sixteen kExponents = {0x47, 0x47, 0x47, 0x47, 0x47, 0x47, 0x47, 0x47,
                                         0x47, 0x47, 0x47, 0x47, 0x47, 0x47, 0x47, 0x47};
  static constexpr Sixteen kSigns = {128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};

  // One instruction each, or one after its load.
  template <int Lane>
  static inline void dot(int32x4_t& sum, uint8x16_t w, int8x16_t x) {
    asm volatile("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(w), "w"(x), "i"(Lane));
  }
  static inline void add_product(float32x4_t& sum, float32x4_t a, float32x4_t b) {
    asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(sum) : "w"(a), "w"(b));
  }
  template <int Lane>
  static inline void add_lane(float32x4_t& sum, float32x4_t a, float32x4_t b) {
    asm volatile("fmla %0.4s, %1.4s, %2.s[%3]" : "+w"(sum) : "w"(a), "w"(b), "i"(Lane));
  }
  static inline uint8x16_t bits(uint8x16_t a, uint8x16_t mask) {
    uint8x16_t r;
    asm volatile("and %0.16b, %1.16b, %2.16b" : "=w"(r) : "w"(a), "w"(mask));
    return r;
  }
  template <int N>
  static inline uint8x16_t shift(uint8x16_t a) {
    uint8x16_t r;
    asm volatile("ushr %0.16b, %1.16b, #%2" : "=w"(r) : "w"(a), "i"(N));
    return r;
  }
  // The low four bits of a below the bits of b; the high four bits of b below those of a.
  static inline void set_above(uint8x16_t& a, uint8x16_t b) {
    asm volatile("sli %0.16b, %1.16b, #4" : "+w"(a) : "w"(b));
  }
  static inline void set_below(uint8x16_t& a, uint8x16_t b) {
    asm volatile("sri %0.16b, %1.16b, #4" : "+w"(a) : "w"(b));
  }
  static inline float32x4_t floats(const void* p, int64_t at) {
    return pinned<float32x4_t>(static_cast<const char*>(p) + at);
  }
  static inline uint8x16_t bytes(const uint8_t* p) { return pinned<uint8x16_t>(p); }

  // Q4_K: a part is a block.
  struct Nibbles {
    static constexpr int kSums = 1, kGroups = 8, kHeadBytes = 64, kBlockBytes = 288;
    static constexpr bool kHasLeast = true, kIsSigned = false;
    static constexpr uint8_t kMasks[1] = {15};
    template <int Part>
    static inline void unpack(const uint8_t* codes, const uint8x16_t (&mask)[1], uint8x16_t (&w)[8]) {
      unrolled<4>([&](auto g) QEFF_INLINE_BODY {
        const uint8x16_t both = bytes(codes + 64 * g);
        w[g] = bits(both, mask[0]);
        w[g + 4] = shift<4>(both);
      });
    }
  };
  // Q6_K: a part is half a block. Two more bits of groups g and g + 2 lie in the same bytes.
  struct SixBits {
    static constexpr int kSums = 2, kGroups = 4, kHeadBytes = 32, kBlockBytes = 416;
    static constexpr bool kHasLeast = false, kIsSigned = true;
    static constexpr uint8_t kMasks[2] = {3, 0x30};
    template <int Part>
    static inline void unpack(const uint8_t* codes, const uint8x16_t (&mask)[2], uint8x16_t (&w)[4]) {
      uint8x16_t more[4];
      unrolled<2>([&](auto g) QEFF_INLINE_BODY {
        const uint8x16_t two = bytes(codes + 256 + 64 * g);
        more[g] = bits(two, mask[Part]);
        more[g + 2] = shift<2>(two);
      });
      if constexpr (Part == 0) unrolled<2>([&](auto g) QEFF_INLINE_BODY { more[g + 2] = bits(more[g + 2], mask[0]); });
      unrolled<4>([&](auto g) QEFF_INLINE_BODY {
        const uint8x16_t both = bytes(codes + 64 * g);
        if constexpr (Part == 0) {
          w[g] = both;
          set_above(w[g], more[g]);
        } else {
          w[g] = more[g];
          set_below(w[g], both);
        }
      });
    }
  };

  template <bool HasOneSum, class One, class Two>
  struct Either {
    using Type = Two;
  };
  template <class One, class Two>
  struct Either<true, One, Two> {
    using Type = One;
  };
  template <int NumSums>
  using CodesOf = typename Either<NumSums == 1, Nibbles, SixBits>::Type;

  // All that is in use while a row vector of NT tokens goes over its units. Tokens are NT times 32 bytes, kFloats
  // scales, kFloats scales times sums, and what their sums begin with; TokenStep bytes a block. Lines lines of `next`
  // are asked for in every block.
  template <class Codes, int NT, int TokenStep, int Lines>
  struct Strip {
    static constexpr int kFloats = (NT + 3) / 4 * 4, kScale = 32 * NT;
    static constexpr int kSum = kScale + 4 * kFloats, kStart = kSum + 4 * kFloats;
    // Tokens that take turns at dot products.
    static constexpr int kWidth = NT <= 4 ? NT : NT == 6 || NT == 7 ? 3 : 2, kTeams = NT / kWidth;
    static constexpr bool kIsHalf = Codes::kSums == 2;
    static constexpr int kNumDots = Codes::kGroups * NT, kNumEnding = (Codes::kHasLeast ? 3 : 2) * NT;
    // After how many dot products the scales of a part are made: when the part before has ended. What they are made of
    // comes earlier where registers are left.
    static constexpr int kScalesAt = (kNumEnding + 1) / 2 * 2 + 2;
    static constexpr int kRowsAt = NT <= 4 && kScalesAt > 8 ? kScalesAt - 6 : kScalesAt - 2;
    static constexpr int kNumMasks = sizeof Codes::kMasks;

    const uint8_t* block;
    const uint8_t* codes;
    const int8_t *tokens, *before;
    const Head* heads;
    const uint8_t* next;
    const Sixteen* places;  // which bytes make the float 32768 + s of each row
    uint8x16_t mask[kNumMasks], w[Codes::kGroups];
    int8x16_t x[kWidth + 1];
    int32x4_t sums[2][NT];
    float32x4_t result[NT], product[NT], lanes[kFloats / 4], d, least, scale, minimum, next_excess;
    float* excess;  // -start * d * s of the part before

    // 32768 + s of each row, and 128 more where s is signed.
    [[gnu::always_inline]] inline float32x4_t rows(const uint8_t* p) {
      float32x4_t r;
      const Sixteen& of_rows = *reinterpret_cast<const Sixteen*>(p);
      if constexpr (Codes::kIsSigned) {
        asm volatile(
            "ldr q30, %1\n\tldr q31, %2\n\teor v30.16b, v30.16b, v31.16b\n\tldr q31, %3\n\tldr %q0, %4\n\t"
            "tbl %0.16b, {v30.16b, v31.16b}, %0.16b"
            : "=&w"(r)
            : "m"(of_rows), "m"(kSigns), "m"(kExponents), "m"(*places)
            : "v30", "v31");
      } else {
        asm volatile("ldr q30, %1\n\tldr q31, %2\n\tldr %q0, %3\n\ttbl %0.16b, {v30.16b, v31.16b}, %0.16b"
                     : "=&w"(r)
                     : "m"(of_rows), "m"(kExponents), "m"(*places)
                     : "v30", "v31");
      }
      return r;
    }
    // Multiply-add number K that ends the part before.
    template <int K, int Part>
    [[gnu::always_inline]] inline void end_part() {
      constexpr int t = K % NT, at = K - t == NT ? kScale : kSum;
      if constexpr (K < NT) {
        product[t] = floats(excess, 0);
        add_product(product[t], vreinterpretq_f32_s32(sums[1 - Part][t]), d);
      } else if constexpr (K < kNumEnding) {
        if constexpr (t % 4 == 0) lanes[t / 4] = floats(before, at + 4 * t);
        add_lane<t % 4>(result[t], K < 2 * NT ? product[t] : least, lanes[t / 4]);
      }
    }
    // What makes the scales of a part after N of its dot products.
    template <int N, int Part>
    [[gnu::always_inline]] inline void make_scales() {
      if constexpr (N == kRowsAt) {
        scale = rows(block + (kIsHalf ? 16 * Part : 0));
        if constexpr (Codes::kHasLeast) minimum = rows(block + 16);
      } else if constexpr (N == kScalesAt) {
        const float32x4_t of_unit = floats(heads, 0);
        d = floats(heads, 16);
        add_product(d, scale, of_unit);
        if constexpr (Codes::kHasLeast) {
          const float32x4_t least_of_unit = floats(heads, 64);
          least = floats(heads, 80);
          add_product(least, minimum, least_of_unit);
        } else {
          make_excess();
        }
      } else if constexpr (N == kScalesAt + 2 && Codes::kHasLeast) {
        make_excess();
      } else if constexpr (N == kScalesAt + 6) {
        asm volatile("str %q1, %0" : "=m"(*reinterpret_cast<float32x4_t*>(excess)) : "w"(next_excess));
      }
    }
    [[gnu::always_inline]] inline void make_excess() {
      const float32x4_t of_unit = floats(heads, 32);
      next_excess = floats(heads, 48);
      add_product(next_excess, scale, of_unit);
    }
    template <int Part, bool HasBefore, int T, int J, int Here, int G>
    [[gnu::always_inline]] inline void do_dot() {
      dot<G % 4>(sums[Part][T + J], w[G], x[J]);
      constexpr int k = T * Codes::kGroups + G * Here + J;
      if constexpr (k % 2 == 1) {
        if constexpr (HasBefore) {
          end_part<k - 1, Part>();
          end_part<k, Part>();
        }
        make_scales<k + 1, Part>();
      }
    }
    // Group G of tokens [T, T + Here).
    template <int Part, bool HasBefore, int T, int Here, int G>
    [[gnu::always_inline]] inline void do_group() {
      if constexpr (G == 4) {
        unrolled<Here>([this](auto j) QEFF_INLINE_BODY { x[j] = pinned<int8x16_t>(tokens + 32 * (T + j) + 16); });
      }
      unrolled<Here>([this](auto j) QEFF_INLINE_BODY { do_dot<Part, HasBefore, T, j, Here, G>(); });
    }
    template <int Part, bool HasBefore>
    [[gnu::always_inline]] inline void do_part() {
      constexpr int kHalf = kIsHalf ? Part : 0;
      if constexpr (!kIsHalf || Part == 0) {
        unrolled<Lines>([this](auto n) QEFF_INLINE_BODY {
          asm volatile("prfm pldl1keep, [%0, %1]" : : "r"(next), "i"(64 * n));
        });
        next += 64 * Lines;
      }
      Codes::template unpack<Part>(codes, mask, w);
      unrolled<kTeams>([this](auto team) QEFF_INLINE_BODY {
        constexpr int T = team * kWidth, kHere = team + 1 == kTeams ? NT - T : kWidth;
        unrolled<kHere>([this](auto j) QEFF_INLINE_BODY {
          sums[Part][T + j] = pinned<int32x4_t>(tokens + kStart + 16 * (kHalf * NT + T + j));
          x[j] = pinned<int8x16_t>(tokens + 32 * (T + j) + 16 * kHalf);
        });
        unrolled<Codes::kGroups>([this](auto g) QEFF_INLINE_BODY {
          do_group<Part, HasBefore, T, kHere, g>();
        });
      });
      unrolled<8>([this](auto i) QEFF_INLINE_BODY {
        if constexpr (kNumDots + i + 1 <= kScalesAt + 6) make_scales<kNumDots + i + 1, Part>();
      });
      before = tokens;
      if constexpr (!kIsHalf || Part == 1) {
        tokens += TokenStep;
        block += Codes::kBlockBytes;
        codes += Codes::kBlockBytes;
      }
    }
  };

  // Adds the blocks of num_units > 0 units to the results of row vector v of NT tokens. heads: one for each unit, of
  // this row vector.
  template <class Codes, int NT, int TokenStep, int Lines>
  [[gnu::always_inline]] static inline void add_units(const uint8_t* units, int64_t num_units, int v,
                                                      const int8_t* tokens, const Head* heads, const uint8_t* next,
                                                      F32 (&results)[NT]) {
    alignas(16) float excess[4];
    Strip<Codes, NT, TokenStep, Lines> strip;
    strip.block = units + Codes::kHeadBytes;
    strip.codes = strip.block + 32 + 16 * v;
    strip.tokens = strip.before = tokens;
    strip.heads = heads;
    strip.next = next;
    strip.excess = excess;
    unrolled<sizeof Codes::kMasks>([&](auto i) QEFF_INLINE_BODY { strip.mask[i] = vdupq_n_u8(Codes::kMasks[i]); });
    Sixteen places;  // of a byte of zero, the byte of the row, zero, and the exponent's
    for (int i = 0; i < 16; ++i) places.v[i] = i % 4 == 1 ? static_cast<uint8_t>(4 * v + i / 4) : i % 4 == 3 ? 16 : 255;
    strip.places = &places;
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY { strip.result[t] = results[t].v; });
    strip.template do_part<0, false>();
    strip.template do_part<1, true>();
    constexpr int kTurns = Codes::kSums == 2 ? 8 : 4;
    for (int64_t i = 1;; ++i) {
      if (i == kTurns) {
        if (--num_units == 0) break;
        i = 0;
        strip.block += Codes::kHeadBytes;
        strip.codes += Codes::kHeadBytes;
        ++strip.heads;
      }
      strip.template do_part<0, true>();
      strip.template do_part<1, true>();
    }
    unrolled<strip.kNumEnding>([&](auto k) QEFF_INLINE_BODY { strip.template end_part<k, 0>(); });
    unrolled<NT>([&](auto t) QEFF_INLINE_BODY { results[t].v = strip.result[t]; });
  }
};

}  // namespace qeff::QEFF_ISA

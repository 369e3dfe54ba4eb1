// A panel of MXFP6 times one token with NEON. Included by simd/neon.h alone.
//
// Written in instructions: it takes all 32 registers, and the order, which was found by trying many, keeps both vector
// pipes busy. Two blocks share the way from whole sums to floats, since each change between dot products and
// multiply-adds costs time.
//
// A scale is a power of two, so its product with the activations' scale is that one with another exponent. It takes an
// addition to the upper halves of 8 floats at once, where a product takes two multiplications of 4.
#pragma once

namespace qeff::QEFF_ISA {

// v0-v2 tables, v3-v5 masks, v7-v10 results, v11-v14 and v21, v22, v31, v6 sums, v15 and v16 activations, v17-v20
// bytes, v23-v30 weights; at the end of blocks the last three groups have other uses.
#define QEFF_WHOLE(byte, w, at) \
  "ldr q" #byte ", [%[units], #(" #at ")]\n\tand v" #w ".16b, v" #byte ".16b, v3.16b\n\t"
#define QEFF_WHOLE_BASE(w) "tbl v" #w ".16b, {v0.16b, v1.16b}, v" #w ".16b\n\t"
#define QEFF_WHOLE_JOIN(w, byte) "usra v" #w ".16b, v" #byte ".16b, #3\n\t"
#define QEFF_SPLIT_LOW(w, high, at) \
  "ldr q" #high ", [%[units], #(" #at ")]\n\tand v" #w ".16b, v" #high ".16b, v4.16b\n\t"
#define QEFF_SPLIT_HIGH(w) "ushr v" #w ".16b, v" #w ".16b, #4\n\t"
#define QEFF_SPLIT_BASE(w) "tbl v" #w ".16b, {v2.16b}, v" #w ".16b\n\t"
#define QEFF_SPLIT_JOIN(w, byte) "bit v" #w ".16b, v" #byte ".16b, v5.16b\n\t"
#define QEFF_DOT(sum, w, x, g) "sdot v" #sum ".4s, v" #w ".16b, v" #x ".4b[" #g "]\n\t"
// Groups g, h = g + 2, and those 4 further, of two row vectors.
#define QEFF_QUAD(s, u, g, h, at) \
  QEFF_WHOLE(17, 23, at) QEFF_WHOLE(20, 26, at + 80) QEFF_WHOLE(18, 24, at + 64) QEFF_WHOLE(19, 25, at + 16) \
  QEFF_SPLIT_LOW(27, 28, at + 128) QEFF_WHOLE_BASE(23) QEFF_WHOLE_BASE(25) QEFF_SPLIT_HIGH(28) QEFF_WHOLE_BASE(24) \
  QEFF_SPLIT_LOW(29, 30, at + 144) QEFF_SPLIT_HIGH(30) QEFF_WHOLE_JOIN(23, 17) QEFF_WHOLE_BASE(26) \
  QEFF_WHOLE_JOIN(25, 19) QEFF_WHOLE_JOIN(24, 18) QEFF_SPLIT_BASE(27) QEFF_WHOLE_JOIN(26, 20) QEFF_SPLIT_BASE(28) \
  QEFF_SPLIT_BASE(29) QEFF_SPLIT_JOIN(28, 18) QEFF_SPLIT_BASE(30) QEFF_SPLIT_JOIN(27, 17) QEFF_SPLIT_JOIN(29, 19) \
  QEFF_SPLIT_JOIN(30, 20) QEFF_DOT(s, 23, 15, g) QEFF_DOT(s, 24, 16, g) QEFF_DOT(u, 25, 15, g) QEFF_DOT(u, 26, 16, g) \
  QEFF_DOT(s, 27, 15, h) QEFF_DOT(s, 28, 16, h) QEFF_DOT(u, 29, 15, h) QEFF_DOT(u, 30, 16, h)
// Asks for lines i and i + 1 of those that are read some blocks later, when they have come from memory.
#define QEFF_ASK(i) \
  "prfm pldl1keep, [%[units], #(%c[ahead] + 64 * (" #i "))]\n\t" \
  "prfm pldl1keep, [%[units], #(%c[ahead] + 64 * (" #i ") + 64)]\n\t"
#define QEFF_BEGIN(sum, n) "ldr q" #sum ", [%[tokens], #(80 * " #n " + 32)]\n\t"
// The whole sums of block n of those at hand.
#define QEFF_BLOCK(s, t, u, v, n) \
  "ldp q15, q16, [%[tokens], #(80 * " #n ")]\n\t" QEFF_BEGIN(s, n) QEFF_BEGIN(t, n) QEFF_BEGIN(u, n) QEFF_BEGIN(v, n) \
  QEFF_QUAD(s, t, 0, 2, 400 * n + 16) QEFF_ASK(6 * n) QEFF_QUAD(u, v, 0, 2, 400 * n + 48) QEFF_ASK(6 * n + 2) \
  QEFF_QUAD(s, t, 1, 3, 400 * n + 208) QEFF_ASK(6 * n + 4) QEFF_QUAD(u, v, 1, 3, 400 * n + 240)
// Its scales times the activations' in d to g. Bits 6 and 7 of all scales differ where all are moderate.
#define QEFF_SCALES(d, e, f, g, n) \
  "ldr q19, [%[units], #(400 * " #n ")]\n\tldp %[low], %[high], [%[units], #(400 * " #n ")]\n\t" \
  "ldr q17, [%[tokens], #(80 * " #n " + 48)]\n\tldr q18, [%[tokens], #(80 * " #n " + 48)]\n\t" \
  "ldr q" #g ", [%[tokens], #(80 * " #n " + 64)]\n\t" \
  "umlal v17.8h, v19.8b, v20.8b\n\tumlal2 v18.8h, v19.16b, v20.16b\n\t" \
  "eor %[low], %[low], %[low], lsl #1\n\teor %[high], %[high], %[high], lsl #1\n\t" \
  "and %[moderate], %[moderate], %[low]\n\tand %[moderate], %[moderate], %[high]\n\t" \
  "zip1 v" #d ".8h, v" #g ".8h, v17.8h\n\tzip2 v" #e ".8h, v" #g ".8h, v17.8h\n\t" \
  "zip1 v" #f ".8h, v" #g ".8h, v18.8h\n\tzip2 v" #g ".8h, v" #g ".8h, v18.8h\n\t"
#define QEFF_FLOAT(sum) "fsub v" #sum ".4s, v" #sum ".4s, v15.4s\n\t"
#define QEFF_FLOATS(s, t, u, v) QEFF_FLOAT(s) QEFF_FLOAT(t) QEFF_FLOAT(u) QEFF_FLOAT(v)
#define QEFF_ADD(result, sum, scale) "fmla v" #result ".4s, v" #sum ".4s, v" #scale ".4s\n\t"
#define QEFF_ADDS(s, t, u, v, d, e, f, g) QEFF_ADD(7, s, d) QEFF_ADD(8, t, e) QEFF_ADD(9, u, f) QEFF_ADD(10, v, g)
#define QEFF_CONSTANTS "ldr q15, [%[constants], #48]\n\tldr q20, [%[constants], #64]\n\t"

struct StreamUnit {
  // What is read of a token in one block.
  struct Block {
    int8_t q[32];
    int32_t start[4];        // what sums begin with
    uint16_t scale_high[8];  // of the float 2^-127 * scale, were its exponent to go so far; 2^-127 where q is zero
    uint16_t scale_low[8];
  };
  struct Constants {
    uint8_t whole[32], split[16];
    float start[4];
    uint8_t factor[16];  // of a scale, that makes it an exponent in the upper half of a float
  };

  // Whether a scale of activations is far from the largest and the smallest floats. If the scales of weights are too,
  // no product of two is too large for a float or below the normal ones, and adding exponents is exact.
  static inline bool is_moderate(float scale) { return scale >= 0x1p-60f && scale <= 0x1p60f; }

  static inline void fill(Block* block, const int8_t* q, float scale, int32_t start) {
    uint32_t bits;
    std::memcpy(&bits, &scale, 4);
    bits -= 127u << 23;
    std::memcpy(block->q, q, 32);
    vst1q_s32(block->start, vdupq_n_s32(start));
    vst1q_u16(block->scale_high, vdupq_n_u16(static_cast<uint16_t>(bits >> 16)));
    vst1q_u16(block->scale_low, vdupq_n_u16(static_cast<uint16_t>(bits)));
  }

  // Adds num_blocks blocks of a panel, whose tokens have moderate scales, to results. Returns whether all scales lie
  // from 64 to 191; if not, results are worth nothing.
  static inline bool add_blocks(const uint8_t* units, int64_t num_blocks, const Block* tokens,
                                const Constants& constants, F32 (&results)[4]) {
    static_assert(sizeof(Block) == 80);
    uint64_t moderate = ~uint64_t{0}, low, high;
    asm volatile(
        "ldp q7, q8, [%[results]]\n\tldp q9, q10, [%[results], #32]\n\t"
        "ldp q0, q1, [%[constants]]\n\tldr q2, [%[constants], #32]\n\t"
        "movi v3.16b, #31\n\tmovi v4.16b, #15\n\tmovi v5.16b, #12\n\t"
        "subs %[left], %[left], #2\n\tb.lt 2f\n\t"
        ".p2align 5\n"
        "1:\n\t"
        QEFF_BLOCK(11, 12, 13, 14, 0) QEFF_BLOCK(21, 22, 31, 6, 1)
        QEFF_CONSTANTS QEFF_SCALES(23, 24, 25, 26, 0) QEFF_SCALES(27, 28, 29, 30, 1)
        QEFF_FLOATS(11, 12, 13, 14) QEFF_FLOATS(21, 22, 31, 6)
        QEFF_ADDS(11, 12, 13, 14, 23, 24, 25, 26) QEFF_ADDS(21, 22, 31, 6, 27, 28, 29, 30)
        "prfm pldl1keep, [%[units], #(%c[ahead] + 64 * 12)]\n\t"
        "add %[units], %[units], #800\n\tadd %[tokens], %[tokens], #160\n\t"
        "subs %[left], %[left], #2\n\tb.ge 1b\n"
        "2:\n\t"
        "tbz %[left], #0, 3f\n\t"
        QEFF_BLOCK(11, 12, 13, 14, 0) QEFF_CONSTANTS QEFF_SCALES(23, 24, 25, 26, 0)
        QEFF_FLOATS(11, 12, 13, 14) QEFF_ADDS(11, 12, 13, 14, 23, 24, 25, 26)
        "3:\n\t"
        "stp q7, q8, [%[results]]\n\tstp q9, q10, [%[results], #32]\n\t"
        : [units] "+r"(units), [tokens] "+r"(tokens), [left] "+r"(num_blocks), [moderate] "+r"(moderate),
          [low] "=&r"(low), [high] "=&r"(high)
        : [constants] "r"(&constants), [results] "r"(results), [ahead] "i"(kStreamAhead)
        : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14",
          "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",
          "v30", "v31");
    constexpr uint64_t kHighest = 0x8080808080808080u;
    return (moderate & kHighest) == kHighest;
  }
};

#undef QEFF_WHOLE
#undef QEFF_WHOLE_BASE
#undef QEFF_WHOLE_JOIN
#undef QEFF_SPLIT_LOW
#undef QEFF_SPLIT_HIGH
#undef QEFF_SPLIT_BASE
#undef QEFF_SPLIT_JOIN
#undef QEFF_DOT
#undef QEFF_QUAD
#undef QEFF_ASK
#undef QEFF_BEGIN
#undef QEFF_BLOCK
#undef QEFF_SCALES
#undef QEFF_FLOAT
#undef QEFF_FLOATS
#undef QEFF_ADD
#undef QEFF_ADDS
#undef QEFF_CONSTANTS

}  // namespace qeff::QEFF_ISA

// One row vector times 8 tokens with NEON, block by block. Included by simd/neon.h alone.
//
// Written in instructions, since it takes all 32 registers and its order is what makes it fast on cores with two vector
// pipes: a pipe on which a multiply-add and a dot product would end in the same cycle lets the dot product wait, and
// that is so where it begins two cycles after the multiply-add. So pairs of multiply-adds of a block stand between
// pairs of dot products of the next one, where that cycle has a multiply-add, not a dot product. Everything else stands
// evenly between them: where many loads follow each other, the pipes run dry.
#pragma once

namespace qeff::QEFF_ISA {

// v0-v7 results, v8-v15 weights, v16-v23 sums, v24-v28 products and activations, v29 and v30 scales, v31 a mask.
#define QEFF_DOT(sum, w, x, g) "sdot v" #sum ".4s, v" #w ".16b, v" #x ".4b[" #g "]\n\t"
#define QEFF_DOTS(s, u, w, x, z, g) QEFF_DOT(s, w, x, g) QEFF_DOT(u, w, z, g)
// Half a block of two tokens with something after each group.
#define QEFF_DOT_LOW(s, u, x, z, A, B, C, D) \
  QEFF_DOTS(s, u, 8, x, z, 0) A QEFF_DOTS(s, u, 9, x, z, 1) B QEFF_DOTS(s, u, 10, x, z, 2) C \
  QEFF_DOTS(s, u, 11, x, z, 3) D
#define QEFF_DOT_HIGH(s, u, x, z, A, B, C, D) \
  QEFF_DOTS(s, u, 12, x, z, 0) A QEFF_DOTS(s, u, 13, x, z, 1) B QEFF_DOTS(s, u, 14, x, z, 2) C \
  QEFF_DOTS(s, u, 15, x, z, 3) D
// What the sum of token t begins with, and half of its activations.
#define QEFF_BEGIN(s, t) "ldr q" #s ", [%[start], #(%c[start_lane] * " #t ")]\n\t"
#define QEFF_X(x, t, half) "ldr q" #x ", [%[x], #(32 * " #t " + 16 * " #half ")]\n\t"
// sum * d - start * d; a result plus a product times a lane of a; lanes of the block before.
#define QEFF_PRODUCT(p, sum) "ldr q" #p ", [%[scales], #16]\n\tfmla v" #p ".4s, v" #sum ".4s, v29.4s\n\t"
#define QEFF_ADD(result, p, a, lane) "fmla v" #result ".4s, v" #p ".4s, v" #a ".s[" #lane "]\n\t"
#define QEFF_LANES(a, i) "ldr q" #a ", [%[x], #(256 + 16 * " #i " - %c[token_step])]\n\t"
// Weights of group g of the lower half, of the upper half.
#define QEFF_BYTES_LOW(w, g) "ldr q" #w ", [%[weights], #(%c[group] * " #g ")]\n\t"
#define QEFF_BYTES_HIGH(w, g) "ldr q" #w ", [%[weights], #(%c[group] * (4 + " #g "))]\n\t"
#define QEFF_NIBBLES_LOW(w, g) QEFF_BYTES_LOW(w, g) "and v" #w ".16b, v" #w ".16b, v31.16b\n\t"
#define QEFF_NIBBLES_HIGH(w, g) QEFF_BYTES_LOW(w, g) "ushr v" #w ".16b, v" #w ".16b, #4\n\t"
// Steps over weights: in scratch; of codes, after the last one over none, as what lies behind may not be read; of codes
// in units.
#define QEFF_STEP_SCRATCH "add %[weights], %[weights], %[weight_step]\n\t"
#define QEFF_STEP_CODES \
  "cmp %[left], #0\n\tcsel %[step], xzr, %[weight_step], eq\n\tadd %[weights], %[weights], %[step]\n\t"
#define QEFF_STEP_UNITS \
  "tst %[left], #7\n\tcsel %[step], %[unit_step], %[weight_step], eq\n\tcmp %[left], #0\n\t" \
  "csel %[step], xzr, %[step], eq\n\tadd %[weights], %[weights], %[step]\n\t"

// Tokens 2 to 7 of a block, the first two alone or with the minimums of the block before, then what the next block
// begins with.
#define QEFF_FIRST QEFF_DOT_LOW(18, 19, 24, 25, "", QEFF_X(27, 2, 1), QEFF_X(28, 3, 1), QEFF_BEGIN(20, 4))
#define QEFF_FIRST_LEAST \
  "ldr q29, [%[scales], #32]\n\t" QEFF_LANES(30, 2) QEFF_LANES(26, 3) \
  QEFF_ADD(0, 29, 30, 0) QEFF_ADD(1, 29, 30, 1) QEFF_DOTS(18, 19, 8, 24, 25, 0) \
  QEFF_ADD(2, 29, 30, 2) QEFF_ADD(3, 29, 30, 3) QEFF_DOTS(18, 19, 9, 24, 25, 1) QEFF_X(27, 2, 1) \
  QEFF_ADD(4, 29, 26, 0) QEFF_ADD(5, 29, 26, 1) QEFF_DOTS(18, 19, 10, 24, 25, 2) QEFF_X(28, 3, 1) \
  QEFF_ADD(6, 29, 26, 2) QEFF_ADD(7, 29, 26, 3) QEFF_DOTS(18, 19, 11, 24, 25, 3) QEFF_BEGIN(20, 4)
#define QEFF_REST(FIRST, LOW, STEP, NEXT_SCALES) \
  FIRST \
  QEFF_DOT_HIGH(18, 19, 27, 28, QEFF_BEGIN(21, 5), QEFF_X(24, 4, 0), QEFF_X(25, 5, 0), "") \
  QEFF_DOT_LOW(20, 21, 24, 25, "", QEFF_X(27, 4, 1), QEFF_X(28, 5, 1), QEFF_BEGIN(22, 6)) \
  QEFF_DOT_HIGH(20, 21, 27, 28, QEFF_BEGIN(23, 7), QEFF_X(24, 6, 0), QEFF_X(25, 7, 0), NEXT_SCALES) \
  QEFF_DOT_LOW(22, 23, 24, 25, QEFF_X(27, 6, 1), QEFF_X(28, 7, 1), STEP "add %[x], %[x], %[token_step]\n\t", \
               "add %[start], %[start], %[start_step]\n\t" QEFF_LANES(30, 0)) \
  QEFF_DOT_HIGH(22, 23, 27, 28, LOW(8, 0) LOW(9, 1), LOW(10, 2), LOW(11, 3) QEFF_X(24, 0, 0), QEFF_X(25, 1, 0))

#define QEFF_STRIP(LOW, HIGH, STEP, ASK, FIRST, LAST) \
  LOW(8, 0) LOW(9, 1) LOW(10, 2) LOW(11, 3) HIGH(12, 0) HIGH(13, 1) HIGH(14, 2) HIGH(15, 3) \
  QEFF_BEGIN(16, 0) QEFF_BEGIN(17, 1) QEFF_X(24, 0, 0) QEFF_X(25, 1, 0) QEFF_X(27, 0, 1) QEFF_X(28, 1, 1) \
  QEFF_DOT_LOW(16, 17, 24, 25, QEFF_BEGIN(18, 2), QEFF_BEGIN(19, 3), "", "") \
  QEFF_DOT_HIGH(16, 17, 27, 28, QEFF_X(24, 2, 0), QEFF_X(25, 3, 0), "", "") \
  QEFF_REST(QEFF_FIRST, LOW, STEP, "ldr q29, [%[scales]]\n\t") \
  "cbz %[left], 2f\n\t" \
  ".p2align 5\n" \
  "1:\n\t" \
  QEFF_PRODUCT(26, 16) QEFF_PRODUCT(27, 17) QEFF_BEGIN(16, 0) QEFF_BEGIN(17, 1) HIGH(12, 0) HIGH(13, 1) \
  QEFF_DOTS(16, 17, 8, 24, 25, 0) \
  QEFF_PRODUCT(28, 18) QEFF_PRODUCT(18, 19) QEFF_DOTS(16, 17, 9, 24, 25, 1) \
  QEFF_PRODUCT(19, 20) QEFF_PRODUCT(20, 21) HIGH(14, 2) HIGH(15, 3) QEFF_DOTS(16, 17, 10, 24, 25, 2) \
  QEFF_PRODUCT(21, 22) QEFF_PRODUCT(22, 23) QEFF_DOTS(16, 17, 11, 24, 25, 3) \
  QEFF_X(24, 0, 1) QEFF_X(25, 1, 1) \
  QEFF_ADD(0, 26, 30, 0) QEFF_ADD(1, 27, 30, 1) QEFF_DOTS(16, 17, 12, 24, 25, 0) QEFF_LANES(23, 1) \
  QEFF_ADD(2, 28, 30, 2) QEFF_ADD(3, 18, 30, 3) QEFF_DOTS(16, 17, 13, 24, 25, 1) QEFF_BEGIN(18, 2) \
  QEFF_ADD(4, 19, 23, 0) QEFF_ADD(5, 20, 23, 1) QEFF_DOTS(16, 17, 14, 24, 25, 2) QEFF_BEGIN(19, 3) \
  QEFF_ADD(6, 21, 23, 2) QEFF_ADD(7, 22, 23, 3) QEFF_DOTS(16, 17, 15, 24, 25, 3) QEFF_X(24, 2, 0) QEFF_X(25, 3, 0) \
  ASK \
  QEFF_REST(FIRST, LOW, STEP, \
            "ldr q29, [%[scales], %[scale_step]]!\n\tsub %[left], %[left], #1\n\t") \
  "cbnz %[left], 1b\n" \
  "2:\n\t" \
  QEFF_PRODUCT(26, 16) QEFF_PRODUCT(27, 17) QEFF_PRODUCT(28, 18) QEFF_PRODUCT(18, 19) QEFF_PRODUCT(19, 20) \
  QEFF_PRODUCT(20, 21) QEFF_PRODUCT(21, 22) QEFF_PRODUCT(22, 23) QEFF_LANES(31, 1) \
  QEFF_ADD(0, 26, 30, 0) QEFF_ADD(1, 27, 30, 1) QEFF_ADD(2, 28, 30, 2) QEFF_ADD(3, 18, 30, 3) \
  QEFF_ADD(4, 19, 31, 0) QEFF_ADD(5, 20, 31, 1) QEFF_ADD(6, 21, 31, 2) QEFF_ADD(7, 22, 31, 3) \
  LAST
#define QEFF_ASK_ONE "prfm pldl2keep, [%[next]]\n\tadd %[next], %[next], #64\n\t"
#define QEFF_ASK_TWO "prfm pldl1keep, [%[next]]\n\tprfm pldl1keep, [%[next], #64]\n\tadd %[next], %[next], #128\n\t"
#define QEFF_LAST ""
#define QEFF_LAST_LEAST \
  "ldr q29, [%[scales], #32]\n\t" QEFF_LANES(30, 2) QEFF_LANES(31, 3) \
  QEFF_ADD(0, 29, 30, 0) QEFF_ADD(1, 29, 30, 1) QEFF_ADD(2, 29, 30, 2) QEFF_ADD(3, 29, 30, 3) \
  QEFF_ADD(4, 29, 31, 0) QEFF_ADD(5, 29, 31, 1) QEFF_ADD(6, 29, 31, 2) QEFF_ADD(7, 29, 31, 3)
#define QEFF_RESULTS(move) \
  move " q0, q1, [%[results]]\n\t" move " q2, q3, [%[results], #32]\n\t" \
  move " q4, q5, [%[results], #64]\n\t" move " q6, q7, [%[results], #96]\n\t"

struct StripUnit {
  // How weights lie: unpacked in scratch, as a panel has bytes, as a panel has nibbles, of which the upper ones are
  // groups 4 to 7, and the same in units of 8 blocks.
  enum class Weights { kScratch, kBytes, kNibbles, kUnits };

  // Adds num_blocks > 0 blocks to results. A row vector's weights are 8 groups of 4 columns; weight_step and unit_step:
  // bytes to the next block, and to the next one in the next unit. Tokens are 8 times 32 bytes, 8 scales, and where
  // HasLeast is set, 8 scales times sums; TokenStep bytes a block, and the first bytes behind the last block are
  // read too. start: what the sums of a block begin with, one vector or, where weights do not lie in scratch, 8 in each
  // block of tokens. scales: d, -start * d, and the minimum where HasLeast is set. A line of `next` is asked for
  // in every block.
  template <Weights From, bool HasLeast, int TokenStep, int ScaleStep>
  static inline void add_blocks(const uint8_t* weights, int64_t weight_step, int64_t unit_step, int64_t num_blocks,
                                const int8_t* tokens, const int32_t* start, const float* scales, const uint8_t* next,
                                F32 (&results)[8]) {
    constexpr bool kHasStarts = From != Weights::kScratch;
    int64_t left = num_blocks - 1, step;
#define QEFF_RUN(...) \
  asm volatile(QEFF_RESULTS("ldp") "movi v31.16b, #15\n\t" QEFF_STRIP(__VA_ARGS__) QEFF_RESULTS("stp") \
               : [weights] "+r"(weights), [x] "+r"(tokens), [start] "+r"(start), [scales] "+r"(scales), \
                 [next] "+r"(next), [left] "+r"(left), [step] "=&r"(step) \
               : [weight_step] "r"(weight_step), [unit_step] "r"(unit_step), [token_step] "i"(TokenStep), \
                 [start_step] "i"(kHasStarts ? TokenStep : 0), [scale_step] "i"(ScaleStep), \
                 [group] "i"(kHasStarts ? 64 : 16), [start_lane] "i"(kHasStarts ? 16 : 0), [results] "r"(results) \
               : "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", \
                 "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", \
                 "v27", "v28", "v29", "v30", "v31")
    if constexpr (From == Weights::kScratch) {
      if constexpr (HasLeast) {
        QEFF_RUN(QEFF_BYTES_LOW, QEFF_BYTES_HIGH, QEFF_STEP_SCRATCH, QEFF_ASK_ONE, QEFF_FIRST_LEAST, QEFF_LAST_LEAST);
      } else {
        QEFF_RUN(QEFF_BYTES_LOW, QEFF_BYTES_HIGH, QEFF_STEP_SCRATCH, QEFF_ASK_ONE, QEFF_FIRST, QEFF_LAST);
      }
    } else if constexpr (From == Weights::kBytes) {
      static_assert(!HasLeast);
      QEFF_RUN(QEFF_BYTES_LOW, QEFF_BYTES_HIGH, QEFF_STEP_CODES, QEFF_ASK_TWO, QEFF_FIRST, QEFF_LAST);
    } else if constexpr (From == Weights::kNibbles) {
      if constexpr (HasLeast) {
        QEFF_RUN(QEFF_NIBBLES_LOW, QEFF_NIBBLES_HIGH, QEFF_STEP_CODES, QEFF_ASK_TWO, QEFF_FIRST_LEAST, QEFF_LAST_LEAST);
      } else {
        QEFF_RUN(QEFF_NIBBLES_LOW, QEFF_NIBBLES_HIGH, QEFF_STEP_CODES, QEFF_ASK_TWO, QEFF_FIRST, QEFF_LAST);
      }
    } else {
      static_assert(HasLeast);
      QEFF_RUN(QEFF_NIBBLES_LOW, QEFF_NIBBLES_HIGH, QEFF_STEP_UNITS, QEFF_ASK_TWO, QEFF_FIRST_LEAST, QEFF_LAST_LEAST);
    }
#undef QEFF_RUN
  }
};

#undef QEFF_DOT
#undef QEFF_DOTS
#undef QEFF_DOT_LOW
#undef QEFF_DOT_HIGH
#undef QEFF_BEGIN
#undef QEFF_X
#undef QEFF_PRODUCT
#undef QEFF_ADD
#undef QEFF_LANES
#undef QEFF_BYTES_LOW
#undef QEFF_BYTES_HIGH
#undef QEFF_NIBBLES_LOW
#undef QEFF_NIBBLES_HIGH
#undef QEFF_STEP_SCRATCH
#undef QEFF_STEP_CODES
#undef QEFF_STEP_UNITS
#undef QEFF_FIRST
#undef QEFF_FIRST_LEAST
#undef QEFF_REST
#undef QEFF_STRIP
#undef QEFF_ASK_ONE
#undef QEFF_ASK_TWO
#undef QEFF_LAST
#undef QEFF_LAST_LEAST
#undef QEFF_RESULTS

}  // namespace qeff::QEFF_ISA

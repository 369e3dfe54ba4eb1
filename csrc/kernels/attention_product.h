// Products of a few rows of floats with a block of keys or values.
//
// Every element of the result is the sum of its terms in order, one fused multiply-add each, however many rows are
// done together. Included by attention.cc alone, after the SIMD layer.
#pragma once

#include "kernels/unrolled.h"

namespace qeff::QEFF_ISA {

// Rows in one product, 16 columns each: as many as stay in registers.
constexpr int kQueries = kLanes == 16 ? 12 : 4;

// A product of small matrices: c[q][n] (+)= sum over i of a[q][i] * b[i][n], term by term in order of i.
template <typename Element>
struct Product {
  const float* a;
  const Element* b;
  float* c;
  int64_t a_stride, b_stride, c_stride;
  int64_t num_terms, num_columns;  // c has room for columns up to a multiple of 16, b holds as many
  bool adds;                       // to what c holds, else to zero
  const uint8_t* ahead;            // what will be read next: fetched meanwhile, as many bytes as are read of b
};

// Keeps the compiler from moving loads from term to term, and with them additions to one sum next to each other, where
// each waits for the last. Where they are pinned already, it would only have arguments read again.
static inline __attribute__((always_inline)) void stay_in_order() {
  if constexpr (kLanes > 4) __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

// A pointer that compilers take as it is: they would work out the address of each load for itself, and run out of
// registers.
template <typename T>
static inline __attribute__((always_inline)) T* base(T* p) {
  asm("" : "+r"(p));
  return p;
}

// sum[q] += b[i] * a[q][i] over groups of four terms, 16 columns; ahead moves by 16 columns with each term.
template <int Q, int V, bool kFetches>
static inline __attribute__((always_inline)) void add_terms(const float* b, int64_t stride, const float* a,
                                                            int64_t a_stride, int64_t num_terms, const uint8_t* ahead,
                                                            F32 (&sum)[Q][V]) {
  for (; num_terms >= 4; num_terms -= 4, a += 4) {
    Four factors[Q];
    unrolled<Q>([&](auto q) QEFF_INLINE_BODY { factors[q] = load_four(a + q * a_stride); });
    unrolled<4>([&](auto i) QEFF_INLINE_BODY {
      F32 columns[V];
      stay_in_order();
      if constexpr (kFetches) __builtin_prefetch(ahead + i * kColumns * sizeof(float));
      unrolled<V>([&](auto v) QEFF_INLINE_BODY { columns[v] = load_pinned(b + v * kLanes); });
      unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
        unrolled<V>([&](auto v) QEFF_INLINE_BODY { sum[q][v] = fma_spread<i>(columns[v], factors[q], sum[q][v]); });
      });
      b = base(b + stride);
    });
    if constexpr (kFetches) ahead += 4 * kColumns * sizeof(float);
  }
}

// The same with halves, which are read two terms before they are multiplied and made floats one term before: that takes
// a while, in which the additions go on.
template <int Q, int V, bool kFetches>
static inline __attribute__((always_inline)) void add_terms(const uint16_t* b, int64_t stride, const float* a,
                                                            int64_t a_stride, int64_t num_terms, const uint8_t* ahead,
                                                            F32 (&sum)[Q][V]) {
  if (num_terms < 4) return;
  F32 columns[2][V];
  Halves halves = load_halves(b);
  unrolled<V>([&](auto v) QEFF_INLINE_BODY { columns[0][v] = widen<v>(halves); });
  halves = load_halves(base(b + stride));
  const uint16_t* next = base(b + 2 * stride);
  for (; num_terms >= 4; num_terms -= 4, a += 4) {
    Four factors[Q];
    unrolled<Q>([&](auto q) QEFF_INLINE_BODY { factors[q] = load_four(a + q * a_stride); });
    unrolled<4>([&](auto i) QEFF_INLINE_BODY {
      stay_in_order();
      if constexpr (kFetches) __builtin_prefetch(ahead + i * kColumns * sizeof(uint16_t));
      unrolled<Q * V>([&](auto k) QEFF_INLINE_BODY {
        constexpr int kAt = Q * V - V < 2 ? Q * V - V : 2;  // the best place among the additions
        if constexpr (k >= kAt && k < kAt + V) columns[(i + 1) % 2][k - kAt] = widen<k - kAt>(halves);
        sum[k % Q][k / Q] = fma_spread<i>(columns[i % 2][k / Q], factors[k % Q], sum[k % Q][k / Q]);
      });
      // Behind the last group there is nothing to read: it is read again.
      if constexpr (i == 2) next = base(num_terms >= 8 ? next : next - 4 * stride);
      halves = load_halves(next);
      next = base(next + stride);
    });
    if constexpr (kFetches) ahead += 4 * kColumns * sizeof(uint16_t);
  }
}

static inline F32 load_as_f32(const float* p) { return load(p); }
static inline F32 load_as_f32(const uint16_t* p) { return load_f16(p); }

// The first V vectors of 16 columns, of which p.b and p.c are the first.
template <int Q, int V, bool kFetches, typename Element>
static inline __attribute__((always_inline)) void multiply_columns(const Product<Element>& p) {
  const int64_t in_fours = p.num_terms / 4 * 4;
  F32 sum[Q][V];
  if (p.adds) {
    unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
      const float* c = base(p.c + q * p.c_stride);
      unrolled<V>([&](auto v) QEFF_INLINE_BODY { sum[q][v] = load(c + v * kLanes); });
    });
  } else {
    unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
      unrolled<V>([&](auto v) QEFF_INLINE_BODY { sum[q][v] = zero_pinned(); });
    });
  }
  add_terms<Q, V, kFetches>(p.b, p.b_stride, p.a, p.a_stride, in_fours, p.ahead, sum);
  for (int64_t i = in_fours; i < p.num_terms; ++i) {
    unrolled<V>([&](auto v) QEFF_INLINE_BODY {
      const F32 columns = load_as_f32(p.b + i * p.b_stride + v * kLanes);
      unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
        sum[q][v] = fma(columns, set1(p.a[q * p.a_stride + i]), sum[q][v]);
      });
    });
  }
  unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
    float* c = base(p.c + q * p.c_stride);
    unrolled<V>([&](auto v) QEFF_INLINE_BODY { store(c + v * kLanes, sum[q][v]); });
  });
}

template <int Q, bool kFetches, typename Element>
static void multiply_rows(const Product<Element>& product) {
  Product<Element> p = product;  // in registers
  for (; p.num_columns >= kColumns; p.num_columns -= kColumns, p.b += kColumns, p.c += kColumns) {
    multiply_columns<Q, kVecs, kFetches>(p);
    if constexpr (kFetches) p.ahead += p.num_terms * kColumns * static_cast<int64_t>(sizeof(Element));
  }
  // The last columns in as few vectors as hold them, of 4, 2 and 1.
  constexpr int kHalf = kVecs > 1 ? kVecs / 2 : 1, kQuarter = kVecs > 2 ? kVecs / 4 : 1;
  if (p.num_columns > kHalf * kLanes) {
    multiply_columns<Q, kVecs, kFetches>(p);
  } else if (p.num_columns > kQuarter * kLanes) {
    multiply_columns<Q, kHalf, kFetches>(p);
  } else if (p.num_columns > 0) {
    multiply_columns<Q, kQuarter, kFetches>(p);
  }
}

// multiply_rows for 1 <= num_rows <= Q.
template <int Q = kQueries, typename Element>
static void multiply(int64_t num_rows, const Product<Element>& p) {
  if constexpr (Q > 1) {
    if (num_rows < Q) return multiply<Q - 1>(num_rows, p);
  }
  // Halves are read by few rows at a time, and reading them is most of the work.
  if constexpr (sizeof(Element) == 2) {
    multiply_rows<Q, true>(p);
  } else {
    p.ahead != nullptr ? multiply_rows<Q, true>(p) : multiply_rows<Q, false>(p);
  }
}

}  // namespace qeff::QEFF_ISA

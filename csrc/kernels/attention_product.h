// Products of a few rows of floats with a block of keys or values.
//
// Every element of the result is the sum of its terms in order, one fused multiply-add each, however many rows are
// done together. Included by attention.cc alone, after the SIMD layer.
#pragma once

namespace qeff::QEFF_ISA {

// Queries in one product, 16 columns each: as many as the compiler keeps in registers without copying them about.
// Halves take longer to turn into floats than the copies.
template <typename Element>
constexpr int kQueries = kLanes == 4 ? (sizeof(Element) == 2 ? 4 : 3) : kLanes == 8 ? 4 : 12;

static inline F32 load_as_f32(const float* p) { return load(p); }
static inline F32 load_as_f32(const uint16_t* p) { return load_f16(p); }

// One term for each of Q sums: sum[q] += b * a[q][I], 16 columns. The fences keep the compiler from moving loads
// between terms, and with them additions to one sum next to each other, where each waits for the last.
template <int I, int Q, typename Element>
static inline __attribute__((always_inline)) void add_term(const Element* b, const Four* a, F32 (*sum)[kVecs]) {
  F32 columns[kVecs];
  if constexpr (Q > 1) __atomic_signal_fence(__ATOMIC_SEQ_CST);
  for (int v = 0; v < kVecs; ++v) columns[v] = load_as_f32(b + v * kLanes);
  if constexpr (Q > 1) __atomic_signal_fence(__ATOMIC_SEQ_CST);
  for (int q = 0; q < Q; ++q) {
    for (int v = 0; v < kVecs; ++v) sum[q][v] = fma_spread<I>(columns[v], a[q], sum[q][v]);
  }
}

// A product of small matrices: c[q][n] (+)= sum over i of a[q][i] * b[i][n], term by term in order of i.
template <typename Element>
struct Product {
  const float* a;
  const Element* b;
  float* c;
  int64_t a_stride, b_stride, c_stride;
  int64_t num_terms, num_columns;  // columns: a multiple of 16
  bool adds;                       // to what c holds, else to zero
};

template <int Q, typename Element>
static void multiply_rows(const Product<Element> p) {
  const Element* b_columns = p.b;
  float* c_columns = p.c;
  for (int64_t left = p.num_columns; left > 0; left -= kColumns, b_columns += kColumns, c_columns += kColumns) {
    F32 sum[Q][kVecs];
    for (int q = 0; q < Q; ++q) {
      for (int v = 0; v < kVecs; ++v) sum[q][v] = p.adds ? load(c_columns + q * p.c_stride + v * kLanes) : zero();
    }
    const Element* b = b_columns;
    const float* a = p.a;
    int64_t terms = p.num_terms;
    for (; terms >= 4; terms -= 4, a += 4, b += 4 * p.b_stride) {
      Four factors[Q];
      for (int q = 0; q < Q; ++q) factors[q] = load_four(a + q * p.a_stride);
      add_term<0, Q>(b, factors, sum);
      add_term<1, Q>(b + p.b_stride, factors, sum);
      add_term<2, Q>(b + 2 * p.b_stride, factors, sum);
      add_term<3, Q>(b + 3 * p.b_stride, factors, sum);
    }
    for (; terms > 0; --terms, ++a, b += p.b_stride) {
      for (int v = 0; v < kVecs; ++v) {
        const F32 columns = load_as_f32(b + v * kLanes);
        for (int q = 0; q < Q; ++q) sum[q][v] = fma(columns, set1(a[q * p.a_stride]), sum[q][v]);
      }
    }
    for (int q = 0; q < Q; ++q) {
      for (int v = 0; v < kVecs; ++v) store(c_columns + q * p.c_stride + v * kLanes, sum[q][v]);
    }
  }
}

// multiply_rows for 1 <= num_queries <= Q.
template <int Q, typename Element>
static void multiply(int64_t num_queries, const Product<Element>& p) {
  if constexpr (Q > 1) {
    if (num_queries < Q) return multiply<Q - 1>(num_queries, p);
  }
  multiply_rows<Q>(p);
}

}  // namespace qeff::QEFF_ISA

// Products of halves: a few rows of halves with a block of keys or values as it lies in the cache.
//
// A sum is made of groups of 64 terms. Within a group, chains of 16 terms are added up term by term in halves, one
// fused multiply-add each, the first two chains are added, then the others, then the two sums; the result is made a
// float. A term belongs to its chain by its number, and terms that a row leaves out count as zero, so that a row's
// result does not depend on the rows that are done with it. The error is that of a few roundings to halves, such as
// those that the cache has made.
//
// Factors are small enough that no sum exceeds the largest half, whatever the cache holds: kLargestFactor.
//
// Included by attention.cc alone, after the SIMD layer.
#pragma once

#include "kernels/attention_product.h"

namespace qeff::QEFF_ISA {

constexpr int64_t kChain = 16, kGroup = 64;
constexpr float kLargestFactor = 0x1p-6f;

// Some rows of the work, or of a tile, or some terms: [begin, end).
struct Range {
  int64_t begin, end;
  bool is_empty() const { return begin >= end; }
};

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static inline bool operator==(Range a, Range b) { return a.begin == b.begin && a.end == b.end; }
static inline Range common(Range a, Range b) { return {larger(a.begin, b.begin), smaller(a.end, b.end)}; }

// Rounds a query times scale to halves, in units of a power of two that it returns: all are below kLargestFactor.
template <class Unit>
static inline float round_query(const float* q, int64_t num, float scale, uint16_t* halves) {
  // The bits of magnitudes are ordered as the magnitudes are.
  I32 most = set1_i32(0);
  int64_t i = 0;
  for (; i + kLanes <= num; i += kLanes) most = max(as_i32(abs(load(q + i) * set1(scale))), most);
  int32_t bits[kLanes], largest = 0;
  store_i32(bits, most);
  for (const int32_t lane : bits) largest = lane > largest ? lane : largest;
  for (; i < num; ++i) {
    const float magnitude = std::fabs(q[i] * scale);
    int32_t own;
    std::memcpy(&own, &magnitude, 4);
    largest = own > largest ? own : largest;
  }
  // 2^-7 divided by the power of two of the largest, as far as there are such floats: infinities stay.
  const uint32_t exponent = static_cast<uint32_t>(largest) >> 23;
  const uint32_t factor_bits = (exponent < 247 ? 247 - exponent : 1) << 23, unit_bits = (254u << 23) - factor_bits;
  float factor, unit;
  std::memcpy(&factor, &factor_bits, 4);
  std::memcpy(&unit, &unit_bits, 4);
  const auto rounded = [&](int64_t at) { return load(q + at) * set1(scale) * set1(factor); };
  for (i = 0; i + 8 <= num; i += 8) Unit::store(halves + i, rounded(i), rounded(i + 4));
  for (; i < num; ++i) halves[i] = float_to_half(q[i] * scale * factor);
  return unit;
}

// One group: c[q][n] = sum over i of a[q][i] * b[i][n], times gain[q]; plus c[q][n] * keep[q] where keep is not null.
struct HalfProduct {
  const uint16_t* a;
  const uint16_t* b[2];   // terms 0 to 31 and 32 to 63; null where no row has any
  float* c;
  int64_t a_stride, b_stride, c_stride;
  int64_t num_columns;    // b and c have as many, up to a multiple of 16
  const float* gain;
  const float* keep;
  Range shared, all;      // terms that every row has, or {kGroup, kGroup} for none; terms that any row has
  const Range* own;       // terms of each row, or null: they are alike
  const uint8_t* ahead;   // what will be read next, fetched meanwhile, or null
};

// Eight terms, a multiple of 8 and those behind it, that all rows have.
template <class Unit, int Q, int V, bool kFetches>
static inline __attribute__((always_inline)) void add_eight(const uint16_t* a, int64_t a_stride, const uint16_t* b,
                                                            int64_t stride, const uint8_t* ahead,
                                                            typename Unit::Vec (&sum)[Q][V]) {
  typename Unit::Vec factors[Q];
  unrolled<Q>([&](auto q) QEFF_INLINE_BODY { factors[q] = Unit::load_factors(a + q * a_stride); });
  unrolled<8>([&](auto i) QEFF_INLINE_BODY {
    typename Unit::Vec columns[V];
    if constexpr (kFetches && i * V % 4 == 0) __builtin_prefetch(ahead + i * V * 16);
    unrolled<V>([&](auto v) QEFF_INLINE_BODY { columns[v] = Unit::load(b + v * 8); });
    unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
      unrolled<V>([&](auto v) QEFF_INLINE_BODY {
        sum[q][v] = Unit::template fma_lane<i>(columns[v], factors[q], sum[q][v]);
      });
    });
    b = base(b + stride);
  });
}

// One term of row q.
template <class Unit, int Q, int V>
static inline __attribute__((always_inline)) void add_term(const HalfProduct& p, int64_t term, const uint16_t* b,
                                                           int q, typename Unit::Vec (&sum)[Q][V]) {
  const auto factor = Unit::spread(p.a + q * p.a_stride + term);
  unrolled<V>([&](auto v) QEFF_INLINE_BODY { sum[q][v] = Unit::fma(Unit::load(b + v * 8), factor, sum[q][v]); });
}

// The terms of a chain, of which some rows have not all; b: the first of them.
template <class Unit, int Q, int V>
static inline __attribute__((always_inline)) void add_some(const HalfProduct& p, Range chain, const uint16_t* b,
                                                           typename Unit::Vec (&sum)[Q][V]) {
  const auto add_own = [&](Range limits) QEFF_INLINE_BODY {
    if (Q == 1 || p.own == nullptr) return;
    unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
      const Range terms = common(p.own[q], limits);
      for (int64_t i = terms.begin; i < terms.end; ++i) {
        add_term<Unit>(p, i, b + (i - chain.begin) * p.b_stride, q, sum);
      }
    });
  };
  add_own({chain.begin, smaller(chain.end, p.shared.begin)});
  const Range terms = common(p.shared, chain);
  for (int64_t i = terms.begin; i < terms.end;) {
    const uint16_t* columns = b + (i - chain.begin) * p.b_stride;
    if (i % 8 == 0 && i + 8 <= terms.end) {
      add_eight<Unit, Q, V, false>(p.a + i, p.a_stride, columns, p.b_stride, nullptr, sum);
      i += 8;
    } else {
      unrolled<Q>([&](auto q) QEFF_INLINE_BODY { add_term<Unit>(p, i, columns, q, sum); });
      ++i;
    }
  }
  add_own({larger(chain.begin, p.shared.end), chain.end});
}

template <class Unit, int Q, int V>
static inline __attribute__((always_inline)) void clear(typename Unit::Vec (&sum)[Q][V]) {
  unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
    unrolled<V>([&](auto v) QEFF_INLINE_BODY { sum[q][v] = Unit::zero(); });
  });
}

// V * 8 columns from `column` on.
template <class Unit, int Q, int V, bool kFetches>
static inline __attribute__((always_inline)) void sum_columns(const HalfProduct& p, int64_t column,
                                                              const uint8_t* ahead) {
  typename Unit::Vec total[Q][V];
  clear<Unit>(total);
  const uint16_t* b = p.b[0];
  for (int64_t first = 0; first < kGroup; first += 2 * kChain, b = p.b[1]) {
    if (first >= p.all.end || first + 2 * kChain <= p.all.begin) continue;
    typename Unit::Vec low[Q][V], high[Q][V];
    clear<Unit>(low);
    clear<Unit>(high);
    if (first >= p.shared.begin && first + 2 * kChain <= p.shared.end) {
      const uint16_t* a = base(p.a + first);
      const uint16_t* at = base(b + column);
      const auto add = [&](typename Unit::Vec (&sum)[Q][V]) QEFF_INLINE_BODY {
        unrolled<kChain / 8>([&](auto) QEFF_INLINE_BODY {
          add_eight<Unit, Q, V, kFetches>(a, p.a_stride, at, p.b_stride, ahead, sum);
          a = base(a + 8);
          at = base(at + 8 * p.b_stride);
          if constexpr (kFetches) ahead = base(ahead + 8 * V * 16);
        });
      };
      add(low);
      add(high);
    } else {
      const int64_t middle = first + kChain;
      add_some<Unit>(p, {first, middle}, b + column, low);
      add_some<Unit>(p, {middle, middle + kChain}, b + column + kChain * p.b_stride, high);
    }
    unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
      unrolled<V>([&](auto v) QEFF_INLINE_BODY {
        total[q][v] = Unit::add(total[q][v], Unit::add(low[q][v], high[q][v]));
      });
    });
  }
  unrolled<Q>([&](auto q) QEFF_INLINE_BODY {
    float* c = base(p.c + q * p.c_stride + column);
    const F32 gain = set1(p.gain[q]);
    F32 sums[V][2];
    unrolled<V>([&](auto v) QEFF_INLINE_BODY { Unit::widen(total[q][v], sums[v]); });
    if (p.keep == nullptr) {
      unrolled<2 * V>([&](auto v) QEFF_INLINE_BODY { store(c + v * kLanes, sums[v / 2][v % 2] * gain); });
    } else {
      const F32 keep = set1(p.keep[q]);
      unrolled<2 * V>([&](auto v) QEFF_INLINE_BODY {
        store(c + v * kLanes, fma(sums[v / 2][v % 2], gain, load(c + v * kLanes) * keep));
      });
    }
  });
}

// All columns, for Q rows. A row alone has four sums at a time, so that none waits for the last.
template <class Unit, int Q, bool kFetches>
static void sum_rows(const HalfProduct& product) {
  const HalfProduct p = product;  // in registers
  const uint8_t* ahead = p.ahead;
  int64_t column = 0;
  if constexpr (Q == 1) {
    for (; column + 32 <= p.num_columns; column += 32) {
      sum_columns<Unit, Q, 4, kFetches>(p, column, ahead);
      if constexpr (kFetches) ahead += 32 * kGroup * 2;
    }
  }
  for (; column < p.num_columns; column += 16) {
    sum_columns<Unit, Q, 2, kFetches>(p, column, ahead);
    if constexpr (kFetches) ahead += 16 * kGroup * 2;
  }
}

// sum_rows for 1 <= num_rows <= Q.
template <class Unit, int Q = kQueries>
static inline void sum_halves(int64_t num_rows, const HalfProduct& p) {
  if constexpr (Q > 1) {
    if (num_rows < Q) return sum_halves<Unit, Q - 1>(num_rows, p);
  }
  p.ahead != nullptr ? sum_rows<Unit, Q, true>(p) : sum_rows<Unit, Q, false>(p);
}

}  // namespace qeff::QEFF_ISA

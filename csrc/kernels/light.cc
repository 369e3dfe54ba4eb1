// The light kernels over the SIMD layer; compiled once for each instruction set. See light.h.
#include "kernels/light.h"

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
// Kernels fix their order where it matters; a compiler that changes it before it has chosen registers adds moves.
#pragma GCC optimize("no-schedule-insns")
#endif

#include <math.h>

#include <cstdint>
#include <cstring>

#include QEFF_SIMD_HEADER

#include "kernels/light_map.h"
#include "kernels/light_reduce.h"
#include "simd/math.h"

namespace qeff::QEFF_ISA {

const LightKernels& light_kernels();

namespace {

// y = scaled(x) * weight + bias over one group.
template <typename Scaled>
void scale_group(const NormArgs& args, const float* x, Scaled scaled, float* y) {
  if (args.weight != nullptr) {
    map2(x, args.weight, args.size, y, each_vector([&](F32 v, F32 w) { return scaled(v) * w; }));
  } else {
    map1(x, args.size, y, each_vector(scaled));
  }
  if (args.bias != nullptr) {
    map2(y, args.bias, args.size, y, each_vector([](F32 v, F32 b) { return v + b; }));
  }
}

// In double: it is done once a group, and leaves the elements one rounding less.
float norm_scale(const NormArgs& args, float squares) {
  const double mean = static_cast<double>(squares) / static_cast<double>(args.size);
  return static_cast<float>(1.0 / ::sqrt(mean + static_cast<double>(args.eps)));
}

void rms_norm(const NormArgs& args, const float* x, float* y) {
  for (int64_t group = 0; group < args.groups; ++group) {
    const float squares = sum_of(x, args.size, 0.0f, [](F32 v, F32 sum) { return fma(v, v, sum); });
    const F32 times = set1(norm_scale(args, squares));
    scale_group(args, x, [&](F32 v) { return v * times; }, y);
    x += args.size;
    y += args.size;
  }
}

void layer_norm(const NormArgs& args, const float* x, float* y) {
  for (int64_t group = 0; group < args.groups; ++group) {
    const float sum = sum_of(x, args.size, 0.0f, [](F32 v, F32 running) { return running + v; });
    const float mean = sum / static_cast<float>(args.size);
    const F32 minus = set1(mean);
    const float squares = sum_of(x, args.size, mean, [&](F32 v, F32 running) {
      const F32 distance = v - minus;
      return fma(distance, distance, running);
    });
    const F32 times = set1(norm_scale(args, squares));
    scale_group(args, x, [&](F32 v) { return (v - minus) * times; }, y);
    x += args.size;
    y += args.size;
  }
}

void rope_halves(const float* x, const float* cos, const float* sin, int64_t half, float* y) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F32 a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(y + i, a * c - b * s);
    store(y + half + i, a * s + b * c);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    y[i] = a * cos[i] - b * sin[i];
    y[half + i] = a * sin[i] + b * cos[i];
  }
}

void rope_pairs(const float* x, const float* cos, const float* sin, int64_t half, float* y) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    y[2 * i] = a * cos[i] - b * sin[i];
    y[2 * i + 1] = a * sin[i] + b * cos[i];
  }
}

void rope(const float* x, const float* cos, const float* sin, int64_t groups, int64_t size,
          int64_t half, bool interleaved, float* y) {
  const int64_t rest = size - 2 * half;
  for (int64_t group = 0; group < groups; ++group) {
    if (interleaved) {
      rope_pairs(x, cos, sin, half, y);
    } else {
      rope_halves(x, cos, sin, half, y);
    }
    if (rest > 0 && x != y) {
      std::memcpy(y + 2 * half, x + 2 * half, static_cast<size_t>(rest) * sizeof(float));
    }
    x += size;
    y += size;
  }
}

// Functions of one element, in the form that map1 takes.
constexpr auto kGelu = []<int N>(F32 (&x)[N]) { gelu(x); };
constexpr auto kGeluTanh = []<int N>(F32 (&x)[N]) { gelu_tanh(x); };
constexpr auto kSigmoid = []<int N>(F32 (&x)[N]) { sigmoid(x); };
constexpr auto kSilu = []<int N>(F32 (&x)[N]) { silu(x); };
constexpr auto kTanh = []<int N>(F32 (&x)[N]) { tanh(x); };
constexpr auto kErf = []<int N>(F32 (&x)[N]) { erf(x); };
constexpr auto kExp = []<int N>(F32 (&x)[N]) { exp(x); };

// The same for single vectors.
F32 relu(F32 x) { return select_positive(zero() - x, zero(), x); }
F32 relu2(F32 x) { return relu(x) * relu(x); }
F32 reciprocal(F32 x) { return set1(1.0f) / x; }
F32 rsqrt(F32 x) { return set1(1.0f) / sqrt(x); }
F32 square(F32 x) { return x * x; }

template <auto F>
void unary(const float* x, int64_t n, float* y) {
  map1(x, n, y, F);
}

template <auto F>
void gated(const float* gate, const float* up, int64_t n, float* y) {
  map2(gate, up, n, y, []<int N>(F32 (&g)[N], F32 (&u)[N]) {
    F(g);
    for (int i = 0; i < N; ++i) g[i] = g[i] * u[i];
  });
}

template <F32 (*F)(F32)>
constexpr auto kEach = []<int N>(F32 (&x)[N]) {
  for (int i = 0; i < N; ++i) x[i] = F(x[i]);
};

// The rest through the C library: rare, or asked for once a step. Angles need double: a position of a
// million leaves a float no room for the fraction of a turn.
float one_ceil(float x) { return ::ceilf(x); }
float one_cos(float x) { return static_cast<float>(::cos(static_cast<double>(x))); }
float one_floor(float x) { return ::floorf(x); }
float one_log(float x) { return static_cast<float>(::log(static_cast<double>(x))); }
float one_neg(float x) { return -x; }
float one_sign(float x) { return x > 0 ? 1.0f : (x < 0 ? -1.0f : x); }
float one_sin(float x) { return static_cast<float>(::sin(static_cast<double>(x))); }
float one_softplus(float x) {
  const double wide = static_cast<double>(x);
  return static_cast<float>((wide > 0 ? wide : 0) + ::log1p(::exp(-::fabs(wide))));
}

template <float (*F)(float)>
void each(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = F(x[i]);
}

void swiglu_clamped(const float* gate, const float* up, int64_t n, float alpha, float limit, float* y) {
  const F32 top = set1(limit), bottom = set1(-limit), steep = set1(alpha), one = set1(1.0f);
  map2(gate, up, n, y, [&]<int N>(F32 (&g)[N], F32 (&u)[N]) {
    F32 below[N];
    for (int i = 0; i < N; ++i) g[i] = min(top, g[i]);
    for (int i = 0; i < N; ++i) below[i] = steep * g[i];
    one_plus_exp<true>(below);
    for (int i = 0; i < N; ++i) g[i] = (min(top, max(bottom, u[i])) + one) * (g[i] / below[i]);
  });
}

F32 add(F32 a, F32 b) { return a + b; }
F32 sub(F32 a, F32 b) { return a - b; }
F32 mul(F32 a, F32 b) { return a * b; }
F32 div(F32 a, F32 b) { return a / b; }

template <F32 (*F)(F32, F32)>
void binary(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t n, float* y) {
  map2_steps(a, a_step, b, b_step, n, y, [](F32 u, F32 v) { return F(u, v); });
}

// A NaN in either place is the result, which the vector maximum does not promise.
void binary_max(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const float u = a[i * a_step], v = b[i * b_step];
    y[i] = u > v || u != u ? u : v;
  }
}

void binary_min(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const float u = a[i * a_step], v = b[i * b_step];
    y[i] = u < v || u != u ? u : v;
  }
}

void softmax(const float* x, int64_t n, float* y) {
  const F32 top = set1(max_of(x, n));
  map1(x, n, y, [&]<int N>(F32 (&v)[N]) {
    for (int i = 0; i < N; ++i) v[i] = v[i] - top;
    exp(v);
  });
  const F32 sum = set1(sum_of(y, n, 0.0f, [](F32 v, F32 running) { return running + v; }));
  map1(y, n, y, each_vector([&](F32 v) { return v / sum; }));
}

// The first Vectors * kLanes columns of one row of a product; b has rows of `cols`.
template <int Vectors>
void matmul_columns(const float* a, const float* b, int64_t inner, int64_t cols, float* y) {
  F32 sum[Vectors];
  for (int v = 0; v < Vectors; ++v) sum[v] = zero();
  for (int64_t i = 0; i < inner; ++i) {
    const F32 factor = set1(a[i]);
    for (int v = 0; v < Vectors; ++v) sum[v] = fma(factor, load(b + i * cols + v * kLanes), sum[v]);
  }
  for (int v = 0; v < Vectors; ++v) store(y + v * kLanes, sum[v]);
}

void matmul(const float* a, const float* b, int64_t rows, int64_t inner, int64_t cols, float* y) {
  for (int64_t row = 0; row < rows; ++row) {
    int64_t col = 0;
    for (; col + 4 * kLanes <= cols; col += 4 * kLanes) {
      matmul_columns<4>(a, b + col, inner, cols, y + col);
    }
    for (; col + kLanes <= cols; col += kLanes) {
      matmul_columns<1>(a, b + col, inner, cols, y + col);
    }
    for (; col < cols; ++col) {
      float sum = 0;
      for (int64_t i = 0; i < inner; ++i) sum = __builtin_fmaf(a[i], b[i * cols + col], sum);
      y[col] = sum;
    }
    a += inner;
    y += cols;
  }
}

void weighted_sum(const float* const* rows, const float* weights, int64_t count, int64_t n, float* y) {
  std::memset(y, 0, static_cast<size_t>(n) * sizeof(float));
  for (int64_t j = 0; j < count; ++j) {
    if (rows[j] == nullptr) continue;
    const F32 factor = set1(weights[j]);
    map2(y, rows[j], n, y, each_vector([&](F32 sum, F32 v) { return sum + factor * v; }));
  }
}

// With NaN among them, or infinities: one after the other.
Likeliest likeliest_of_any(const float* x, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] != x[i]) return {-1, x[i]};
    if (x[i] > x[best]) best = i;
  }
  return {best, x[best]};
}

Likeliest likeliest(const float* x, int64_t n) {
  constexpr int64_t kPart = 256;  // floats that are looked through a second time
  F32 doubt = zero();             // stays zero as long as all are finite
  int64_t at = 0, i = 0;
  float best = x[0];
  for (; i + kPart <= n; i += kPart) {
    F32 running[4] = {load(x + i), load(x + i), load(x + i), load(x + i)};
    for (int64_t j = i; j < i + kPart; j += 4 * kLanes) {
      for (int v = 0; v < 4; ++v) {
        const F32 some = load(x + j + v * kLanes);
        running[v] = max(running[v], some);
        doubt = fma(some, zero(), doubt);
      }
    }
    const float largest = reduce_max(max(max(running[0], running[1]), max(running[2], running[3])));
    if (largest > best) {
      best = largest;
      at = i;
    }
  }
  float all[kLanes];
  store(all, doubt);
  for (const float one : all) {
    if (one != 0) return likeliest_of_any(x, n);
  }
  for (int64_t j = i; j < n; ++j) {
    if (!__builtin_isfinite(x[j])) return likeliest_of_any(x, n);
    if (x[j] > best) {
      best = x[j];
      at = j;
    }
  }
  while (x[at] != best) ++at;
  return {at, best};
}

void powers(const float* x, int64_t n, float peak, float scale, float* y, double* sums) {
  const F32 top = set1(peak), factor = set1(scale);
  for (int64_t i = 0; i < n; i += kPowersPart) {
    const int64_t count = n - i < kPowersPart ? n - i : kPowersPart;
    map1(x + i, count, y + i, [&]<int N>(F32 (&v)[N]) {
      for (int j = 0; j < N; ++j) v[j] = (v[j] - top) * factor;
      exp(v);
    });
    *sums++ = sum_of(y + i, count, 0, [](F32 some, F32 sum) { return sum + some; });
  }
}

const LightKernels kTable = {
    rms_norm,
    layer_norm,
    rope,
    {unary<kGelu>, unary<kGeluTanh>, unary<kEach<relu>>, unary<kEach<relu2>>, unary<kSigmoid>, unary<kSilu>,
     unary<kTanh>, unary<kEach<abs>>, each<one_ceil>, each<one_cos>, unary<kErf>, unary<kExp>,
     each<one_floor>, each<one_log>, each<one_neg>, unary<kEach<reciprocal>>, unary<kEach<round>>,
     unary<kEach<rsqrt>>, each<one_sign>, each<one_sin>, each<one_softplus>, unary<kEach<sqrt>>,
     unary<kEach<square>>},
    {gated<kGelu>, gated<kGeluTanh>, gated<kEach<relu>>, gated<kEach<relu2>>, gated<kSigmoid>, gated<kSilu>,
     gated<kTanh>},
    swiglu_clamped,
    {binary<add>, binary<sub>, binary<mul>, binary<div>, binary_max, binary_min},
    softmax,
    matmul,
    weighted_sum,
    likeliest,
    powers,
};

}  // namespace

const LightKernels& light_kernels() { return kTable; }

}  // namespace qeff::QEFF_ISA

// The light kernels over the SIMD layer; compiled once for each instruction set. See light.h.
#include "kernels/light.h"

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

// y = (x - shift) * scale * weight + bias over one group.
void scale_group(const NormArgs& args, const float* x, float shift, float scale, float* y) {
  const F32 minus = set1(shift), times = set1(scale);
  const auto scaled = [&](F32 v) { return (v - minus) * times; };
  if (args.weight != nullptr) {
    map2(x, args.weight, args.size, y, [&](F32 v, F32 w) { return scaled(v) * w; });
  } else {
    map1(x, args.size, y, scaled);
  }
  if (args.bias != nullptr) {
    map2(y, args.bias, args.size, y, [](F32 v, F32 b) { return v + b; });
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
    scale_group(args, x, 0.0f, norm_scale(args, squares), y);
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
    scale_group(args, x, mean, norm_scale(args, squares), y);
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
struct Gelu { static F32 of(F32 x) { return gelu(x); } };
struct GeluTanh { static F32 of(F32 x) { return gelu_tanh(x); } };
struct Relu { static F32 of(F32 x) { return relu(x); } };
struct Relu2 { static F32 of(F32 x) { return relu2(x); } };
struct Sigmoid { static F32 of(F32 x) { return sigmoid(x); } };
struct Silu { static F32 of(F32 x) { return silu(x); } };
struct Tanh { static F32 of(F32 x) { return tanh(x); } };
struct Abs { static F32 of(F32 x) { return abs(x); } };
struct Erf { static F32 of(F32 x) { return erf(x); } };
struct Exp { static F32 of(F32 x) { return exp(x); } };
struct Reciprocal { static F32 of(F32 x) { return set1(1.0f) / x; } };
struct Round { static F32 of(F32 x) { return round(x); } };
struct Rsqrt { static F32 of(F32 x) { return set1(1.0f) / sqrt(x); } };
struct Sqrt { static F32 of(F32 x) { return sqrt(x); } };
struct Square { static F32 of(F32 x) { return x * x; } };

template <typename F>
void unary(const float* x, int64_t n, float* y) {
  map1(x, n, y, [](F32 v) { return F::of(v); });
}

template <typename F>
void gated(const float* gate, const float* up, int64_t n, float* y) {
  map2(gate, up, n, y, [](F32 g, F32 u) { return F::of(g) * u; });
}

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
  map2(gate, up, n, y, [&](F32 g, F32 u) {
    const F32 low = min(top, g);
    const F32 clamped = min(top, max(bottom, u));
    return (clamped + one) * low * sigmoid(steep * low);
  });
}

struct Add { static F32 of(F32 a, F32 b) { return a + b; } };
struct Sub { static F32 of(F32 a, F32 b) { return a - b; } };
struct Mul { static F32 of(F32 a, F32 b) { return a * b; } };
struct Div { static F32 of(F32 a, F32 b) { return a / b; } };

template <typename F>
void binary(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t n, float* y) {
  map2_steps(a, a_step, b, b_step, n, y, [](F32 u, F32 v) { return F::of(u, v); });
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
  map1(x, n, y, [&](F32 v) { return exp(v - top); });
  const F32 sum = set1(sum_of(y, n, 0.0f, [](F32 v, F32 running) { return running + v; }));
  map1(y, n, y, [&](F32 v) { return v / sum; });
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
    map2(y, rows[j], n, y, [&](F32 sum, F32 v) { return sum + factor * v; });
  }
}

const LightKernels kTable = {
    rms_norm,
    layer_norm,
    rope,
    {unary<Gelu>, unary<GeluTanh>, unary<Relu>, unary<Relu2>, unary<Sigmoid>, unary<Silu>,
     unary<Tanh>, unary<Abs>, each<one_ceil>, each<one_cos>, unary<Erf>, unary<Exp>,
     each<one_floor>, each<one_log>, each<one_neg>, unary<Reciprocal>, unary<Round>, unary<Rsqrt>,
     each<one_sign>, each<one_sin>, each<one_softplus>, unary<Sqrt>, unary<Square>},
    {gated<Gelu>, gated<GeluTanh>, gated<Relu>, gated<Relu2>, gated<Sigmoid>, gated<Silu>,
     gated<Tanh>},
    swiglu_clamped,
    {binary<Add>, binary<Sub>, binary<Mul>, binary<Div>, binary_max, binary_min},
    softmax,
    matmul,
    weighted_sum,
};

}  // namespace

const LightKernels& light_kernels() { return kTable; }

}  // namespace qeff::QEFF_ISA

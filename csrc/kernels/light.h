// Everything but matrix products with weights and attention: what the ops may call.
//
// All functions are pure: they read what the arguments point to, write the given output, keep nothing,
// and may run on any number of threads at once. An output may be the same memory as an input of the
// same size, and may not overlap one in any other way. An element's result depends on nothing but
// the numbers it is made of: not on its place, the length of the call or the instruction set.
#pragma once

#include <cstdint>

namespace qeff {

// Functions of one float. Activations come first: they are also what gates use.
enum class UnaryFunction : uint8_t {
  kGelu,
  kGeluTanh,
  kRelu,
  kRelu2,
  kSigmoid,
  kSilu,
  kTanh,
  kAbs,
  kCeil,
  kCos,
  kErf,
  kExp,
  kFloor,
  kLog,
  kNeg,
  kReciprocal,
  kRound,
  kRsqrt,
  kSign,
  kSin,
  kSoftplus,
  kSqrt,
  kSquare,
};
inline constexpr int kNumActivations = 7;
inline constexpr int kNumUnaryFunctions = 23;

// Functions of two floats that are on the path of every token.
enum class FloatBinary : uint8_t { kAdd, kSub, kMul, kDiv, kMax, kMin };
inline constexpr int kNumFloatBinaries = 6;

struct NormArgs {
  const float* weight;  // [size] or null
  const float* bias;    // [size] or null
  int64_t groups, size;  // x and y are [groups, size]
  float eps;
};

// The place of the largest of some floats, the first of equal ones; -1 where one is NaN.
struct Likeliest {
  int64_t index;
  float value;
};

inline constexpr int64_t kPowersPart = 256;

struct LightKernels {
  // Each group by itself: x / sqrt(mean(x^2) + eps) * weight + bias; layer_norm subtracts the mean first.
  void (*rms_norm)(const NormArgs& args, const float* x, float* y);
  void (*layer_norm)(const NormArgs& args, const float* x, float* y);
  // Rotates the first 2 * half features of each group: pairs (i, i + half), or (2i, 2i + 1) when interleaved.
  // cos and sin: [half].
  void (*rope)(const float* x, const float* cos, const float* sin, int64_t groups, int64_t size,
               int64_t half, bool interleaved, float* y);
  // y[i] = function(x[i]) for i < n, by UnaryFunction.
  void (*unary[kNumUnaryFunctions])(const float* x, int64_t n, float* y);
  // y[i] = activation(gate[i]) * up[i], by UnaryFunction below kNumActivations.
  void (*gated[kNumActivations])(const float* gate, const float* up, int64_t n, float* y);
  // With g = min(gate, limit), u = clamp(up, -limit, limit): (u + 1) * g * sigmoid(alpha * g).
  void (*swiglu_clamped)(const float* gate, const float* up, int64_t n, float alpha, float limit,
                         float* y);
  // y[i] = function(a[i * a_step], b[i * b_step]); steps are 0 or 1. By FloatBinary.
  void (*binary[kNumFloatBinaries])(const float* a, int64_t a_step, const float* b, int64_t b_step,
                                    int64_t n, float* y);
  // y = exp(x - max(x)) / sum, n > 0.
  void (*softmax)(const float* x, int64_t n, float* y);
  // y[rows, cols] = a[rows, inner] * b[inner, cols], sums from the first to the last of inner. y overlaps nothing.
  void (*matmul)(const float* a, const float* b, int64_t rows, int64_t inner, int64_t cols, float* y);
  // y[i] = sum over j < count, in order, of weights[j] * rows[j][i]; 0 where count is 0. A null row is zeros.
  void (*weighted_sum)(const float* const* rows, const float* weights, int64_t count, int64_t n,
                       float* y);
  // n > 0.
  Likeliest (*likeliest)(const float* x, int64_t n);
  // y[i] = exp((x[i] - peak) * scale) for i < n, and sums[j] the sum of y[j * kPowersPart] and those after it, as far
  // as the next. Nothing of x is NaN or above peak, which is finite.
  void (*powers)(const float* x, int64_t n, float peak, float scale, float* y, double* sums);
};

}  // namespace qeff

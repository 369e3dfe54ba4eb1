// binary: functions of two elements, with broadcasting over the inner axes.
#include <cmath>
#include <type_traits>

#include "ops/elements.h"
#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"
#include "ops/walk.h"

namespace qeff {

namespace {

// The order of the choices in prepare_binary; the first six are those of FloatBinary.
enum Function { kAdd, kSub, kMul, kDiv, kMax, kMin, kPow, kMod, kFmod, kEq, kNe, kLt, kLe, kGt, kGe, kAnd, kOr, kXor };

bool gives_truth(int function) { return function >= kEq; }

float arithmetic(int function, float a, float b) {
  switch (function) {
    case kPow: return std::pow(a, b);
    case kFmod: return std::fmod(a, b);
    case kMod: {
      const float rest = std::fmod(a, b);
      if (b == 0) return rest;  // NaN
      if (rest == 0) return std::copysign(0.0f, b);
      return (b < 0) != (rest < 0) ? rest + b : rest;
    }
    default: return 0;  // FloatBinary has the others
  }
}

// Whole numbers wrap around; a division by zero gives 0.
template <typename T>
T whole_power(T base, T exponent) {
  using U = std::make_unsigned_t<T>;
  if (exponent < 0) {  // cut to a whole number
    if (base == 1) return 1;
    if (base == -1) return static_cast<T>(exponent % 2 == 0 ? 1 : -1);
    return 0;
  }
  U result = 1, factor = static_cast<U>(base);
  for (U left = static_cast<U>(exponent); left > 0; left >>= 1) {
    if (left & 1) result *= factor;
    factor *= factor;
  }
  return static_cast<T>(result);
}

template <typename T>
  requires std::is_integral_v<T>
T arithmetic(int function, T a, T b) {
  using U = std::make_unsigned_t<T>;
  const U ua = static_cast<U>(a), ub = static_cast<U>(b);
  switch (function) {
    case kAdd: return static_cast<T>(ua + ub);
    case kSub: return static_cast<T>(ua - ub);
    case kMul: return static_cast<T>(ua * ub);
    case kDiv: return b == 0 ? 0 : (b == -1 ? static_cast<T>(U{0} - ua) : a / b);
    case kMax: return a > b ? a : b;
    case kMin: return a < b ? a : b;
    case kPow: return whole_power(a, b);
    default: break;
  }
  const T rest = b == 0 || b == -1 ? T{0} : a % b;
  if (function == kFmod) return rest;
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}

template <typename T>
bool compare(int function, T a, T b) {
  switch (function) {
    case kEq: return a == b;
    case kNe: return a != b;
    case kLt: return a < b;
    case kLe: return a <= b;
    case kGt: return a > b;
    default: return a >= b;
  }
}

bool logic(int function, bool a, bool b) {
  switch (function) {
    case kAnd: return a && b;
    case kOr: return a || b;
    case kEq: return a == b;
    default: return a != b;  // ne and xor
  }
}

// Emits the walk with result(a, b) for each pair of elements.
template <typename T, typename R, typename Result>
void emit_pairs(OpContext& ctx, ValueKind kind, const Walk& walk, Result result) {
  const int a = ctx.input(0), b = ctx.input(1), y = ctx.output(0);
  emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
    const T *from_a = step.entry<T>(a, entry), *from_b = step.entry<T>(b, entry);
    R* to = step.entry<R>(y, entry);
    const int last = walk.num_axes - 1;
    const int64_t a_step = walk.stride[0][last], b_step = walk.stride[1][last];
    for_each_run<2>(walk, [&](int64_t place, const int64_t* offset) {
      for (int64_t i = 0; i < walk.size[last]; ++i) {
        to[place + i] = static_cast<R>(result(from_a[offset[0] + i * a_step], from_b[offset[1] + i * b_step]));
      }
    });
  });
}

void emit_float(OpContext& ctx, ValueKind kind, const Walk& walk, int function) {
  const int a = ctx.input(0), b = ctx.input(1), y = ctx.output(0);
  const auto run = ctx.kernels().light->binary[function];
  if (walk.num_axes == 1) {  // a single run
    const int64_t a_step = walk.stride[0][0], b_step = walk.stride[1][0];
    return emit_features(ctx, kind, walk.total, [=](const Step& step, int64_t entry, int64_t first, int64_t last) {
      run(step.entry<float>(a, entry) + first * a_step, a_step, step.entry<float>(b, entry) + first * b_step, b_step,
          last - first, step.entry<float>(y, entry) + first);
    });
  }
  emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
    const float *from_a = step.entry<float>(a, entry), *from_b = step.entry<float>(b, entry);
    float* to = step.entry<float>(y, entry);
    const int last = walk.num_axes - 1;
    for_each_run<2>(walk, [&](int64_t place, const int64_t* offset) {
      run(from_a + offset[0], walk.stride[0][last], from_b + offset[1], walk.stride[1][last],
          walk.size[last], to + place);
    });
  });
}

}  // namespace

void prepare_binary(OpContext& ctx) {
  const ValueKind kind = check_signature(
      ctx, {{{"a", kAnything, From::kEither}, {"b", kAnything, From::kEither}}, {"function"}});
  const Value &a = ctx.value(ctx.input(0)), &b = ctx.value(ctx.input(1));
  const DType dtype = a.dtype;
  ctx.check(b.dtype == dtype, "combines different element types");
  const int function =
      choice_attr(ctx, "function", {"add", "sub", "mul", "div", "max", "min", "pow", "mod", "fmod", "eq", "ne", "lt",
                                    "le", "gt", "ge", "and", "or", "xor"});
  const bool is_truth = dtype == DType::kBool, is_equality = function == kEq || function == kNe;
  ctx.check(is_equality || is_truth == (function >= kAnd), "applies its function to a wrong element type");
  const Shape shape = broadcast_shape(
      ctx, {{a.shape, a.kind == ValueKind::kWeight}, {b.shape, b.kind == ValueKind::kWeight}});
  check_output(ctx, 0, shape, gives_truth(function) ? DType::kBool : dtype);
  const Walk walk =
      make_walk(ctx, shape, {broadcast_strides(ctx, a.shape, shape), broadcast_strides(ctx, b.shape, shape)});
  if (is_truth) {
    return emit_pairs<Truth, uint8_t>(ctx, kind, walk, [function](Truth u, Truth v) {
      return logic(function, is_true(u), is_true(v));
    });
  }
  if (dtype == DType::kF32 && function < kNumFloatBinaries) return emit_float(ctx, kind, walk, function);
  with_number(dtype, [&](auto sample) {
    using T = decltype(sample);
    if (gives_truth(function)) {
      emit_pairs<T, uint8_t>(ctx, kind, walk, [function](T u, T v) { return compare<T>(function, u, v); });
    } else {
      emit_pairs<T, T>(ctx, kind, walk, [function](T u, T v) { return arithmetic(function, u, v); });
    }
  });
}

}  // namespace qeff

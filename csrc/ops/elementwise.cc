// unary, gated, where and cast: element by element.
#include <cstring>
#include <limits>
#include <type_traits>

#include "ops/elements.h"
#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"
#include "ops/walk.h"

namespace qeff {

namespace {

// A whole number's function, without overflow: the most negative number is its own negative.
enum class WholeFunction { kAbs, kNeg, kSign };

template <typename T>
T whole_unary(WholeFunction function, T x) {
  using U = std::make_unsigned_t<T>;
  const T negative = static_cast<T>(U{0} - static_cast<U>(x));
  switch (function) {
    case WholeFunction::kAbs: return x < 0 ? negative : x;
    case WholeFunction::kNeg: return negative;
    case WholeFunction::kSign: return static_cast<T>(x > 0 ? 1 : (x < 0 ? -1 : 0));
  }
  return x;
}

void prepare_whole_unary(OpContext& ctx, ValueKind kind) {
  const auto function = static_cast<WholeFunction>(choice_attr(ctx, "function", {"abs", "neg", "sign"}));
  const int x = ctx.input(0), y = ctx.output(0);
  const int64_t n = ctx.value(x).size;
  with_whole(ctx.value(x).dtype, [&](auto sample) {
    using T = decltype(sample);
    emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
      const T* from = step.entry<T>(x, entry);
      T* to = step.entry<T>(y, entry);
      for (int64_t i = 0; i < n; ++i) to[i] = whole_unary<T>(function, from[i]);
    });
  });
}

// Floats are cut to whole numbers and end at the largest; NaN gives 0.
template <typename To, typename From_>
To cast_element(From_ x) {
  if constexpr (std::is_same_v<To, Truth>) {
    return Truth{static_cast<uint8_t>(is_true(x))};
  } else if constexpr (std::is_same_v<From_, Truth>) {
    return static_cast<To>(x.byte != 0 ? 1 : 0);
  } else if constexpr (std::is_same_v<From_, float> && !std::is_same_v<To, float>) {
    if (x != x) return 0;
    // Both limits as floats: the lower is exact, the upper one past the largest number.
    const float low = static_cast<float>(std::numeric_limits<To>::min());
    if (x <= low) return std::numeric_limits<To>::min();
    if (x >= -low) return std::numeric_limits<To>::max();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace

void prepare_unary(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kAnything}}, {"function"}});
  const int x = ctx.input(0), y = ctx.output(0);
  const Value& value = ctx.value(x);
  check_output(ctx, 0, value.shape, value.dtype);
  const int64_t n = value.size;
  if (value.dtype == DType::kBool) {
    choice_attr(ctx, "function", {"not"});
    emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
      const uint8_t* from = step.entry<uint8_t>(x, entry);
      uint8_t* to = step.entry<uint8_t>(y, entry);
      for (int64_t i = 0; i < n; ++i) to[i] = from[i] == 0 ? 1 : 0;
    });
  } else if (value.dtype != DType::kF32) {
    prepare_whole_unary(ctx, kind);
  } else {
    const int function = choice_attr(  // in the order of UnaryFunction
        ctx, "function",
        {"gelu", "gelu_tanh",  "relu",  "relu2", "sigmoid", "silu", "tanh",     "abs",
         "ceil", "cos",        "erf",   "exp",   "floor",   "log",  "neg",      "reciprocal",
         "round", "rsqrt",     "sign",  "sin",   "softplus", "sqrt", "square"});
    const auto run = ctx.kernels().light->unary[function];
    emit_features(ctx, kind, n, [=](const Step& step, int64_t entry, int64_t first, int64_t last) {
      run(step.entry<float>(x, entry) + first, last - first, step.entry<float>(y, entry) + first);
    });
  }
}

void prepare_gated(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"gate", kFloats}, {"up", kFloats}}, {"activation"}});
  const int gate = ctx.input(0), up = ctx.input(1), y = ctx.output(0);
  const Value& value = ctx.value(up);
  ctx.check(ctx.value(gate).shape == value.shape, "has a gate of another shape than what it gates");
  check_output(ctx, 0, value.shape, DType::kF32);
  const auto run = ctx.kernels().light->gated[activation_attr(ctx)];
  emit_features(ctx, kind, value.size, [=](const Step& step, int64_t entry, int64_t first, int64_t last) {
    run(step.entry<float>(gate, entry) + first, step.entry<float>(up, entry) + first, last - first,
        step.entry<float>(y, entry) + first);
  });
}

int activation_attr(const OpContext& ctx) {
  return choice_attr(ctx, "activation", {"gelu", "gelu_tanh", "relu", "relu2", "sigmoid", "silu", "tanh"});
}

void prepare_where(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"condition", kTruths, From::kEither},
                                                {"a", kAnything, From::kEither},
                                                {"b", kAnything, From::kEither}},
                                               {}});
  std::vector<BroadcastInput> inputs;
  for (int i = 0; i < 3; ++i) {
    const Value& value = ctx.value(ctx.input(i));
    inputs.push_back({value.shape, value.kind == ValueKind::kWeight});
  }
  const DType dtype = ctx.value(ctx.input(1)).dtype;
  ctx.check(ctx.value(ctx.input(2)).dtype == dtype, "chooses between different element types");
  const Shape shape = broadcast_shape(ctx, inputs);
  check_output(ctx, 0, shape, dtype);
  std::vector<Shape> strides;
  for (const BroadcastInput& input : inputs) strides.push_back(broadcast_strides(ctx, input.shape, shape));
  const Walk walk = make_walk(ctx, shape, strides);
  const int condition = ctx.input(0), a = ctx.input(1), b = ctx.input(2), y = ctx.output(0);
  with_element(dtype, [&](auto sample) {
    using T = decltype(sample);
    emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
      const uint8_t* is_a = step.entry<uint8_t>(condition, entry);
      const T *from_a = step.entry<T>(a, entry), *from_b = step.entry<T>(b, entry);
      T* to = step.entry<T>(y, entry);
      const int last = walk.num_axes - 1;
      for_each_run<3>(walk, [&](int64_t place, const int64_t* offset) {
        for (int64_t i = 0; i < walk.size[last]; ++i) {
          const bool chosen = is_a[offset[0] + i * walk.stride[0][last]] != 0;
          to[place + i] = chosen ? from_a[offset[1] + i * walk.stride[1][last]]
                                 : from_b[offset[2] + i * walk.stride[2][last]];
        }
      });
    });
  });
}

void prepare_cast(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kAnything}}, {"to"}});
  const int x = ctx.input(0), y = ctx.output(0);
  const Value& value = ctx.value(x);
  constexpr DType kTypes[] = {DType::kF32, DType::kI64, DType::kI32, DType::kBool};
  const DType to = kTypes[choice_attr(ctx, "to", {"f32", "i64", "i32", "bool"})];
  check_output(ctx, 0, value.shape, to);
  if (to == value.dtype && to != DType::kBool) return ctx.alias(y, x, 0);
  const int64_t n = value.size;
  with_element(value.dtype, [&](auto from_sample) {
    with_element(to, [&](auto to_sample) {
      using A = decltype(from_sample);
      using B = decltype(to_sample);
      emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
        const A* source = step.entry<A>(x, entry);
        B* target = step.entry<B>(y, entry);
        for (int64_t i = 0; i < n; ++i) target[i] = cast_element<B, A>(source[i]);
      });
    });
  });
}

}  // namespace qeff

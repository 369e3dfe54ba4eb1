// reduce, cumsum, softmax and reduce_span: many elements into one, or each with those before it.
#include <memory>
#include <type_traits>

#include "ops/elements.h"
#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"
#include "ops/walk.h"

namespace qeff {

namespace {

enum Function { kMax, kMean, kMin, kProd, kSum };

// What sums run in: floats in double, whole numbers modulo their size.
template <typename T>
struct Running {
  using Type = std::make_unsigned_t<T>;
};
template <>
struct Running<float> {
  using Type = double;
};

// NaN wins over every number.
template <typename T>
T better_of(bool is_max, T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    if (a != a) return a;
    if (b != b) return b;
  }
  return (is_max ? a >= b : a <= b) ? a : b;
}

// One result: the elements of x that `walk` visits. The walk is not empty.
template <typename T>
T reduce_one(int function, const Walk& walk, const T* x) {
  using R = typename Running<T>::Type;
  const int last = walk.num_axes - 1;
  const int64_t n = walk.size[last], step = walk.stride[0][last];
  if (function == kMax || function == kMin) {
    T best = x[0];
    for_each_run<1>(walk, [&](int64_t, const int64_t* offset) {
      for (int64_t i = 0; i < n; ++i) best = better_of<T>(function == kMax, best, x[offset[0] + i * step]);
    });
    return best;
  }
  R running = function == kProd ? R{1} : R{0};
  for_each_run<1>(walk, [&](int64_t, const int64_t* offset) {
    for (int64_t i = 0; i < n; ++i) {
      const R element = static_cast<R>(x[offset[0] + i * step]);
      running = function == kProd ? running * element : running + element;
    }
  });
  if (function == kMean) running /= static_cast<R>(walk.total);
  return static_cast<T>(running);
}

// The largest or smallest over the tokens of a span; each of them gets it.
template <typename T>
class SpanStage final : public Stage {
 public:
  SpanStage(int x, int y, int64_t size, bool is_max)
      : Stage(Over::kItems), x_(x), y_(y), size_(size), is_max_(is_max) {}

  int64_t num_items(const Step& step) const override { return step.num_spans; }
  void run(const Step& step, int64_t first, int64_t last, Scratch) const override {
    for (int64_t span = first; span < last; ++span) {
      const int64_t start = step.spans[span].start, stop = step.spans[span].stop;
      for (int64_t i = 0; i < size_ && start < stop; ++i) {
        T best = step.entry<T>(x_, start)[i];
        for (int64_t token = start + 1; token < stop; ++token) {
          best = better_of<T>(is_max_, best, step.entry<T>(x_, token)[i]);
        }
        for (int64_t token = start; token < stop; ++token) step.entry<T>(y_, token)[i] = best;
      }
    }
  }

 private:
  const int x_, y_;
  const int64_t size_;
  const bool is_max_;
};

}  // namespace

void prepare_reduce(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kNumbers}}, {"function", "axes", "keepdims"}});
  const int x = ctx.input(0), y = ctx.output(0);
  const Value& value = ctx.value(x);
  const int function = choice_attr(ctx, "function", {"max", "mean", "min", "prod", "sum"});
  ctx.check(function != kMean || value.dtype == DType::kF32, "takes the mean of whole numbers");
  const bool keepdims = ctx.bool_attr("keepdims");
  std::vector<bool> is_reduced(value.shape.size(), false);
  const std::vector<int64_t> axes = ctx.ints_attr("axes");
  ctx.check(!axes.empty(), "reduces no axes");
  for (const int64_t axis : axes) {
    ctx.check(axis >= 0 && axis < static_cast<int64_t>(value.shape.size()) && !is_reduced[axis],
              "reduces an axis that is not there, or one twice");
    ctx.check(value.shape[axis] > 0, "reduces an empty axis");
    is_reduced[axis] = true;
  }
  const Shape dense = dense_strides(ctx, value.shape);
  Shape result, kept, kept_strides, reduced, reduced_strides;
  for (size_t i = 0; i < value.shape.size(); ++i) {
    if (!is_reduced[i] || keepdims) result.push_back(is_reduced[i] ? 1 : value.shape[i]);
    (is_reduced[i] ? reduced : kept).push_back(value.shape[i]);
    (is_reduced[i] ? reduced_strides : kept_strides).push_back(dense[i]);
  }
  check_output(ctx, 0, result, value.dtype);
  const Walk outer = make_walk(ctx, kept, {kept_strides}), inner = make_walk(ctx, reduced, {reduced_strides});
  with_number(value.dtype, [&](auto sample) {
    using T = decltype(sample);
    emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
      const T* from = step.entry<T>(x, entry);
      T* to = step.entry<T>(y, entry);
      const int last = outer.num_axes - 1;
      for_each_run<1>(outer, [&](int64_t place, const int64_t* offset) {
        for (int64_t i = 0; i < outer.size[last]; ++i) {
          to[place + i] = reduce_one<T>(function, inner, from + offset[0] + i * outer.stride[0][last]);
        }
      });
    });
  });
}

void prepare_cumsum(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kNumbers}}, {"axis"}});
  const int x = ctx.input(0), y = ctx.output(0);
  const Value& value = ctx.value(x);
  const AxisSplit split = split_at(ctx, value.shape, axis_attr(ctx, "axis", value.shape));
  check_output(ctx, 0, value.shape, value.dtype);
  if (value.size == 0) return emit_entries(ctx, kind, [](const Step&, int64_t, std::byte*) {});
  with_number(value.dtype, [&](auto sample) {
    using T = decltype(sample);
    emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
      const T* from = step.entry<T>(x, entry);
      T* to = step.entry<T>(y, entry);
      for (int64_t outer = 0; outer < split.outer; ++outer) {
        for (int64_t inner = 0; inner < split.inner; ++inner) {
          typename Running<T>::Type running{};
          for (int64_t i = 0; i < split.size; ++i) {
            const int64_t at = (outer * split.size + i) * split.inner + inner;
            running += static_cast<decltype(running)>(from[at]);
            to[at] = static_cast<T>(running);
          }
        }
      }
    });
  });
}

void prepare_softmax(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kFloats}}, {"axis"}});
  const int x = ctx.input(0), y = ctx.output(0);
  const Value& value = ctx.value(x);
  const AxisSplit split = split_at(ctx, value.shape, axis_attr(ctx, "axis", value.shape));
  check_output(ctx, 0, value.shape, DType::kF32);
  const auto softmax = ctx.kernels().light->softmax;
  if (value.size == 0) return emit_entries(ctx, kind, [](const Step&, int64_t, std::byte*) {});
  if (split.inner == 1) {
    return emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
      for (int64_t outer = 0; outer < split.outer; ++outer) {
        const int64_t at = outer * split.size;
        softmax(step.entry<float>(x, entry) + at, split.size, step.entry<float>(y, entry) + at);
      }
    });
  }
  const auto strided = [=](const Step& step, int64_t entry, std::byte* scratch) {
    float* line = reinterpret_cast<float*>(scratch);
    for (int64_t outer = 0; outer < split.outer; ++outer) {
      for (int64_t inner = 0; inner < split.inner; ++inner) {
        const int64_t at = outer * split.size * split.inner + inner;
        const float* from = step.entry<float>(x, entry) + at;
        float* to = step.entry<float>(y, entry) + at;
        for (int64_t i = 0; i < split.size; ++i) line[i] = from[i * split.inner];
        softmax(line, split.size, line);
        for (int64_t i = 0; i < split.size; ++i) to[i * split.inner] = line[i];
      }
    }
  };
  emit_entries(ctx, kind, strided, static_cast<size_t>(split.size) * sizeof(float));
}

void prepare_reduce_span(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kNumbers}}, {"function"}});
  ctx.check(kind == ValueKind::kToken, "takes a row value");
  const int x = ctx.input(0), y = ctx.output(0);
  const Value& value = ctx.value(x);
  check_output(ctx, 0, value.shape, value.dtype);
  const bool is_max = choice_attr(ctx, "function", {"max", "min"}) == 0;
  with_number(value.dtype, [&](auto sample) {
    using T = decltype(sample);
    ctx.emit(std::make_unique<SpanStage<T>>(x, y, value.size, is_max), {x}, {y});
  });
}

}  // namespace qeff

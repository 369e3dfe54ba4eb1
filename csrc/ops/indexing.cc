// gather, scatter and gather_rows: elements found by whole numbers. A number outside the axis ends the
// step with an error; until then zeros stand in its place.
#include <cstring>
#include <type_traits>

#include "ops/elements.h"
#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"

namespace qeff {

void prepare_gather(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kAnything}, {"index", kWholes}}, {"axis"}});
  const int x = ctx.input(0), index = ctx.input(1), y = ctx.output(0), op = ctx.index();
  const Value &value = ctx.value(x), &indices = ctx.value(index);
  const int axis = axis_attr(ctx, "axis", value.shape);
  Shape expected = value.shape;
  ctx.check(indices.shape.size() == expected.size(), "picks by an index with another number of axes");
  expected[axis] = indices.shape[axis];
  ctx.check(indices.shape == expected, "picks by an index whose other axes differ");
  check_output(ctx, 0, indices.shape, value.dtype);
  const AxisSplit from = split_at(ctx, value.shape, axis), to = split_at(ctx, indices.shape, axis);
  const bool is_wide = indices.dtype == DType::kI64;
  with_element(value.dtype, [&](auto sample) {
    using T = decltype(sample);
    emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
      const WholeEntry places(step, index, entry, is_wide);
      const T* source = step.entry<T>(x, entry);
      T* target = step.entry<T>(y, entry);
      int64_t at = 0;
      for (int64_t outer = 0; outer < to.outer; ++outer) {
        for (int64_t i = 0; i < to.size; ++i) {
          for (int64_t inner = 0; inner < to.inner; ++inner, ++at) {
            const int64_t place = places[at];
            if (place < 0 || place >= from.size) {
              step.fail(op, place);
              target[at] = T{};
            } else {
              target[at] = source[(outer * from.size + place) * from.inner + inner];
            }
          }
        }
      }
    });
  });
}

namespace {

template <typename T>
T add_elements(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else if constexpr (std::is_same_v<T, float>) {
    return a + b;
  } else {
    return b;  // truth values are never added
  }
}

// Where the elements of the index lie in x, besides the axis itself.
struct ScatterPlan {
  Shape shape;    // of the index
  Shape strides;  // of x
  int axis;
  int64_t axis_size;  // of x
  int64_t total;      // of the index
};

template <typename T>
void scatter(const ScatterPlan& plan, const WholeEntry& places, const T* update, bool is_add, T* y,
             const Step& step, int op) {
  const int rank = static_cast<int>(plan.shape.size());
  for (int64_t at = 0; at < plan.total; ++at) {
    const int64_t place = places[at];
    if (place < 0 || place >= plan.axis_size) {
      step.fail(op, place);
      continue;
    }
    int64_t offset = place * plan.strides[plan.axis];
    int64_t rest = at;
    for (int i = rank - 1; i >= 0; --i) {
      if (i != plan.axis) offset += rest % plan.shape[i] * plan.strides[i];
      rest /= plan.shape[i];
    }
    y[offset] = is_add ? add_elements(y[offset], update[at]) : update[at];
  }
}

}  // namespace

void prepare_scatter(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kAnything, From::kEither},
                                                {"index", kWholes},
                                                {"update", kAnything, From::kEither}},
                                               {"axis", "function"}});
  const int x = ctx.input(0), index = ctx.input(1), update = ctx.input(2), y = ctx.output(0), op = ctx.index();
  const Value &value = ctx.value(x), &indices = ctx.value(index), &updates = ctx.value(update);
  const int axis = axis_attr(ctx, "axis", value.shape);
  ctx.check(indices.shape.size() == value.shape.size(), "puts at an index with another number of axes");
  for (int i = 0; i < static_cast<int>(value.shape.size()); ++i) {
    ctx.check(i == axis || indices.shape[i] <= value.shape[i], "puts at an index that is larger than x");
  }
  ctx.check(updates.shape == indices.shape, "puts an update of another shape than its index");
  ctx.check(updates.dtype == value.dtype, "puts another element type into x");
  check_output(ctx, 0, value.shape, value.dtype);
  const bool is_add = choice_attr(ctx, "function", {"set", "add"}) == 1;
  ctx.check(!is_add || value.dtype != DType::kBool, "adds truth values");
  ScatterPlan plan{indices.shape, Shape(value.shape.size(), 1), axis, value.shape[axis], indices.size};
  for (int i = static_cast<int>(value.shape.size()) - 2; i >= 0; --i) {
    plan.strides[i] = product_within(ctx, {plan.strides[i + 1], value.shape[i + 1]}, int64_t{1} << 40);
  }
  const bool is_wide = indices.dtype == DType::kI64;
  const int64_t n = value.size;
  with_element(value.dtype, [&](auto sample) {
    using T = decltype(sample);
    emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
      T* target = step.entry<T>(y, entry);
      if (n > 0) std::memcpy(target, step.entry<T>(x, entry), static_cast<size_t>(n) * sizeof(T));
      scatter<T>(plan, WholeEntry(step, index, entry, is_wide), step.entry<T>(update, entry), is_add, target, step, op);
    });
  });
}

void prepare_gather_rows(OpContext& ctx) {
  const ValueKind kind = check_inputs(ctx, {{{"x", kAnything}}, {}});
  const int x = ctx.input(0), y = ctx.output(0);
  const Value& value = ctx.value(x);
  ctx.check(kind == ValueKind::kToken, "takes a row value");
  ctx.check(ctx.value(y).kind == ValueKind::kRow, "gives no row value");
  check_output(ctx, 0, value.shape, value.dtype);
  const size_t bytes = static_cast<size_t>(value.size * dtype_bytes(value.dtype));
  emit_entries(ctx, ValueKind::kRow, [=](const Step& step, int64_t row, std::byte*) {
    if (bytes > 0) std::memcpy(step.entry<std::byte>(y, row), step.entry<std::byte>(x, step.row_tokens[row]), bytes);
  });
}

}  // namespace qeff

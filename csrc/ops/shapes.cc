// reshape, slice, transpose, expand and concat: elements in other places. Where nothing has to move the
// result is a part of the input's memory.
#include <algorithm>
#include <cstring>

#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"
#include "ops/walk.h"

namespace qeff {

namespace {

void emit_copy(OpContext& ctx, ValueKind kind, const Walk& walk, int64_t shift) {
  const int x = ctx.input(0), y = ctx.output(0);
  const int64_t bytes = dtype_bytes(ctx.value(x).dtype);
  emit_entries(ctx, kind, [=](const Step& step, int64_t i, std::byte*) {
    copy_walk(walk, step.entry<std::byte>(x, i) + shift * bytes, bytes, step.entry<std::byte>(y, i));
  });
}

// Whether the walk is over neighbouring elements.
bool is_dense(const Walk& walk) { return walk.num_axes == 1 && walk.stride[0][0] == 1; }

}  // namespace

void prepare_reshape(OpContext& ctx) {
  check_signature(ctx, {{{"x", kAnything}}, {"shape"}});
  const Value& x = ctx.value(ctx.input(0));
  check_output(ctx, 0, ctx.ints_attr("shape"), x.dtype);
  ctx.check(ctx.value(ctx.output(0)).size == x.size, "gives another number of elements than it takes");
  ctx.alias(ctx.output(0), ctx.input(0), 0);
}

void prepare_slice(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kAnything}}, {"axis", "start", "stop", "step"}});
  const Value& x = ctx.value(ctx.input(0));
  const int axis = axis_attr(ctx, "axis", x.shape);
  const int64_t stop = int_attr_in(ctx, "stop", 0, x.shape[axis]);
  const int64_t start = int_attr_in(ctx, "start", 0, stop);
  // A step beyond the axis takes one element, as the largest step that counts does.
  const int64_t step = std::min(int_attr_in(ctx, "step", 1, INT64_MAX), std::max<int64_t>(x.shape[axis], 1));
  Shape shape = x.shape;
  shape[axis] = (stop - start) / step + ((stop - start) % step != 0 ? 1 : 0);
  check_output(ctx, 0, shape, x.dtype);
  Shape strides = dense_strides(ctx, x.shape);
  const int64_t shift = product_within(ctx, {start, strides[axis]}, std::max<int64_t>(x.size, 1));
  strides[axis] *= step;
  const Walk walk = make_walk(ctx, shape, {strides});
  if (walk.total > 0 && is_dense(walk)) {
    ctx.alias(ctx.output(0), ctx.input(0), shift * dtype_bytes(x.dtype));
  } else {
    emit_copy(ctx, kind, walk, shift);
  }
}

void prepare_transpose(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kAnything}}, {"perm"}});
  const Value& x = ctx.value(ctx.input(0));
  const std::vector<int64_t> perm = ctx.ints_attr("perm");
  const int64_t rank = static_cast<int64_t>(x.shape.size());
  std::vector<bool> is_taken(x.shape.size(), false);
  ctx.check(perm.size() == x.shape.size(), "orders another number of axes than x has");
  const Shape dense = dense_strides(ctx, x.shape);
  Shape shape, strides;
  for (const int64_t axis : perm) {
    ctx.check(axis >= 0 && axis < rank && !is_taken[axis], "has an order of axes that is none");
    is_taken[axis] = true;
    shape.push_back(x.shape[axis]);
    strides.push_back(dense[axis]);
  }
  check_output(ctx, 0, shape, x.dtype);
  const Walk walk = make_walk(ctx, shape, {strides});
  if (walk.total > 0 && is_dense(walk)) {
    ctx.alias(ctx.output(0), ctx.input(0), 0);
  } else {
    emit_copy(ctx, kind, walk, 0);
  }
}

void prepare_expand(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kAnything}}, {"shape"}});
  const Value& x = ctx.value(ctx.input(0));
  const Shape shape = ctx.ints_attr("shape");
  ctx.check(shape.size() == x.shape.size(), "expands to another number of axes");
  for (size_t i = 0; i < shape.size(); ++i) {
    ctx.check(x.shape[i] == 1 || x.shape[i] == shape[i], "expands an axis that has not the size 1");
  }
  check_output(ctx, 0, shape, x.dtype);
  if (shape == x.shape) {
    ctx.alias(ctx.output(0), ctx.input(0), 0);
  } else {
    emit_copy(ctx, kind, make_walk(ctx, shape, {broadcast_strides(ctx, x.shape, shape)}), 0);
  }
}

void prepare_concat(OpContext& ctx) {
  const ValueKind kind =
      check_signature(ctx, {{{"x", kAnything, From::kEither}}, {"axis"}, 1, /*is_variadic=*/true});
  const Value& first = ctx.value(ctx.input(0));
  const int axis = axis_attr(ctx, "axis", first.shape);
  Shape shape = first.shape;
  shape[axis] = 0;
  const AxisSplit split = split_at(ctx, first.shape, axis);
  const int64_t bytes = dtype_bytes(first.dtype);
  struct Part {
    int id;
    int64_t bytes;  // of one run: neighbouring elements of the input and of the result
  };
  std::vector<Part> parts;
  for (int i = 0; i < ctx.num_inputs(); ++i) {
    const Value& part = ctx.value(ctx.input(i));
    ctx.check(part.dtype == first.dtype, "joins different element types");
    Shape rest = part.shape;
    ctx.check(rest.size() == shape.size(), "joins values with different numbers of axes");
    const int64_t size = rest[axis];
    rest[axis] = first.shape[axis];
    ctx.check(rest == first.shape, "joins values whose other axes differ");
    shape[axis] += size;  // no overflow: a few values of at most 2^40
    parts.push_back({ctx.input(i), product_within(ctx, {size, split.inner}, int64_t{1} << 40) * bytes});
  }
  check_output(ctx, 0, shape, first.dtype);
  const int y = ctx.output(0);
  emit_entries(ctx, kind, [=, outer = split.outer](const Step& step, int64_t entry, std::byte*) {
    std::byte* to = step.entry<std::byte>(y, entry);
    for (int64_t row = 0; row < outer; ++row) {
      for (const Part& part : parts) {
        if (part.bytes == 0) continue;
        std::memcpy(to, step.entry<std::byte>(part.id, entry) + row * part.bytes, static_cast<size_t>(part.bytes));
        to += part.bytes;
      }
    }
  });
}

}  // namespace qeff

// matmul: products of stacks of matrices; leading axes broadcast.
#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"
#include "ops/walk.h"

namespace qeff {

void prepare_matmul(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"a", kFloats}, {"b", kFloats, From::kEither}}, {}});
  const int a = ctx.input(0), b = ctx.input(1), y = ctx.output(0);
  const Value &left = ctx.value(a), &right = ctx.value(b);
  ctx.check(left.shape.size() >= 2 && right.shape.size() >= 2, "multiplies what are no matrices");
  const auto stack_of = [](const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); };
  const Shape left_stack = stack_of(left.shape), right_stack = stack_of(right.shape);
  const int64_t rows = left.shape[left_stack.size()], inner = left.shape.back();
  const int64_t cols = right.shape.back();
  ctx.check(right.shape[right_stack.size()] == inner, "multiplies matrices that do not fit");
  const Shape stack =
      broadcast_shape(ctx, {{left_stack, false}, {right_stack, right.kind == ValueKind::kWeight}});
  Shape shape = stack;
  shape.insert(shape.end(), {rows, cols});
  check_output(ctx, 0, shape, DType::kF32);
  const Walk walk = make_walk(  // over whole matrices
      ctx, stack, {broadcast_strides(ctx, left_stack, stack), broadcast_strides(ctx, right_stack, stack)});
  const auto matmul = ctx.kernels().light->matmul;
  const bool is_empty = ctx.value(y).size == 0;
  emit_entries(ctx, kind, [=](const Step& step, int64_t entry, std::byte*) {
    if (is_empty) return;
    const float *from_a = step.entry<float>(a, entry), *from_b = step.entry<float>(b, entry);
    float* to = step.entry<float>(y, entry);
    const int last = walk.num_axes - 1;
    for_each_run<2>(walk, [&](int64_t place, const int64_t* offset) {
      for (int64_t i = 0; i < walk.size[last]; ++i) {
        const int64_t at_a = offset[0] + i * walk.stride[0][last];
        const int64_t at_b = offset[1] + i * walk.stride[1][last];
        matmul(from_a + at_a * rows * inner, from_b + at_b * inner * cols, rows, inner, cols,
               to + (place + i) * rows * cols);
      }
    });
  });
}

}  // namespace qeff

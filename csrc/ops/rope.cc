// rope: rotary positions on the last inner axis.
#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"

namespace qeff {

void prepare_rope(OpContext& ctx) {
  const ValueKind kind =
      check_signature(ctx, {{{"x", kFloats}, {"cos", kFloats}, {"sin", kFloats}}, {"interleaved"}});
  const int x = ctx.input(0), cos = ctx.input(1), sin = ctx.input(2), y = ctx.output(0);
  const Value& value = ctx.value(x);
  const Shape& angles = ctx.value(cos).shape;
  ctx.check(angles.size() == 1 && ctx.value(sin).shape == angles, "has no vectors of cosines and sines of one size");
  ctx.check(!value.shape.empty() && angles[0] <= value.shape.back() / 2, "rotates more features than x has");
  check_output(ctx, 0, value.shape, DType::kF32);
  const bool interleaved = ctx.bool_attr("interleaved");
  const int64_t size = value.shape.back(), half = angles[0];
  const int64_t groups = size == 0 ? 0 : value.size / size;
  const auto rope = ctx.kernels().light->rope;
  emit_entries(ctx, kind, [=](const Step& step, int64_t i, std::byte*) {
    rope(step.entry<float>(x, i), step.entry<float>(cos, i), step.entry<float>(sin, i), groups, size, half,
         interleaved, step.entry<float>(y, i));
  });
}

}  // namespace qeff

// norm: rms and layer normalisation over the last inner axis.
#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"

namespace qeff {

void prepare_norm(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kFloats},
                                                {"weight", kFloats, From::kWeight, true},
                                                {"bias", kFloats, From::kWeight, true}},
                                               {"function", "eps"}});
  const int x = ctx.input(0), y = ctx.output(0);
  const Value& value = ctx.value(x);
  ctx.check(!value.shape.empty() && value.shape.back() > 0, "has nothing to normalise over");
  check_output(ctx, 0, value.shape, DType::kF32);
  NormArgs args{};
  for (const int i : {1, 2}) {
    if (!ctx.has_input(i)) continue;
    const int id = ctx.input(i);
    ctx.check(ctx.value(id).shape == Shape{value.shape.back()}, "has a weight or bias of another size than x");
    (i == 1 ? args.weight : args.bias) = reinterpret_cast<const float*>(ctx.weight_data(id));
  }
  args.size = value.shape.back();
  args.groups = value.size / args.size;
  args.eps = finite_attr(ctx, "eps");
  ctx.check(args.eps >= 0, "has an eps below zero");
  const bool is_layer = choice_attr(ctx, "function", {"rms", "layer"}) == 1;
  const auto norm = is_layer ? ctx.kernels().light->layer_norm : ctx.kernels().light->rms_norm;
  emit_entries(ctx, kind, [=](const Step& step, int64_t i, std::byte*) {
    norm(args, step.entry<float>(x, i), step.entry<float>(y, i));
  });
}

}  // namespace qeff

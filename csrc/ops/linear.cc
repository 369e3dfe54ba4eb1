// linear: x times a matrix in panels, plus a bias.
#include "ops/signature.h"
#include "program/op_context.h"

namespace qeff {

namespace {

class LinearStage final : public Stage {
 public:
  struct Parts {
    int x, y;
    OpContext::Rounded rounded;
    LinearArgs args;  // all that does not change from step to step
    int64_t groups;   // products an entry
    int64_t panel_bytes;
    bool is_row;
  };

  LinearStage(const LinearKernels& kernels, const Parts& parts)
      : Stage(Over::kItems), kernels_(kernels), parts_(parts) {}

  int64_t num_items(const Step& step) const override {
    return count(step) == 0 ? 0 : (parts_.args.rows + kPanelRows - 1) / kPanelRows;
  }
  int64_t item_cost(const Step&) const override { return parts_.panel_bytes; }
  // Every call brings the tokens into the kernel's form first.
  int64_t calls_per_thread(const Step&) const override { return 2; }
  size_t scratch_bytes(const Step&) const override { return kLinearScratchBytes; }

  void run(const Step& step, int64_t first, int64_t last, Scratch scratch) const override {
    LinearArgs args = parts_.args;
    const int64_t entries = count(step);
    if (parts_.groups == 1) {
      args.num_tokens = entries;
      args.x = step.entry<float>(parts_.x, 0);
      args.x_stride = step.stride<float>(parts_.x);
      if (takes_int8(args.format)) {
        args.rounded = {step.entry<int8_t>(parts_.rounded.q, 0), step.entry<float>(parts_.rounded.scale, 0),
                        step.entry<int32_t>(parts_.rounded.sum, 0), step.stride<int8_t>(parts_.rounded.q),
                        step.stride<float>(parts_.rounded.scale)};
      }
      args.y = step.entry<float>(parts_.y, 0);
      args.y_stride = step.stride<float>(parts_.y);
      kernels_.linear(args, first, last, scratch.data);
      return;
    }
    args.num_tokens = parts_.groups;  // the groups of one entry lie one after the other
    args.x_stride = args.cols;
    args.y_stride = args.rows;
    for (int64_t i = 0; i < entries; ++i) {
      args.x = step.entry<float>(parts_.x, i);
      if (takes_int8(args.format)) {
        args.rounded = {step.entry<int8_t>(parts_.rounded.q, i), step.entry<float>(parts_.rounded.scale, i),
                        step.entry<int32_t>(parts_.rounded.sum, i), kBlockLen * parts_.rounded.num_blocks,
                        parts_.rounded.num_blocks};
      }
      args.y = step.entry<float>(parts_.y, i);
      kernels_.linear(args, first, last, scratch.data);
    }
  }

 private:
  int64_t count(const Step& step) const { return parts_.is_row ? step.num_rows : step.num_tokens; }

  const LinearKernels& kernels_;
  const Parts parts_;
};

}  // namespace

void prepare_linear(OpContext& ctx) {
  const ValueKind kind = check_signature(
      ctx,
      {{{"x", kFloats}, {"weight", kMatrices, From::kWeight}, {"bias", kFloats, From::kWeight, true}}, {"transposed"}});
  LinearStage::Parts parts{};
  parts.x = ctx.input(0);
  parts.y = ctx.output(0);
  const int weight_id = ctx.input(1);
  const Value& x = ctx.value(parts.x);
  const Value& weight = ctx.value(weight_id);
  ctx.check(!ctx.bool_attr("transposed"), "has a matrix the wrong way round");
  ctx.check(weight.shape.size() == 2, "needs a matrix of two axes");
  ctx.check(!x.shape.empty() && x.shape.back() == weight.shape[1], "multiplies shapes that do not fit");
  Shape expected = x.shape;
  expected.back() = weight.shape[0];
  check_output(ctx, 0, expected, DType::kF32);
  parts.groups = x.size / weight.shape[1];
  parts.is_row = kind == ValueKind::kRow;
  parts.args.format = weight.format;
  parts.args.panels = reinterpret_cast<const uint8_t*>(ctx.weight_data(weight_id));
  parts.args.rows = weight.shape[0];
  parts.args.cols = weight.shape[1];
  parts.panel_bytes = panel_bytes(weight.format, weight.shape[1]);
  if (ctx.has_input(2)) {
    ctx.check(ctx.value(ctx.input(2)).shape == Shape{weight.shape[0]}, "has a bias of another shape");
    parts.args.bias = reinterpret_cast<const float*>(ctx.weight_data(ctx.input(2)));
  }
  std::vector<int> reads{parts.x};
  if (takes_int8(weight.format)) {
    parts.rounded = ctx.rounded(parts.x, parts.groups, weight.shape[1]);
    reads.insert(reads.end(), {parts.rounded.q, parts.rounded.scale, parts.rounded.sum});
  }
  ctx.emit(std::make_unique<LinearStage>(*ctx.kernels().linear, parts), std::move(reads), {parts.y});
}

}  // namespace qeff

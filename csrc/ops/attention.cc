// attention: write keys and values into the cache, then attend over what the cache holds. Keys and values are written
// for every token; queries are those of every token, or those of the rows alone.
#include "ops/signature.h"
#include "program/op_context.h"

namespace qeff {

namespace {

struct AttentionParts {
  int q, k, v, out;  // k, v: -1 when the cache is shared
  int cache;
  bool is_by_row;  // queries and results are rows
  AttentionArgs args;  // all that does not change from step to step
};

AttentionArgs arguments(const AttentionParts& parts, const Step& step) {
  AttentionArgs args = parts.args;
  args.q = step.entry<float>(parts.q, 0);
  args.q_stride = step.stride<float>(parts.q);
  if (parts.k >= 0) {
    args.k = step.entry<float>(parts.k, 0);
    args.k_stride = step.stride<float>(parts.k);
    args.v = step.entry<float>(parts.v, 0);
    args.v_stride = step.stride<float>(parts.v);
  }
  args.out = step.entry<float>(parts.out, 0);
  args.out_stride = step.stride<float>(parts.out);
  args.cache = step.caches[parts.cache];
  args.positions = step.positions;
  args.parents = step.parents;
  args.spans = parts.is_by_row ? step.row_spans : step.spans;
  args.num_spans = parts.is_by_row ? step.num_row_spans : step.num_spans;
  args.num_threads = step.num_threads;
  return args;
}

// Writes token by token, so it can follow the work that makes the keys without a pause.
class CacheWriteStage final : public Stage {
 public:
  CacheWriteStage(const AttentionKernels& kernels, const AttentionParts& parts)
      : Stage(Over::kTokens), kernels_(kernels), parts_(parts) {}

  void run(const Step& step, int64_t first, int64_t last, Scratch) const override {
    AttentionArgs args = arguments(parts_, step);
    args.spans = step.spans;
    args.num_spans = step.num_spans;
    for (int64_t s = 0; s < step.num_spans; ++s) {
      const int64_t from = first > step.spans[s].start ? first : step.spans[s].start;
      const int64_t to = last < step.spans[s].stop ? last : step.spans[s].stop;
      if (from < to) kernels_.write(args, s, from, to);
    }
  }

 private:
  const AttentionKernels& kernels_;
  const AttentionParts parts_;
};

class AttendStage final : public Stage {
 public:
  AttendStage(const AttentionKernels& kernels, const AttentionParts& parts)
      : Stage(Over::kItems), kernels_(kernels), parts_(parts) {}

  int64_t num_items(const Step& step) const override { return kernels_.num_items(arguments(parts_, step)); }
  // The kernel makes as many items as there should be calls.
  int64_t calls_per_thread(const Step&) const override { return 1 << 20; }
  size_t scratch_bytes(const Step& step) const override { return kernels_.scratch_bytes(arguments(parts_, step)); }
  void run(const Step& step, int64_t first, int64_t last, Scratch scratch) const override {
    kernels_.attend(arguments(parts_, step), first, last, scratch.data);
  }

 private:
  const AttentionKernels& kernels_;
  const AttentionParts parts_;
};

// One number for each head, or nothing.
const float* head_weights(OpContext& ctx, int input, int64_t num_heads) {
  if (!ctx.has_input(input)) return nullptr;
  ctx.check(ctx.value(ctx.input(input)).shape == Shape{num_heads}, "needs one number for each head");
  return reinterpret_cast<const float*>(ctx.weight_data(ctx.input(input)));
}

}  // namespace

void prepare_attention(OpContext& ctx) {
  const Signature signature{{{"q", kFloats},
                             {"k", kFloats, From::kEntry, true},
                             {"v", kFloats, From::kEntry, true},
                             {"sinks", kFloats, From::kWeight, true},
                             {"slopes", kFloats, From::kWeight, true}},
                            {"cache", "value_dim", "scale", "softcap", "window", "chunk", "by_row"},
                            /*num_outputs=*/1,
                            /*is_variadic=*/false,
                            /*is_led=*/true};
  const ValueKind kind = check_signature(ctx, signature);
  AttentionParts parts{};
  parts.is_by_row = kind == ValueKind::kRow;
  const Json* by_row = ctx.op().attrs.find("by_row");  // programs without it have queries of every token
  ctx.check((by_row != nullptr && by_row->as_bool()) == parts.is_by_row,
            "has queries of another kind than by_row says");
  parts.q = ctx.input(0);
  parts.k = ctx.has_input(1) ? ctx.input(1) : -1;
  parts.v = ctx.has_input(2) ? ctx.input(2) : -1;
  parts.out = ctx.output(0);
  parts.cache = static_cast<int>(int_attr_in(ctx, "cache", 0, static_cast<int64_t>(ctx.program().caches.size()) - 1));
  const CacheLayer& layer = ctx.program().caches[static_cast<size_t>(parts.cache)];
  const Shape& q = ctx.value(parts.q).shape;
  ctx.check(q.size() == 2 && q[0] > 0 && q[0] <= 1 << 16, "needs queries of heads and features");
  const int64_t num_heads = q[0];
  ctx.check(num_heads % layer.num_kv_heads == 0, "has heads that do not share the cache evenly");
  ctx.check(q[1] == layer.key_dim, "has queries of another size than the cache's keys");
  ctx.check(ctx.int_attr("value_dim") == layer.value_dim, "has values of another size than the cache's");
  check_output(ctx, 0, {num_heads, layer.value_dim}, DType::kF32);
  ctx.check((parts.k >= 0) == (parts.v >= 0), "has keys without values");
  if (parts.k >= 0) {
    const bool is_for_all =
        ctx.value(parts.k).kind == ValueKind::kToken && ctx.value(parts.v).kind == ValueKind::kToken;
    ctx.check(is_for_all, "writes keys and values of rows, not of tokens");
    ctx.check(ctx.value(parts.k).shape == Shape{layer.num_kv_heads, layer.key_dim}, "has keys of another shape");
    ctx.check(ctx.value(parts.v).shape == Shape{layer.num_kv_heads, layer.value_dim}, "has values of another shape");
  }
  AttentionArgs& args = parts.args;
  args.num_heads = num_heads;
  args.scale = finite_attr(ctx, "scale");
  args.softcap = finite_attr(ctx, "softcap");
  ctx.check(args.softcap >= 0, "has a negative softcap");
  args.window = int_attr_in(ctx, "window", 0, 1 << 30);
  args.chunk = int_attr_in(ctx, "chunk", 0, 1 << 30);
  args.sinks = head_weights(ctx, 3, num_heads);
  args.slopes = head_weights(ctx, 4, num_heads);
  const AttentionKernels& kernels = *ctx.kernels().attention;
  if (parts.k >= 0) {
    ctx.emit_cache(std::make_unique<CacheWriteStage>(kernels, parts), {parts.k, parts.v}, {}, parts.cache, true);
  }
  ctx.emit_cache(std::make_unique<AttendStage>(kernels, parts), {parts.q}, {parts.out}, parts.cache, false);
}

}  // namespace qeff

// moe: each token through the experts that were chosen for it.
//
// Tokens are grouped by expert, so that an expert's weights are read once for all of them. A choice (token,
// slot) has a place in the grouped order; hidden features and results lie by place. The temporaries hold k
// places for each token and are used as one array over the whole step.
#include <cstring>
#include <memory>

#include "ops/elements.h"
#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"

namespace qeff {

namespace {

constexpr int64_t kMostExperts = 1 << 20;
constexpr int64_t kMostFeatures = 1 << 26;  // of all choices of one token
// Weights of one work item: enough to be worth handing out, few enough that threads end together.
constexpr int64_t kItemBytes = 128 * 1024;

// How a step's choices are grouped; a view of the temporaries.
struct Groups {
  int32_t* token;   // [places] the token of each place
  int64_t* place;   // [tokens * k] the place of each choice, -1 for an expert that does not exist
  int64_t* expert;  // [groups]
  int64_t* begin;   // [groups + 1] the first place of each group
  int64_t* count;   // the number of groups
};

// What all stages of one op share.
struct Moe {
  Stage::Over over;
  int x, index, weight, y, op;
  bool is_wide_index;
  int64_t k, num_experts;
  int tokens, table;                  // temporaries of Groups
  int hidden, active, result;         // [places, up_rows], [places, down_cols], [places, down_rows]
  OpContext::Rounded rounded_x;       // where up takes int8
  OpContext::Rounded rounded_active;  // where down takes int8; rows by place
  enum class Gate : uint8_t { kHalf, kInterleaved, kNone } gate;
  bool is_clamped;
  int activation;
  float alpha, limit;

  int64_t num_entries(const Step& step) const {
    return over == Stage::Over::kRows ? step.num_rows : step.num_tokens;
  }
  int64_t num_choices(const Step& step) const { return num_entries(step) * k; }
  // At most so many groups can there be.
  int64_t most_groups(const Step& step) const {
    return num_choices(step) < num_experts ? num_choices(step) : num_experts;
  }
  Groups groups(const Step& step) const {
    const int64_t choices = num_choices(step);
    int64_t* table_data = step.entry<int64_t>(table, 0);
    return {step.entry<int32_t>(tokens, 0), table_data, table_data + choices, table_data + 2 * choices,
            table_data + 3 * choices + 1};
  }
};

// Numbers of the table for each token: places, experts and begins of k groups, one more begin, the count.
int64_t table_bytes(int64_t k) { return (3 * k + 2) * static_cast<int64_t>(sizeof(int64_t)); }

// Sorts the choices by expert; among the choices of one expert the order is that of the tokens.
class GroupStage final : public Stage {
 public:
  explicit GroupStage(const Moe& moe) : Stage(Over::kItems), moe_(moe) {}

  int64_t num_items(const Step& step) const override { return moe_.num_entries(step) > 0 ? 1 : 0; }
  size_t scratch_bytes(const Step&) const override {
    return static_cast<size_t>(moe_.num_experts) * sizeof(int64_t);
  }
  void run(const Step& step, int64_t first, int64_t last, Scratch scratch) const override {
    if (first >= last) return;
    int64_t* next = reinterpret_cast<int64_t*>(scratch.data);  // by expert: how many, then the next place
    if (moe_.num_experts > 0) std::memset(next, 0, scratch_bytes(step));
    const Groups groups = moe_.groups(step);
    const int64_t entries = moe_.num_entries(step);
    for_each_choice(step, entries, [&](int64_t, int64_t, int64_t expert) { ++next[expert]; });
    int64_t count = 0, place = 0;
    groups.begin[0] = 0;
    for (int64_t expert = 0; expert < moe_.num_experts; ++expert) {
      if (next[expert] == 0) continue;
      groups.expert[count] = expert;
      const int64_t size = next[expert];
      next[expert] = place;
      place += size;
      groups.begin[++count] = place;
    }
    *groups.count = count;
    for (int64_t choice = 0; choice < entries * moe_.k; ++choice) groups.place[choice] = -1;
    for_each_choice(step, entries, [&](int64_t token, int64_t slot, int64_t expert) {
      const int64_t at = next[expert]++;
      groups.token[at] = static_cast<int32_t>(token);
      groups.place[token * moe_.k + slot] = at;
    });
  }

 private:
  template <typename Use>
  void for_each_choice(const Step& step, int64_t entries, Use use) const {
    for (int64_t token = 0; token < entries; ++token) {
      const WholeEntry chosen(step, moe_.index, token, moe_.is_wide_index);
      for (int64_t slot = 0; slot < moe_.k; ++slot) {
        const int64_t expert = chosen[slot];
        if (expert < 0 || expert >= moe_.num_experts) {
          step.fail(moe_.op, expert);
        } else {
          use(token, slot, expert);
        }
      }
    }
  }

  const Moe moe_;
};

// One product for each group: the first from the tokens' own features, the second from the active ones.
class ProductStage final : public Stage {
 public:
  struct Matrix {
    WeightFormat format;
    const uint8_t* panels;
    const float* bias;  // [experts, rows] or null
    int64_t rows, cols, num_panels, panel_bytes;
  };
  ProductStage(const Moe& moe, const Matrix& matrix, bool is_up, const LinearKernels& kernels)
      : Stage(Over::kItems), moe_(moe), matrix_(matrix), is_up_(is_up), kernels_(kernels) {
    const int64_t fitting = matrix.panel_bytes > 0 ? kItemBytes / matrix.panel_bytes : matrix.num_panels;
    chunk_ = fitting > 1 ? fitting : 1;
    num_chunks_ = (matrix.num_panels + chunk_ - 1) / chunk_;
  }

  int64_t num_items(const Step& step) const override { return moe_.most_groups(step) * num_chunks_; }
  // An item is as much as a call should have; how many of them are empty is not known beforehand.
  int64_t item_cost(const Step&) const override { return chunk_ * matrix_.panel_bytes; }
  int64_t calls_per_thread(const Step&) const override { return 1 << 20; }
  size_t scratch_bytes(const Step&) const override { return kLinearScratchBytes; }
  void run(const Step& step, int64_t first, int64_t last, Scratch scratch) const override {
    const Groups groups = moe_.groups(step);
    for (int64_t item = first; item < last; ++item) {
      const int64_t group = item / num_chunks_;
      if (group >= *groups.count) return;
      const int64_t panel = item % num_chunks_ * chunk_;
      const int64_t stop = panel + chunk_ < matrix_.num_panels ? panel + chunk_ : matrix_.num_panels;
      kernels_.linear(args_for(step, groups, group), panel, stop, scratch.data);
    }
  }

 private:
  LinearArgs args_for(const Step& step, const Groups& groups, int64_t group) const {
    const int64_t expert = groups.expert[group], begin = groups.begin[group];
    LinearArgs args{};
    args.format = matrix_.format;
    args.panels = matrix_.panels + expert * matrix_.num_panels * matrix_.panel_bytes;
    args.rows = matrix_.rows;
    args.cols = matrix_.cols;
    args.num_tokens = groups.begin[group + 1] - begin;
    args.bias = matrix_.bias == nullptr ? nullptr : matrix_.bias + expert * matrix_.rows;
    args.y = step.entry<float>(is_up_ ? moe_.hidden : moe_.result, 0) + begin * matrix_.rows;
    args.y_stride = matrix_.rows;
    const bool is_rounded = takes_int8(matrix_.format);
    if (is_up_) {
      args.token_index = groups.token + begin;
      args.x = step.entry<float>(moe_.x, 0);
      args.x_stride = step.stride<float>(moe_.x);
      if (is_rounded) {
        const OpContext::Rounded& r = moe_.rounded_x;
        args.rounded = {step.entry<int8_t>(r.q, 0), step.entry<float>(r.scale, 0), step.entry<int32_t>(r.sum, 0),
                        step.stride<int8_t>(r.q), step.stride<float>(r.scale)};
      }
    } else {
      args.x = step.entry<float>(moe_.active, 0) + begin * matrix_.cols;
      args.x_stride = matrix_.cols;
      if (is_rounded) {
        const OpContext::Rounded& r = moe_.rounded_active;
        args.rounded = {step.entry<int8_t>(r.q, 0) + begin * r.num_blocks * kBlockLen,
                        step.entry<float>(r.scale, 0) + begin * r.num_blocks,
                        step.entry<int32_t>(r.sum, 0) + begin * r.num_blocks, r.num_blocks * kBlockLen, r.num_blocks};
      }
    }
    return args;
  }

  const Moe moe_;
  const Matrix matrix_;
  const bool is_up_;
  const LinearKernels& kernels_;
  int64_t chunk_, num_chunks_;
};

// The activation of each place, rounded where the second product wants it.
class ActivateStage final : public Stage {
 public:
  ActivateStage(const Moe& moe, int64_t hidden_size, int64_t size, bool rounds, const Kernels& kernels)
      : Stage(Over::kItems), moe_(moe), hidden_size_(hidden_size), size_(size), rounds_(rounds), kernels_(kernels) {}

  int64_t num_items(const Step& step) const override { return moe_.num_choices(step); }
  size_t scratch_bytes(const Step&) const override {
    return moe_.gate == Moe::Gate::kInterleaved ? static_cast<size_t>(hidden_size_) * sizeof(float) : 0;
  }
  void run(const Step& step, int64_t first, int64_t last, Scratch scratch) const override {
    const Groups groups = moe_.groups(step);
    const int64_t used = groups.begin[*groups.count];
    if (last > used) last = used;
    for (int64_t place = first; place < last; ++place) {
      const float* hidden = step.entry<float>(moe_.hidden, 0) + place * hidden_size_;
      float* active = step.entry<float>(moe_.active, 0) + place * size_;
      activate(hidden, active, reinterpret_cast<float*>(scratch.data));
    }
    if (rounds_ && first < last) {
      const OpContext::Rounded& r = moe_.rounded_active;
      const RoundedActivations out{step.entry<int8_t>(r.q, 0), step.entry<float>(r.scale, 0),
                                   step.entry<int32_t>(r.sum, 0), r.num_blocks * kBlockLen, r.num_blocks};
      kernels_.linear->round_activations(step.entry<float>(moe_.active, 0), size_, size_, first, last, out);
    }
  }

 private:
  void activate(const float* hidden, float* active, float* scratch) const {
    const LightKernels& light = *kernels_.light;
    if (moe_.gate == Moe::Gate::kNone) return light.unary[moe_.activation](hidden, size_, active);
    const float *gate = hidden, *up = hidden + size_;
    if (moe_.gate == Moe::Gate::kInterleaved) {
      for (int64_t i = 0; i < size_; ++i) {
        scratch[i] = hidden[2 * i];
        scratch[size_ + i] = hidden[2 * i + 1];
      }
      gate = scratch;
      up = scratch + size_;
    }
    if (moe_.is_clamped) {
      light.swiglu_clamped(gate, up, size_, moe_.alpha, moe_.limit, active);
    } else {
      light.gated[moe_.activation](gate, up, size_, active);
    }
  }

  const Moe moe_;
  const int64_t hidden_size_, size_;
  const bool rounds_;
  const Kernels& kernels_;
};

// The matrix of one of the two weights, checked.
ProductStage::Matrix read_matrix(const OpContext& ctx, int input, int bias_input) {
  const Value& value = ctx.value(ctx.input(input));
  ctx.check(value.shape.size() == 3, "has expert weights that are no stack of matrices");
  ctx.check(value.panel_rows == value.shape[1] && value.panel_cols == value.shape[2],
            "has expert weights that an embed reads as one table");
  ProductStage::Matrix matrix{};
  matrix.format = value.format;
  matrix.panels = reinterpret_cast<const uint8_t*>(ctx.weight_data(ctx.input(input)));
  matrix.rows = value.shape[1];
  matrix.cols = value.shape[2];
  matrix.num_panels = (matrix.rows + kPanelRows - 1) / kPanelRows;
  matrix.panel_bytes = panel_bytes(value.format, matrix.cols);
  ctx.check(matrix.panel_bytes >= 0, "has expert weights that their format cannot hold");
  if (ctx.has_input(bias_input)) {
    const Value& bias = ctx.value(ctx.input(bias_input));
    ctx.check(bias.shape == Shape{value.shape[0], matrix.rows}, "has a bias that does not fit its experts");
    matrix.bias = reinterpret_cast<const float*>(ctx.weight_data(ctx.input(bias_input)));
  }
  return matrix;
}

void read_attributes(const OpContext& ctx, Moe* moe) {
  ctx.check(!ctx.bool_attr("transposed"), "has transposed experts, which packed weights never are");
  moe->gate = static_cast<Moe::Gate>(choice_attr(ctx, "gate", {"half", "interleaved", "none"}));
  moe->is_clamped = ctx.string_attr("activation") == "swiglu_clamped";
  moe->activation = moe->is_clamped ? 0 : activation_attr(ctx);
  ctx.check(!moe->is_clamped || moe->gate != Moe::Gate::kNone, "has the activation swiglu_clamped without a gate");
  moe->alpha = finite_attr(ctx, "alpha");
  moe->limit = finite_attr(ctx, "limit");
  ctx.check(moe->limit >= 0, "has a limit below zero");
}

// Σ weight · result over the slots of each token, from first to last.
void emit_sum(OpContext& ctx, ValueKind kind, const Moe& moe, int64_t size) {
  const auto sum = ctx.kernels().light->weighted_sum;
  const auto run = [=](const Step& step, int64_t entry, std::byte* scratch) {
    const float** rows = reinterpret_cast<const float**>(scratch);
    const float* result = step.entry<float>(moe.result, 0);
    const int64_t* place = moe.groups(step).place + entry * moe.k;
    for (int64_t slot = 0; slot < moe.k; ++slot) {
      rows[slot] = place[slot] < 0 ? nullptr : result + place[slot] * size;
    }
    sum(rows, step.entry<float>(moe.weight, entry), moe.k, size, step.entry<float>(moe.y, entry));
  };
  const size_t scratch = static_cast<size_t>(moe.k) * sizeof(float*);
  ctx.emit(std::make_unique<EntryStage<decltype(run)>>(kind, scratch, run),
           {moe.result, moe.table, moe.weight}, {moe.y});
}

}  // namespace

void prepare_moe(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kFloats},
                                                {"index", kWholes},
                                                {"weight", kFloats},
                                                {"up", kMatrices, From::kWeight},
                                                {"down", kMatrices, From::kWeight},
                                                {"up_bias", kFloats, From::kWeight, true},
                                                {"down_bias", kFloats, From::kWeight, true}},
                                               {"transposed", "gate", "activation", "alpha", "limit"}});
  Moe moe{};
  moe.over = kind == ValueKind::kRow ? Stage::Over::kRows : Stage::Over::kTokens;
  moe.x = ctx.input(0), moe.index = ctx.input(1), moe.weight = ctx.input(2), moe.y = ctx.output(0);
  moe.op = ctx.index();
  read_attributes(ctx, &moe);
  const auto up = read_matrix(ctx, 3, 5), down = read_matrix(ctx, 4, 6);
  const Value &x = ctx.value(moe.x), &index = ctx.value(moe.index);
  ctx.check(x.shape == Shape{up.cols}, "has experts for another number of features");
  ctx.check(index.shape.size() == 1 && ctx.value(moe.weight).shape == index.shape, "has no weight for each index");
  moe.is_wide_index = index.dtype == DType::kI64;
  moe.k = index.shape[0];
  moe.num_experts = ctx.value(ctx.input(3)).shape[0];
  ctx.check(ctx.value(ctx.input(4)).shape[0] == moe.num_experts, "has another number of experts up than down");
  ctx.check(moe.num_experts <= kMostExperts, "has too many experts");
  const bool has_gate = moe.gate != Moe::Gate::kNone;
  ctx.check(up.rows % (has_gate ? 2 : 1) == 0 && up.rows / (has_gate ? 2 : 1) == down.cols,
            "has experts whose two matrices do not fit");
  check_output(ctx, 0, {down.rows}, DType::kF32);

  const auto features = [&](int64_t n) { return product_within(ctx, {moe.k, n, 4}, 4 * kMostFeatures); };
  moe.tokens = ctx.make_temporary(kind, features(1));
  moe.table = ctx.make_temporary(kind, table_bytes(moe.k));
  moe.hidden = ctx.make_temporary(kind, features(up.rows));
  moe.active = ctx.make_temporary(kind, features(down.cols));
  moe.result = ctx.make_temporary(kind, features(down.rows));
  std::vector<int> up_reads = {moe.x, moe.tokens, moe.table}, active_writes = {moe.active};
  if (takes_int8(up.format)) {
    moe.rounded_x = ctx.rounded(moe.x, 1, up.cols);
    up_reads.insert(up_reads.end(), {moe.rounded_x.q, moe.rounded_x.scale, moe.rounded_x.sum});
  }
  const bool rounds = takes_int8(down.format);
  if (rounds) {
    const int64_t blocks = (down.cols + kBlockLen - 1) / kBlockLen;
    OpContext::Rounded* rounded = &moe.rounded_active;
    *rounded = {ctx.make_temporary(kind, features(blocks * kBlockLen) / 4),
                ctx.make_temporary(kind, features(blocks)), ctx.make_temporary(kind, features(blocks)), blocks};
    active_writes.insert(active_writes.end(), {rounded->q, rounded->scale, rounded->sum});
  }
  std::vector<int> down_reads = active_writes;
  down_reads.push_back(moe.table);
  ctx.emit(std::make_unique<GroupStage>(moe), {moe.index}, {moe.tokens, moe.table});
  ctx.emit(std::make_unique<ProductStage>(moe, up, true, *ctx.kernels().linear), up_reads, {moe.hidden});
  ctx.emit(std::make_unique<ActivateStage>(moe, up.rows, down.cols, rounds, ctx.kernels()), {moe.hidden, moe.table},
           active_writes);
  ctx.emit(std::make_unique<ProductStage>(moe, down, false, *ctx.kernels().linear), down_reads, {moe.result});
  emit_sum(ctx, kind, moe, down.rows);
}

}  // namespace qeff

// A stage that does the same for every token or row, given as a function of one entry.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "program/op_context.h"
#include "program/stage.h"

namespace qeff {

// Run: void(const Step&, int64_t entry, std::byte* scratch). A copy of it lives as long as the stage, is
// constant and runs on several threads at once.
template <typename Run>
class EntryStage final : public Stage {
 public:
  EntryStage(ValueKind kind, size_t scratch, Run run)
      : Stage(kind == ValueKind::kRow ? Over::kRows : Over::kTokens), scratch_(scratch), run_(std::move(run)) {}

  size_t scratch_bytes(const Step&) const override { return scratch_; }
  void run(const Step& step, int64_t first, int64_t last, Scratch scratch) const override {
    for (int64_t entry = first; entry < last; ++entry) run_(step, entry, scratch.data);
  }

 private:
  size_t scratch_;
  Run run_;
};

// The same where each of `count` features of an entry can be worked on alone. Run: void(const Step&, int64_t entry,
// int64_t first, int64_t last feature).
template <typename Run>
class FeatureStage final : public Stage {
 public:
  FeatureStage(ValueKind kind, int64_t count, Run run)
      : Stage(kind == ValueKind::kRow ? Over::kRows : Over::kTokens), count_(count), run_(std::move(run)) {}

  void run(const Step& step, int64_t first, int64_t last, Scratch) const override {
    for (int64_t entry = first; entry < last; ++entry) run_(step, entry, 0, count_);
  }
  Features features() const override { return {count_, 1}; }
  void run_features(const Step& step, int64_t entry, int64_t first, int64_t last) const override {
    run_(step, entry, first, last);
  }

 private:
  int64_t count_;
  Run run_;
};

// Emits a stage for the op's own inputs and outputs.
inline void emit_for_op(OpContext& ctx, std::unique_ptr<Stage> stage) {
  std::vector<int> reads, writes;
  for (int i = 0; i < ctx.num_inputs(); ++i) {
    if (ctx.has_input(i) && ctx.value(ctx.input(i)).kind != ValueKind::kWeight) reads.push_back(ctx.input(i));
  }
  for (int i = 0; i < ctx.num_outputs(); ++i) writes.push_back(ctx.output(i));
  ctx.emit(std::move(stage), std::move(reads), std::move(writes));
}
template <typename Run>
void emit_entries(OpContext& ctx, ValueKind kind, Run run, size_t scratch = 0) {
  emit_for_op(ctx, std::make_unique<EntryStage<Run>>(kind, scratch, std::move(run)));
}
template <typename Run>
void emit_features(OpContext& ctx, ValueKind kind, int64_t count, Run run) {
  emit_for_op(ctx, std::make_unique<FeatureStage<Run>>(kind, count, std::move(run)));
}

}  // namespace qeff

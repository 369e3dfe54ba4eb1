// An opened container that runs steps: constant plan and weights, caches, and the memory of a step.
//
// One thread at a time may call a method. Two executors share nothing but mapped pages.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/light.h"
#include "program/choosing.h"
#include "program/memory.h"
#include "program/plan.h"

namespace qeff {

// One sequence's part of a step, as the caller gives it.
struct SpanInput {
  int64_t start, stop;
  const int32_t* blocks;
  int64_t num_blocks;
};

struct StepInput {
  const int64_t* tokens;
  const int64_t* positions;
  int64_t num_tokens;
  const SpanInput* spans;
  int64_t num_spans;
  const int64_t* rows;
  int64_t num_rows;
  const int32_t* parents;  // or null
  const Choice* choices;   // of each row, or null
};

class Executor {
 public:
  // Throws Error. num_threads 0: one for each physical core. isa empty: the best.
  Executor(const std::string& folder, int num_threads, const std::string& isa);

  // Makes empty caches; what they held is lost.
  void reserve(int64_t num_blocks);
  // Runs a step and writes logits and chosen tokens, as qeff_step says. Checks all of the input first and throws
  // Error(kRequest) without having changed anything; an index found bad on the way (a token outside the table) is
  // reported after the step.
  void step(const StepInput& input, float* logits, int64_t* chosen);
  void copy_block(int64_t from, int64_t to);
  void copy_row(int64_t from, int64_t to);

  const Plan& plan() const { return plan_; }
  const Kernels& kernels() const { return kernels_; }
  int num_threads() const { return pool_.num_threads(); }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t block_bytes() const;  // of all caches together
  int64_t weights_bytes() const { return weights_.total_bytes(); }

  // Nanoseconds spent in each phase since the last call, as seen by the calling thread; only while on.
  void set_profiling(bool is_on);
  std::vector<int64_t> take_profile();

 private:
  void check(const StepInput& input) const;
  void prepare(const StepInput& input, float* logits);
  // Fills spans_ and row_spans_.
  void prepare_spans(const StepInput& input);
  void run_member(int member);
  // Chooses the tokens of rows. Each member looks through slices of rows for the largest logit; when the slices are
  // put together, each draws the tokens of some rows.
  void run_choices(int member);
  void join_slices();
  void run_phase(size_t index, int member);
  void run_chunk(const Phase& phase, int64_t chunk, Scratch scratch) const;
  // Chunks that the items of a phase are cut into; each goes to one thread.
  int64_t num_chunks(const Phase& phase) const;
  // The first phase from `index` on that has work for more than one thread.
  size_t skip_alone(size_t index) const;
  // Runs phases [first, last), which have not.
  void run_alone(size_t first, size_t last, int member);

  const Kernels& kernels_;
  Weights weights_;
  Plan plan_;
  ThreadPool pool_;
  int64_t num_blocks_ = 0;
  AlignedMemory cache_memory_;  // of all layers, one after another
  std::vector<CacheView> caches_;

  // Of the step; allocated when a step is larger than any before it.
  Step step_;
  int64_t token_capacity_ = 0, row_capacity_ = 0;
  AlignedMemory token_arena_, row_arena_;
  std::vector<AlignedMemory> scratch_;  // by member
  std::vector<Placement> placements_;
  std::vector<SpanView> spans_, row_spans_;
  const Choice* choices_ = nullptr;       // of the rows, or null
  int64_t* chosen_ = nullptr;             // their tokens
  AlignedMemory logits_;                  // where the caller does not want all of them
  std::vector<Likeliest> slices_, best_;  // by row, then along the vocabulary; by row
  std::vector<ChoosingMemory> choosing_;  // by member
  // How many chunks of a member's run are taken, and of which phase: the counters need no reset between phases. Each in
  // a line of its own, since most of the time only its member looks at it.
  struct alignas(64) Taken {
    std::atomic<uint64_t> state{0};
    // Takes the next of num_chunks chunks and returns its number, or -1 when all are taken.
    int64_t next(uint32_t phase, int64_t num_chunks);
  };
  std::unique_ptr<Taken[]> taken_;  // by member
  uint32_t step_stamp_ = 0;         // added to a phase's index, so that no number comes back in the next steps
  bool is_profiling_ = false;
  std::vector<int64_t> profile_;
  int64_t alone_ns_ = 0;  // of the last run_alone
};

}  // namespace qeff

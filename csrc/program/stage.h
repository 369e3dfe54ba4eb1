// What the executor runs: stages, and what a stage sees of a step.
//
// A stage is made once when a container is opened and is constant from then on; all state of a step
// is in Step. Stages own nothing that changes, so several threads run one stage at once, each on items
// of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace qeff {

// Where the entries of a value lie in a step: entry i at data + i * stride. Filled by the executor.
struct Placement {
  std::byte* data = nullptr;
  int64_t stride = 0;  // in bytes; 0 for a weight, which is the same for every token
};

// One step. Shared by all threads, read only but for fail().
class Step {
 public:
  int64_t num_tokens = 0;
  int64_t num_rows = 0;
  const int64_t* row_tokens = nullptr;  // [num_rows] the token of each row
  const int64_t* positions = nullptr;   // [num_tokens]
  const int32_t* parents = nullptr;     // [num_tokens] or null
  const SpanView* spans = nullptr;      // all tokens attend
  int64_t num_spans = 0;
  const SpanView* row_spans = nullptr;  // the tokens of the rows attend, and entries are rows
  int64_t num_row_spans = 0;
  int num_threads = 1;  // that share the step
  const Placement* placements = nullptr;  // by value id
  const CacheView* caches = nullptr;      // by cache index

  // Entry `index` (a token or a row) of a value.
  template <typename T>
  T* entry(int value, int64_t index) const {
    const Placement& place = placements[value];
    return reinterpret_cast<T*>(place.data + index * place.stride);
  }
  // Distance between entries in elements of T.
  template <typename T>
  int64_t stride(int value) const {
    return placements[value].stride / static_cast<int64_t>(sizeof(T));
  }
  // Notes that a request asked for something that does not exist (an index outside a table). The
  // step goes on with zeros in its place and then ends with this error. The first caller wins.
  void fail(int op, int64_t number) const {
    int none = -1;
    if (failed_op.compare_exchange_strong(none, op)) failed_number.store(number);
  }

  mutable std::atomic<int> failed_op{-1};
  mutable std::atomic<int64_t> failed_number{0};
};

// Memory of one thread for the time of one call of run, 64-byte aligned.
struct Scratch {
  std::byte* data;
  size_t bytes;
};

class Stage {
 public:
  // kTokens, kRows: items are tokens or rows, and the work on one needs nothing that this stage does for
  // another. kItems: items are what the stage says.
  enum class Over : uint8_t { kTokens, kRows, kItems };

  explicit Stage(Over over) : over_(over) {}
  virtual ~Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;

  Over over() const { return over_; }
  // For kItems: how many items, what each of them costs in whatever unit all stages of its kind share, and into how
  // many calls of run a thread's part should be cut: more even out the threads, fewer have less to set up. Same answers
  // on every call of a step.
  virtual int64_t num_items(const Step&) const { return 0; }
  virtual int64_t item_cost(const Step&) const { return 1; }
  virtual int64_t calls_per_thread(const Step&) const { return 4; }
  // Scratch that run needs, at most.
  virtual size_t scratch_bytes(const Step&) const { return 0; }
  // Runs items [first, last).
  virtual void run(const Step& step, int64_t first, int64_t last, Scratch scratch) const = 0;

  // For kTokens, kRows, where some features of an entry can be worked on alone: how many an entry has, and the
  // multiples that they can be cut at. What is made of them needs, of values with as many features, no others.
  struct Features {
    int64_t count = 0, grain = 1;  // count 0: entries cannot be cut
  };
  virtual Features features() const { return {}; }
  // Runs features [first, last) of an entry; both are multiples of the grain, but for an end at count.
  virtual void run_features(const Step&, int64_t /*entry*/, int64_t /*first*/, int64_t /*last*/) const {}

 private:
  Over over_;
};

}  // namespace qeff

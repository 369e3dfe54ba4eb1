// Attention over a paged cache: what the executor may call.
//
// A cache is cut into blocks of kCacheBlockLen rows. The order of every addition depends on the query's position and on
// the rows that it sees alone, so that a token's result does not depend on the other tokens of the step, on how its
// prompt was cut, on the threads, on the instruction set, or on which blocks hold its rows; but where the cache is in
// fp16, Arm multiplies halves and x86 floats (docs/cpu.md). A token of a tree gives the bits that it would give if its
// ancestors had been decoded one after the other. Rows that a token does not see may hold anything, NaN too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qeff {

enum class CacheFormat : uint8_t { kF32, kF16, kMXINT8 };
inline constexpr int kCacheBlockLen = 32;

// One sequence's part of a step.
struct SpanView {
  int64_t start, stop;    // its tokens
  int64_t first;          // the cache row of its first token = that token's position
  const int32_t* blocks;  // its block table, large enough for row first + (stop - start) - 1
  // All of its tokens attend but the first `before` and the last `behind`, at least one. The query and the result of
  // token t are entry t - shift of q and out. A span may stand in a list several times, with other tokens attending.
  int64_t before = 0, behind = 0, shift = 0;
};

struct CacheView {
  CacheFormat format;
  int64_t num_heads, key_dim, value_dim;
  uint8_t* data;  // block b, head h at data + b * block_stride + h * head_stride
  int64_t block_stride, head_stride;
};

struct AttentionArgs {
  const float* q;  // entry t, head h at q + t * q_stride + h * key_dim
  const float* k;  // null: nothing is written
  const float* v;
  float* out;      // entry t, head h at out + t * out_stride + h * value_dim
  int64_t q_stride, k_stride, v_stride, out_stride;
  int64_t num_heads;  // of queries
  CacheView cache;
  float scale, softcap;  // softcap 0: none
  int64_t window, chunk;  // 0: none
  const float* sinks;   // [num_heads] or null
  const float* slopes;  // [num_heads] or null
  const int64_t* positions;  // of all tokens of the step
  // Index of the parent within the step, -1 for none; null: no tree. The caller has checked that a parent lies
  // in the same span, before its child, and that positions rise by one within a span where there are no parents.
  const int32_t* parents;
  const SpanView* spans;
  int64_t num_spans;
  int64_t num_threads;  // that will share the items; 0 is taken as 1. No result depends on it
};

struct AttentionKernels {
  // Bytes of one block of one head: keys and values together.
  int64_t (*head_bytes)(CacheFormat format, int64_t key_dim, int64_t value_dim);
  // Writes the keys and values of tokens [first, last), numbered as in the step, of span `span` into the cache.
  // May run on any number of threads at once, on different tokens; attend begins when all are written.
  void (*write)(const AttentionArgs& args, int64_t span, int64_t first, int64_t last);
  // Copies what the cache holds of one token: row `from` to row `to`, counted over all blocks.
  void (*copy_row)(const CacheView& cache, int64_t from, int64_t to);
  // Work items of a step, each independent of the others: enough for num_threads, and about alike.
  int64_t (*num_items)(const AttentionArgs& args);
  // Runs items [first, last). scratch: scratch_bytes(args), private to the thread, 64-byte aligned.
  void (*attend)(const AttentionArgs& args, int64_t first, int64_t last, void* scratch);
  size_t (*scratch_bytes)(const AttentionArgs& args);
};

}  // namespace qeff

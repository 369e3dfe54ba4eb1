// Where the sums of a tile come from and go to. Included by the linear kernels alone.
#pragma once

#include "kernels/linear.h"
#include "kernels/unrolled.h"

namespace qeff::QEFF_ISA {

static inline constexpr int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline constexpr int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
static inline constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How a tile begins and ends: columns may come in several stretches, with y holding the sums between them.
struct Edge {
  bool is_first;      // sums begin with zero, not with y
  const float* bias;  // of the panel's 16 rows, added in the last stretch; null before, or where there is none

  // y is where row vector v of a token has its sums.
  inline F32 begin(const float* y, int v) const { return is_first ? zero() : load(y + kLanes * v); }
  inline void end(F32 sum, float* y, int v) const {
    store(y + kLanes * v, bias != nullptr ? sum + load(bias + kLanes * v) : sum);
  }
};

// Gives tiles of one panel 16 floats a token to read and write: y itself, or, for the last panel where rows
// are missing, a copy.
class PanelOutput {
 public:
  PanelOutput(const LinearArgs& args, int64_t panel, bool is_first, bool is_last)
      : y_(args.y + panel * kPanelRows), y_stride_(args.y_stride), edge_{is_first, nullptr} {
    const int64_t left = args.rows - panel * kPanelRows;
    num_rows_ = left < kPanelRows ? static_cast<int>(left) : kPanelRows;
    if (!is_last || args.bias == nullptr) return;
    edge_.bias = args.bias + panel * kPanelRows;
    if (num_rows_ < kPanelRows) {
      for (int r = 0; r < kPanelRows; ++r) bias_[r] = r < num_rows_ ? edge_.bias[r] : 0.0f;
      edge_.bias = bias_;
    }
  }
  PanelOutput(const PanelOutput&) = delete;
  PanelOutput& operator=(const PanelOutput&) = delete;

  const Edge& edge() const { return edge_; }
  // Where num_tokens tokens from `token` on have their sums; room for len.
  inline float* const* open(int64_t token, int num_tokens, int len) {
    for (int t = 0; t < len; ++t) {
      float* y = y_ + (token + t) * y_stride_;
      if (t < num_tokens && num_rows_ == kPanelRows) {
        rows_[t] = y;
        continue;
      }
      const int num_read = t < num_tokens && !edge_.is_first ? num_rows_ : 0;
      for (int r = 0; r < kPanelRows; ++r) copy_[t][r] = r < num_read ? y[r] : 0.0f;
      rows_[t] = copy_[t];
    }
    return rows_;
  }
  // Writes back what open() gave out.
  inline void close(int64_t token, int num_tokens) {
    if (num_rows_ == kPanelRows) return;
    for (int t = 0; t < num_tokens; ++t) {
      for (int r = 0; r < num_rows_; ++r) y_[(token + t) * y_stride_ + r] = copy_[t][r];
    }
  }

 private:
  static constexpr int kMaxTile = kTileTokens > kFloatTileTokens ? kTileTokens : kFloatTileTokens;
  float* y_;
  int64_t y_stride_;
  int num_rows_;
  Edge edge_;
  float* rows_[kMaxTile];
  alignas(64) float copy_[kMaxTile][kPanelRows];
  alignas(64) float bias_[kPanelRows];
};

}  // namespace qeff::QEFF_ISA

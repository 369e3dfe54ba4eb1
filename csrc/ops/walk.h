// A walk over the elements of a result in row-major order, with where the operands' elements lie.
//
// Broadcasting, transposing, slicing and repeating are all walks with other strides. Axes that can be
// joined are joined when the walk is made, so that the innermost run is as long as can be.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/signature.h"

namespace qeff {

inline constexpr int kMaxAxes = 16;
inline constexpr int kMaxOperands = 3;

struct Walk {
  int num_axes = 1;
  int64_t total = 0;  // elements of the result
  int64_t size[kMaxAxes] = {};
  int64_t stride[kMaxOperands][kMaxAxes] = {};  // in elements
};

// strides[o][axis]: the distance of operand o's elements along an axis of the shape.
Walk make_walk(const OpContext& ctx, const Shape& shape, const std::vector<Shape>& strides);
// The strides of a row-major array of this shape.
Shape dense_strides(const OpContext& ctx, const Shape& shape);
// The strides with which an array of `shape` broadcasts to `result`, aligned at the last axis.
Shape broadcast_strides(const OpContext& ctx, const Shape& shape, const Shape& result);

// Calls run(place in the result, offsets of the operands) for each innermost run of walk.size[last] elements.
template <int Operands, typename Run>
inline void for_each_run(const Walk& walk, Run run) {
  if (walk.total == 0) return;
  const int last = walk.num_axes - 1;
  int64_t at[kMaxAxes] = {};
  int64_t offset[Operands] = {};
  for (int64_t place = 0;; place += walk.size[last]) {
    run(place, offset);
    int axis = last - 1;
    for (; axis >= 0; --axis) {
      for (int o = 0; o < Operands; ++o) offset[o] += walk.stride[o][axis];
      if (++at[axis] < walk.size[axis]) break;
      for (int o = 0; o < Operands; ++o) offset[o] -= walk.stride[o][axis] * walk.size[axis];
      at[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// Copies the elements of operand 0, each `bytes` (1, 4 or 8) long, into y in the walk's order.
void copy_walk(const Walk& walk, const std::byte* x, int64_t bytes, std::byte* y);

}  // namespace qeff

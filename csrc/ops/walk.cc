#include "ops/walk.h"

#include <cstring>

namespace qeff {

namespace {

constexpr int64_t kMostElements = int64_t{1} << 40;

template <typename T>
void copy_elements(const Walk& walk, const std::byte* from, std::byte* to) {
  const T* x = reinterpret_cast<const T*>(from);
  T* y = reinterpret_cast<T*>(to);
  const int last = walk.num_axes - 1;
  const int64_t n = walk.size[last], step = walk.stride[0][last];
  for_each_run<1>(walk, [&](int64_t place, const int64_t* offset) {
    if (step == 1) {
      std::memcpy(y + place, x + offset[0], static_cast<size_t>(n) * sizeof(T));
    } else {
      for (int64_t i = 0; i < n; ++i) y[place + i] = x[offset[0] + i * step];
    }
  });
}

}  // namespace

Walk make_walk(const OpContext& ctx, const Shape& shape, const std::vector<Shape>& strides) {
  const int num_operands = static_cast<int>(strides.size());
  Walk walk;
  walk.total = 1;
  for (const int64_t size : shape) walk.total = product_within(ctx, {walk.total, size}, kMostElements);
  if (walk.total == 0) return walk;
  walk.num_axes = 0;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    bool joins = walk.num_axes > 0;
    const int before = walk.num_axes - 1;
    for (int o = 0; o < num_operands && joins; ++o) {
      joins = walk.stride[o][before] == strides[o][axis] * shape[axis];
    }
    if (!joins) ctx.check(walk.num_axes < kMaxAxes, "has too many axes");
    const int at = joins ? before : walk.num_axes++;
    walk.size[at] = (joins ? walk.size[at] : 1) * shape[axis];
    for (int o = 0; o < num_operands; ++o) walk.stride[o][at] = strides[o][axis];
  }
  if (walk.num_axes == 0) {  // one element
    walk.num_axes = 1;
    walk.size[0] = 1;
    for (int o = 0; o < num_operands; ++o) walk.stride[o][0] = 1;
  }
  return walk;
}

Shape dense_strides(const OpContext& ctx, const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (int axis = static_cast<int>(shape.size()) - 2; axis >= 0; --axis) {
    strides[axis] = product_within(ctx, {strides[axis + 1], shape[axis + 1]}, kMostElements);
  }
  return strides;
}

Shape broadcast_strides(const OpContext& ctx, const Shape& shape, const Shape& result) {
  const Shape dense = dense_strides(ctx, shape);
  Shape strides(result.size(), 0);
  const size_t missing = result.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i) strides[missing + i] = shape[i] == 1 ? 0 : dense[i];
  return strides;
}

void copy_walk(const Walk& walk, const std::byte* x, int64_t bytes, std::byte* y) {
  switch (bytes) {
    case 1: return copy_elements<uint8_t>(walk, x, y);
    case 4: return copy_elements<uint32_t>(walk, x, y);
    default: return copy_elements<uint64_t>(walk, x, y);
  }
}

}  // namespace qeff

// topk: the k best along an inner axis, best first; of equals the lower index first, NaN last.
#include <algorithm>

#include "ops/elements.h"
#include "ops/entry_stage.h"
#include "ops/prepare.h"
#include "ops/signature.h"

namespace qeff {

namespace {

// Up to this many are kept sorted while looking through the axis once.
constexpr int64_t kInsertLimit = 64;

template <typename T>
bool is_better(bool largest, T a, T b) {
  if (largest ? a > b : a < b) return true;
  return b != b && a == a;
}

// The places of the k best of x[i * step], i < size, in order, into best[k]; best has room for `size` numbers
// where k is above kInsertLimit.
template <typename T>
void find_best(const T* x, int64_t step, int64_t size, int64_t k, bool largest, int64_t* best) {
  const auto value = [&](int64_t i) { return x[i * step]; };
  if (k > kInsertLimit) {
    for (int64_t i = 0; i < size; ++i) best[i] = i;
    std::partial_sort(best, best + k, best + size, [&](int64_t i, int64_t j) {
      if (is_better<T>(largest, value(i), value(j))) return true;
      return !is_better<T>(largest, value(j), value(i)) && i < j;
    });
    return;
  }
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (count == k && (k == 0 || !is_better<T>(largest, value(i), value(best[k - 1])))) continue;
    int64_t at = count < k ? count++ : k - 1;
    for (; at > 0 && is_better<T>(largest, value(i), value(best[at - 1])); --at) best[at] = best[at - 1];
    best[at] = i;
  }
}

}  // namespace

void prepare_topk(OpContext& ctx) {
  const ValueKind kind = check_signature(ctx, {{{"x", kNumbers}}, {"k", "axis", "largest"}, 2});
  const int x = ctx.input(0), values = ctx.output(0), indices = ctx.output(1);
  const Value& value = ctx.value(x);
  const int axis = axis_attr(ctx, "axis", value.shape);
  const int64_t k = int_attr_in(ctx, "k", 0, value.shape[axis]);
  const bool largest = ctx.bool_attr("largest");
  Shape shape = value.shape;
  shape[axis] = k;
  check_output(ctx, 0, shape, value.dtype);
  check_output(ctx, 1, shape, DType::kI64);
  ctx.check(values != indices, "gives one value twice");
  if (value.size == 0 || k == 0) return emit_entries(ctx, kind, [](const Step&, int64_t, std::byte*) {});
  const AxisSplit split = split_at(ctx, value.shape, axis);
  const size_t room = static_cast<size_t>(k > kInsertLimit ? split.size : k) * sizeof(int64_t);
  with_number(value.dtype, [&](auto sample) {
    using T = decltype(sample);
    const auto run = [=](const Step& step, int64_t entry, std::byte* scratch) {
      int64_t* best = reinterpret_cast<int64_t*>(scratch);
      for (int64_t outer = 0; outer < split.outer; ++outer) {
        for (int64_t inner = 0; inner < split.inner; ++inner) {
          const T* from = step.entry<T>(x, entry) + outer * split.size * split.inner + inner;
          find_best<T>(from, split.inner, split.size, k, largest, best);
          const int64_t to = outer * k * split.inner + inner;
          for (int64_t i = 0; i < k; ++i) {
            step.entry<T>(values, entry)[to + i * split.inner] = from[best[i] * split.inner];
            step.entry<int64_t>(indices, entry)[to + i * split.inner] = best[i];
          }
        }
      }
    };
    emit_entries(ctx, kind, run, room);
  });
}

}  // namespace qeff

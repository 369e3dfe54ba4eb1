// The element types of values as types of the language, for ops that work on several of them.
#pragma once

#include <cstdint>

#include "program/op_context.h"

namespace qeff {

// A bool as it lies in memory. A byte of a file may be anything, so only zero is false.
struct Truth {
  uint8_t byte;
};

template <typename T>
bool is_true(T x) {
  return x != 0;
}
inline bool is_true(Truth x) { return x.byte != 0; }

// Calls use(T{}) with the type of the elements.
template <typename Use>
void with_whole(DType dtype, Use use) {
  if (dtype == DType::kI64) {
    use(int64_t{});
  } else {
    use(int32_t{});
  }
}
template <typename Use>
void with_number(DType dtype, Use use) {
  if (dtype == DType::kF32) {
    use(float{});
  } else {
    with_whole(dtype, use);
  }
}
template <typename Use>
void with_element(DType dtype, Use use) {
  if (dtype == DType::kBool) {
    use(Truth{});
  } else {
    with_number(dtype, use);
  }
}

// The attribute `activation` as a UnaryFunction below kNumActivations.
int activation_attr(const OpContext& ctx);

// An entry of whole numbers of either type, read as int64.
class WholeEntry {
 public:
  WholeEntry(const Step& step, int id, int64_t entry, bool is_wide)
      : wide_(is_wide ? step.entry<int64_t>(id, entry) : nullptr),
        narrow_(is_wide ? nullptr : step.entry<int32_t>(id, entry)) {}
  int64_t operator[](int64_t i) const { return wide_ != nullptr ? wide_[i] : narrow_[i]; }

 private:
  const int64_t* wide_;
  const int32_t* narrow_;
};

}  // namespace qeff

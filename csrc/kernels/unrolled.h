// Loops over registers, which must be gone before a compiler decides what lies in memory.
#pragma once

namespace qeff::QEFF_ISA {

template <int I>
struct Constant {
  constexpr operator int() const { return I; }
};
// Calls body with 0, 1, ... N - 1 as constants.
template <int N, int I = 0, class Body>
[[gnu::always_inline]] static inline void unrolled(const Body& body) {
  if constexpr (I < N) {
    body(Constant<I>{});
    unrolled<N, I + 1>(body);
  }
}
#define QEFF_INLINE_BODY __attribute__((always_inline))

}  // namespace qeff::QEFF_ISA

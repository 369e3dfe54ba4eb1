// How fast a core multiplies int8 numbers when nothing has to be loaded.
#pragma once

#include <cstdint>

namespace qeff {

inline constexpr int kDotPeakChains = 16;

struct PeakKernels {
  // Runs this many rounds of `products` products each; the sum that it returns has no meaning.
  int64_t (*run)(int64_t rounds);
  int products;
};

}  // namespace qeff

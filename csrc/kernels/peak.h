// How fast a core multiplies int8 numbers and floats when nothing has to be loaded.
#pragma once

#include <cstdint>

namespace qeff {

inline constexpr int kPeakChains = 16;

struct PeakKernels {
  // Each runs this many rounds of so many products; the sum that it returns has no meaning.
  int64_t (*run_int8)(int64_t rounds);
  int num_int8;
  int64_t (*run_floats)(int64_t rounds);
  int num_floats;
};

}  // namespace qeff

// What a cache keeps of a number in each of its formats, by definition and in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention.h"

namespace qeff {

inline double as_half(double x) {
  if (x == 0) return x;
  const int exponent = std::max(std::ilogb(x), -14);
  const double unit = std::ldexp(1.0, exponent - 10);
  const double rounded = std::nearbyint(x / unit) * unit;
  return std::fabs(rounded) > 65504 ? std::copysign(HUGE_VAL, x) : rounded;
}

inline void as_mxint8(const float* x, int64_t num, double* out) {
  for (int64_t first = 0; first < num; first += 32) {
    const int64_t last = std::min(num, first + 32);
    double largest = 0;
    bool is_finite = true;
    for (int64_t i = first; i < last; ++i) {
      is_finite = is_finite && std::isfinite(x[i]);
      largest = std::max(largest, std::fabs(static_cast<double>(x[i])));
    }
    const int exponent = largest == 0 ? -127 : std::max(std::ilogb(largest), -127);
    for (int64_t i = first; i < last; ++i) {
      const double element = std::nearbyint(std::ldexp(static_cast<double>(x[i]), 6 - exponent));
      out[i] = is_finite ? std::ldexp(std::min(127.0, std::max(-127.0, element)), exponent - 6) : NAN;
    }
  }
}

inline std::vector<double> stored(CacheFormat format, const float* x, int64_t num) {
  std::vector<double> out(x, x + num);
  if (format == CacheFormat::kF16) {
    for (double& value : out) value = as_half(value);
  }
  if (format == CacheFormat::kMXINT8) as_mxint8(x, num, out.data());
  return out;
}

}  // namespace qeff

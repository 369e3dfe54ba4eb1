// The machine's own limits, measured: what no engine on it can exceed.
#pragma once

namespace qeff {

struct Limits {
  double bytes_per_second;          // read from memory, by all threads together
  double int8_products_per_second;  // multiply-accumulate from registers, best instruction set
  double float_products_per_second;
};

Limits measure_limits(int num_threads);

}  // namespace qeff

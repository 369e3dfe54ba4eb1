// What the formats share whose products take activations as they are.
//
// Such a format is a struct with these members; kernels/linear_float.h is written over them. Columns are taken in
// runs of 32, and the last run of a matrix may be shorter in the file.
//   kFormat        its WeightFormat
//   kRunBytes      bytes of a whole run
//   Run, open()    what the columns of a run share, read once
//   column()       the weights of column k of a run, all rows of the panel
//   value()        one weight as float; for single rows
//
// Include after the file named by QEFF_SIMD_HEADER.
#pragma once

#include "formats/layout.h"

namespace qeff::QEFF_ISA {

template <WeightFormat Format>
inline constexpr int kBytesOfRun = unit_layout(Format).bytes * (32 / unit_layout(Format).cols);

}  // namespace qeff::QEFF_ISA

// The kernels of one instruction set, and the choice among those that this machine can run.
#pragma once

#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/light.h"
#include "kernels/linear.h"
#include "kernels/peak.h"

namespace qeff {

struct Kernels {
  const char* isa;  // scalar, neon, avx2, avx512, ...
  const LinearKernels* linear;
  const AttentionKernels* attention;
  const LightKernels* light;
  const PeakKernels* peak;
};

// Every instruction set that this build has and this processor can run, best first.
const std::vector<Kernels>& available_kernels();
// By name; empty: what QEFF_ISA names, else the best. Throws Error(kResource) for one that is not there.
const Kernels& choose_kernels(const std::string& name);

}  // namespace qeff

// Which instruction sets this processor runs, and which one a session gets.
#include <cstdlib>

#include "base/error.h"
#include "isa/kernels.h"
#include "isa/processor.h"

namespace qeff {

// Each instruction set's tables, made by compiling csrc/kernels once more with its flags.
#define QEFF_DECLARE(name)                           \
  namespace name {                                   \
  const LinearKernels& linear_kernels();             \
  const AttentionKernels& attention_kernels();       \
  const LightKernels& light_kernels();               \
  const PeakKernels& peak_kernels();                 \
  }
#define QEFF_ENTRY(name) \
  Kernels { #name, &name::linear_kernels(), &name::attention_kernels(), &name::light_kernels(), &name::peak_kernels() }

QEFF_DECLARE(scalar)
#if defined(__aarch64__)
QEFF_DECLARE(neon)
#elif defined(__x86_64__)
QEFF_DECLARE(avx2)
QEFF_DECLARE(avx512)
QEFF_DECLARE(amx)
#endif

const std::vector<Kernels>& available_kernels() {
  static const std::vector<Kernels> found = [] {
    std::vector<Kernels> list;
#if defined(__aarch64__)
    if (processor_has_neon_dotprod()) list.push_back(QEFF_ENTRY(neon));
#elif defined(__x86_64__)
    if (processor_has_avx512_vnni()) list.push_back(QEFF_ENTRY(avx512));
    // Behind it, since scales for every 32 columns keep the unit for tiles waiting: it is not the faster one.
    if (processor_has_amx_int8()) list.push_back(QEFF_ENTRY(amx));
    if (processor_has_avx2()) list.push_back(QEFF_ENTRY(avx2));
#endif
    list.push_back(QEFF_ENTRY(scalar));
    return list;
  }();
  return found;
}

const Kernels& choose_kernels(const std::string& name) {
  std::string wanted = name;
  if (wanted.empty()) {
    const char* variable = std::getenv("QEFF_ISA");
    if (variable != nullptr) wanted = variable;
  }
  const std::vector<Kernels>& list = available_kernels();
  if (wanted.empty()) return list.front();
  std::string known;
  for (const Kernels& kernels : list) {
    if (wanted == kernels.isa) return kernels;
    known += (known.empty() ? "" : ", ") + std::string(kernels.isa);
  }
  throw Error(ErrorCode::kResource,
              "this processor or this build has no instruction set '" + wanted + "'; it has " + known);
}

}  // namespace qeff

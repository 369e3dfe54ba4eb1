#include "isa/processor.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace qeff {

#if defined(__aarch64__)

bool processor_has_neon_dotprod() {
#if defined(__linux__)
  const unsigned long caps = getauxval(AT_HWCAP);
  return (caps & HWCAP_ASIMDDP) != 0 && (caps & HWCAP_ASIMDHP) != 0;
#else
  return true;  // every other 64-bit Arm system that we build for has them
#endif
}

#elif defined(__x86_64__)

bool processor_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool processor_has_avx512_vnni() {
  return processor_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

bool processor_has_amx_int8() {
#if defined(__linux__)
  if (!processor_has_avx512_vnni() || !__builtin_cpu_supports("amx-int8")) return false;
  // Tiles are large, so a process has to ask before its threads may keep them.
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#endif

}  // namespace qeff

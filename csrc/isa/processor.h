// What the processor can do, asked at run time.
#pragma once

namespace qeff {

#if defined(__aarch64__)
bool processor_has_neon_dotprod();  // dot products and half-precision arithmetic
#elif defined(__x86_64__)
bool processor_has_avx2();         // with FMA and F16C
bool processor_has_avx512_vnni();  // F, BW, DQ, VL, VNNI
bool processor_has_amx_int8();     // and that; asks the system for the use of tiles
#endif

}  // namespace qeff

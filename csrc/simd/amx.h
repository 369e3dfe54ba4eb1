// The SIMD layer on x86-64 with AMX: AVX-512, and a unit that multiplies whole tiles of int8 numbers.
//
// A tile of activations is NT tokens of 16 or 32 bytes, a tile of weights 4 or 8 groups of 4 columns of 16 rows, as
// panels have them.
#pragma once

#include "simd/avx512.h"

namespace qeff::QEFF_ISA {

// Shapes are of the thread: open sets them, close gives the unit back.
struct TileUnit {
  // For products of NT tokens with Groups groups of four columns.
  template <int NT, int Groups>
  static inline void open() {
    struct alignas(64) Shapes {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } shapes;
    shapes.row_bytes[0] = 64;  // sums
    shapes.rows[0] = NT;
    shapes.row_bytes[1] = 4 * Groups;  // activations
    shapes.rows[1] = NT;
    shapes.row_bytes[2] = 64;  // weights
    shapes.rows[2] = Groups;
    _tile_loadconfig(&shapes);
  }
  static inline void close() { _tile_release(); }

  // sums[NT][16] of signed activations, tokens `stride` bytes apart, with unsigned weights.
  static inline void multiply(const int8_t* x, int64_t stride, const uint8_t* weights, int32_t* sums) {
    _tile_zero(0);
    _tile_loadd(1, x, stride);
    _tile_loadd(2, weights, 64);
    _tile_dpbsud(0, 1, 2);
    _tile_stored(0, sums, 64);
  }
};

}  // namespace qeff::QEFF_ISA

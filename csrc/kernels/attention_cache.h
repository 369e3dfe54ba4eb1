// One block of one head of the cache: how its rows lie in memory, written and read as floats.
//
// Keys come first and are transposed, 32 rows side by side for each dim, so that the scores of
// neighbouring rows lie in neighbouring lanes; values follow, row by row.
//
//   kF32, kF16  keys [key_dim][32]; values [32][value_dim padded to 16]
//   kMXINT8     keys: for each 32 dims, u8 scales [32 rows], then i8 [32 dims][32 rows];
//               values: i8 [32 rows][value_dim padded to 32], then u8 scales [32 rows][blocks of 32 dims]
//
// MXINT8 is that of the OCP MX specification: 32 dims share the scale 2^(code - 127), an element
// is code / 64. The scale's exponent is that of the largest magnitude; elements are rounded to nearest,
// halves to even, and limited to +-127. A block with an infinity or a NaN becomes NaN (scale 255).
//
// Included by attention.cc alone, after the SIMD layer. Both parts begin at multiples of 64 bytes.
#pragma once

namespace qeff::QEFF_ISA {

inline constexpr int64_t kColumns = 16;  // floats are worked on in groups of this many
inline constexpr int64_t kVecs = kColumns / kLanes;
inline constexpr int64_t kScaled = 32;  // dims that share a scale

static inline int64_t ceil_div(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }
static inline int64_t round_up(int64_t n, int64_t unit) { return ceil_div(n, unit) * unit; }

// Floats from one row of values to the next, in the cache (but for kMXINT8) and unpacked.
static inline int64_t value_stride(int64_t value_dim) { return round_up(value_dim, kColumns); }

static inline int64_t key_bytes(CacheFormat format, int64_t key_dim) {
  switch (format) {
    case CacheFormat::kF32: return key_dim * kCacheBlockLen * 4;
    case CacheFormat::kF16: return key_dim * kCacheBlockLen * 2;
    case CacheFormat::kMXINT8: break;
  }
  return round_up(ceil_div(key_dim, kScaled) * (kScaled + 1) * kCacheBlockLen, 64);
}

static inline int64_t value_bytes(CacheFormat format, int64_t value_dim) {
  switch (format) {
    case CacheFormat::kF32: return value_stride(value_dim) * kCacheBlockLen * 4;
    case CacheFormat::kF16: return value_stride(value_dim) * kCacheBlockLen * 2;
    case CacheFormat::kMXINT8: break;
  }
  return round_up(ceil_div(value_dim, kScaled) * (kScaled + 1) * kCacheBlockLen, 64);
}

// One unit of an element of kMXINT8 with this scale: 2^(code - 127 - 6), subnormal below 7; exact.
static inline float mx_unit(uint8_t code) {
  const uint32_t bits = code == 255 ? 0x7FC00000u : code > 6 ? (code - 6u) << 23 : 1u << (16 + code);
  float unit;
  std::memcpy(&unit, &bits, 4);
  return unit;
}

// Rounds num <= 32 numbers to codes, num of them and stride apart; the rest of 32 are taken as zeros.
static inline uint8_t mx_round(const float* x, int64_t num, int8_t* codes, int64_t stride) {
  // The bits of magnitudes are ordered as the magnitudes are.
  uint32_t largest = 0;
  for (int64_t i = 0; i < num; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  if (largest >= 0x7F800000u) {
    for (int64_t i = 0; i < num; ++i) codes[i * stride] = 0;
    return 255;
  }
  // A subnormal has exponent bits of zero and takes the smallest scale, 2^-127, as all below 2^-126 do.
  const uint8_t code = static_cast<uint8_t>(largest >> 23);
  // 64 / scale = 2^(133 - code) is no float below a code of 6; a double holds it, and every product, exactly.
  const uint64_t bits = static_cast<uint64_t>(1023 + 133 - code) << 52;
  double factor;
  std::memcpy(&factor, &bits, 8);
  for (int64_t i = 0; i < num; ++i) {
    const double element = std::nearbyint(static_cast<double>(x[i]) * factor);
    codes[i * stride] = static_cast<int8_t>(element > 127 ? 127 : element < -127 ? -127 : element);
  }
  return code;
}

// Writes a row, 0 <= row < 32. What pads the row is set to zero.
static inline void write_row(CacheFormat format, int64_t key_dim, int64_t value_dim, uint8_t* head, int64_t row,
                             const float* k, const float* v) {
  uint8_t* values = head + key_bytes(format, key_dim);
  const int64_t stride = value_stride(value_dim);
  if (format == CacheFormat::kF32) {
    float* key = reinterpret_cast<float*>(head) + row;
    float* value = reinterpret_cast<float*>(values) + row * stride;
    for (int64_t d = 0; d < key_dim; ++d) key[d * kCacheBlockLen] = k[d];
    for (int64_t e = 0; e < stride; ++e) value[e] = e < value_dim ? v[e] : 0.0f;
  } else if (format == CacheFormat::kF16) {
    uint16_t* key = reinterpret_cast<uint16_t*>(head) + row;
    uint16_t* value = reinterpret_cast<uint16_t*>(values) + row * stride;
    for (int64_t d = 0; d < key_dim; ++d) key[d * kCacheBlockLen] = float_to_half(k[d]);
    for (int64_t e = 0; e < stride; ++e) value[e] = e < value_dim ? float_to_half(v[e]) : uint16_t{0};
  } else {
    for (int64_t d = 0; d < key_dim; d += kScaled) {
      const int64_t num = key_dim - d < kScaled ? key_dim - d : kScaled;
      uint8_t* part = head + d * (kScaled + 1);  // d / 32 parts of 33 * 32 bytes
      int8_t* codes = reinterpret_cast<int8_t*>(part + kCacheBlockLen) + row;
      part[row] = mx_round(k + d, num, codes, kCacheBlockLen);
      for (int64_t i = num; i < kScaled; ++i) codes[i * kCacheBlockLen] = 0;
    }
    const int64_t num_blocks = ceil_div(value_dim, kScaled);
    for (int64_t e = 0; e < value_dim; e += kScaled) {
      const int64_t num = value_dim - e < kScaled ? value_dim - e : kScaled;
      int8_t* codes = reinterpret_cast<int8_t*>(values) + row * num_blocks * kScaled + e;
      uint8_t* scales = values + kCacheBlockLen * num_blocks * kScaled + row * num_blocks;
      scales[e / kScaled] = mx_round(v + e, num, codes, 1);
      for (int64_t i = num; i < kScaled; ++i) codes[i] = 0;
    }
  }
}

// num (a multiple of 16) halves as floats.
static inline void unpack_halves(const uint16_t* from, int64_t num, float* to) {
  for (int64_t i = 0; i < num; i += kColumns) {
    for (int64_t j = 0; j < kColumns; j += kLanes) store(to + i + j, load_f16(from + i + j));
  }
}

// All keys of a block as floats [key_dim][32].
static inline void unpack_keys(CacheFormat format, int64_t key_dim, const uint8_t* head, float* keys) {
  if (format == CacheFormat::kF16) {
    unpack_halves(reinterpret_cast<const uint16_t*>(head), key_dim * kCacheBlockLen, keys);
    return;
  }
  for (int64_t d = 0; d < key_dim; d += kScaled) {
    const int64_t num = key_dim - d < kScaled ? key_dim - d : kScaled;
    const uint8_t* part = head + d * (kScaled + 1);
    const int8_t* codes = reinterpret_cast<const int8_t*>(part + kCacheBlockLen);
    float units[kCacheBlockLen];
    for (int64_t row = 0; row < kCacheBlockLen; ++row) units[row] = mx_unit(part[row]);
    for (int64_t column = 0; column < kCacheBlockLen; column += kColumns) {
      F32 unit[kVecs];
      for (int64_t j = 0; j < kVecs; ++j) unit[j] = load(units + column + j * kLanes);
      for (int64_t i = 0; i < num; ++i) {
        F32 code[kVecs];
        load_i8x16(codes + i * kCacheBlockLen + column, code);
        float* to = keys + (d + i) * kCacheBlockLen + column;
        for (int64_t j = 0; j < kVecs; ++j) store(to + j * kLanes, code[j] * unit[j]);
      }
    }
  }
}

// Row `row` of the values of a block as value_stride floats.
static inline void unpack_value_row(CacheFormat format, int64_t key_dim, int64_t value_dim, const uint8_t* head,
                                    int64_t row, float* value) {
  const uint8_t* from = head + key_bytes(format, key_dim);
  const int64_t stride = value_stride(value_dim);
  if (format == CacheFormat::kF32) {
    std::memcpy(value, reinterpret_cast<const float*>(from) + row * stride, static_cast<size_t>(stride) * 4);
  } else if (format == CacheFormat::kF16) {
    unpack_halves(reinterpret_cast<const uint16_t*>(from) + row * stride, stride, value);
  } else {
    const int64_t num_blocks = ceil_div(value_dim, kScaled);
    const int8_t* codes = reinterpret_cast<const int8_t*>(from) + row * num_blocks * kScaled;
    const uint8_t* scales = from + kCacheBlockLen * num_blocks * kScaled + row * num_blocks;
    for (int64_t e = 0; e < stride; e += kColumns) {
      const F32 unit = set1(mx_unit(scales[e / kScaled]));
      F32 code[kVecs];
      load_i8x16(codes + e, code);
      for (int64_t j = 0; j < kVecs; ++j) store(value + e + j * kLanes, code[j] * unit);
    }
  }
}

// Row `row` of the keys of a block into column `column` of keys [key_dim][32].
static inline void unpack_key_row(CacheFormat format, int64_t key_dim, const uint8_t* head, int64_t row, int64_t column,
                                  float* keys) {
  float* key = keys + column;
  if (format == CacheFormat::kF32) {
    const float* from = reinterpret_cast<const float*>(head) + row;
    for (int64_t d = 0; d < key_dim; ++d) key[d * kCacheBlockLen] = from[d * kCacheBlockLen];
  } else if (format == CacheFormat::kF16) {
    const uint16_t* from = reinterpret_cast<const uint16_t*>(head) + row;
    for (int64_t d = 0; d < key_dim; ++d) key[d * kCacheBlockLen] = half_to_float(from[d * kCacheBlockLen]);
  } else {
    for (int64_t d = 0; d < key_dim; ++d) {
      const uint8_t* part = head + d / kScaled * kScaled * (kScaled + 1);
      const int8_t* codes = reinterpret_cast<const int8_t*>(part + kCacheBlockLen);
      const float code = static_cast<float>(codes[d % kScaled * kCacheBlockLen + row]);
      key[d * kCacheBlockLen] = code * mx_unit(part[row]);
    }
  }
}

// Copies row `from_row` of a head's block to row `to_row` of another block, or another row of the same, as it is.
static inline void copy_row(CacheFormat format, int64_t key_dim, int64_t value_dim, const uint8_t* from,
                            int64_t from_row, uint8_t* to, int64_t to_row) {
  const int64_t values = key_bytes(format, key_dim);
  if (format == CacheFormat::kMXINT8) {
    const int64_t num_parts = ceil_div(key_dim, kScaled), num_blocks = ceil_div(value_dim, kScaled);
    for (int64_t i = 0; i < num_parts * (kScaled + 1); ++i) {  // lines of 32 rows: scales, then codes
      to[i * kCacheBlockLen + to_row] = from[i * kCacheBlockLen + from_row];
    }
    const int64_t row_bytes = num_blocks * kScaled, scales = values + kCacheBlockLen * row_bytes;
    std::memcpy(to + values + to_row * row_bytes, from + values + from_row * row_bytes,
                 static_cast<size_t>(row_bytes));
    std::memcpy(to + scales + to_row * num_blocks, from + scales + from_row * num_blocks,
                 static_cast<size_t>(num_blocks));
    return;
  }
  const int64_t size = format == CacheFormat::kF32 ? 4 : 2, row_bytes = value_stride(value_dim) * size;
  for (int64_t d = 0; d < key_dim; ++d) {
    std::memcpy(to + (d * kCacheBlockLen + to_row) * size, from + (d * kCacheBlockLen + from_row) * size,
                static_cast<size_t>(size));
  }
  std::memcpy(to + values + to_row * row_bytes, from + values + from_row * row_bytes,
               static_cast<size_t>(row_bytes));
}

}  // namespace qeff::QEFF_ISA

// What a packed matrix holds, and what rounding and products must give: written from docs/panels.md alone, one row, one
// token, one column after the other. Included by the linear tests.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "isa/kernels.h"
#include "kernels/linear.h"

namespace qeff::linear_model {

inline int num_failures = 0;

#define CHECK(condition, ...)                              \
  do {                                                     \
    if (!(condition)) {                                    \
      if (++num_failures <= 20) {                          \
        std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
        std::printf(__VA_ARGS__);                          \
        std::printf("\n");                                 \
      }                                                    \
    }                                                      \
  } while (0)

struct Random {
  uint64_t state;
  uint32_t next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  }
  float uniform() { return static_cast<float>(next()) * (2.0f / 2147483648.0f) - 1.0f; }
};

inline float half_value(uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const double mantissa = h & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((h & 0x8000) != 0 ? -magnitude : magnitude);
}
// A half between 2^-14 and 2^-7, of either sign, or subnormal.
inline uint16_t random_half(Random& random) {
  const uint16_t exponent = random.next() % 16 == 0 ? 0 : static_cast<uint16_t>(1 + random.next() % 7);
  return static_cast<uint16_t>((random.next() & 0x83FF) | exponent << 10);
}

struct Format {
  WeightFormat format;
  const char* name;
  int unit_cols, unit_bytes;
};
constexpr Format kFormats[] = {
    {WeightFormat::kF32, "f32", 1, 64},       {WeightFormat::kF16, "f16", 1, 32},
    {WeightFormat::kBF16, "bf16", 1, 32},     {WeightFormat::kQ8_0, "q8_0", 32, 544},
    {WeightFormat::kQ4_0, "q4_0", 32, 288},   {WeightFormat::kQ4_1, "q4_1", 32, 320},
    {WeightFormat::kQ4_K, "q4_k", 256, 2368}, {WeightFormat::kQ6_K, "q6_k", 256, 3360},
    {WeightFormat::kMXFP4, "mxfp4", 32, 272}, {WeightFormat::kMXFP6, "mxfp6", 32, 400},
    {WeightFormat::kMXFP8, "mxfp8", 32, 528},
};

struct Shape {
  int64_t rows, cols;
};
// Sizes from one element on; most of them fill neither a panel nor a block.
inline std::vector<Shape> shapes_of(const Format& format) {
  if (format.unit_cols == 256) return {{1, 256}, {16, 256}, {33, 768}, {50, 1536}, {17, 1792}};
  return {{1, 1}, {16, 32}, {17, 33}, {40, 100}, {15, 31}, {50, 576}, {33, 1600}};
}

// Memory that begins at a multiple of 64 bytes. What lies behind it cannot be read, since behind the last weight of a
// file there may be nothing: a sanitizer sees every byte too many; else, for kernels whose loads no sanitizer sees, it
// ends less than 64 bytes before a page that is not there.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t size) : size_(size) {
#ifdef __SANITIZE_ADDRESS__
    if (posix_memalign(&memory_, 64, bytes() + (size == 0)) != 0) std::abort();
    data_ = static_cast<T*>(memory_);
#else
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), used = (bytes() + 63) / 64 * 64;
    mapped_ = (used + page - 1) / page * page + page;
    memory_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) std::abort();
    char* end = static_cast<char*>(memory_) + mapped_ - page;
    if (mprotect(end, page, PROT_NONE) != 0) std::abort();
    data_ = reinterpret_cast<T*>(end - used);
#endif
    std::memset(static_cast<void*>(data_), 0, bytes());
  }
  Buffer(const Buffer& other) : Buffer(other.size_) { std::memcpy(data_, other.data_, bytes()); }
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
#ifdef __SANITIZE_ADDRESS__
    std::free(memory_);
#else
    munmap(memory_, mapped_);
#endif
  }
  T* data() const { return data_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
  int64_t size_;
  T* data_;
  void* memory_ = nullptr;
  [[maybe_unused]] size_t mapped_ = 0;
};

struct Matrix {
  Format format;
  int64_t rows, cols, panel_bytes;
  Buffer<uint8_t> panels;

  const uint8_t* unit(int64_t row, int64_t col) const {
    return panels.data() + row / 16 * panel_bytes + col / format.unit_cols * format.unit_bytes;
  }
};

inline void fill_halves(uint8_t* p, int n, Random& random) {
  for (int i = 0; i < n; ++i) {
    const uint16_t h = random_half(random);
    std::memcpy(p + 2 * i, &h, 2);
  }
}

inline Matrix random_matrix(const Format& format, int64_t rows, int64_t cols, Random& random) {
  const int64_t bytes = panel_bytes(format.format, cols);
  Matrix m{format, rows, cols, bytes, Buffer<uint8_t>((rows + 15) / 16 * bytes)};
  uint8_t* p = m.panels.data();
  for (int64_t i = 0; i < m.panels.size(); ++i) p[i] = static_cast<uint8_t>(random.next() >> 3);
  for (uint8_t* u = p; u < p + m.panels.size(); u += format.unit_bytes) {
    switch (format.format) {
      case WeightFormat::kF32:
        for (int r = 0; r < 16; ++r) {
          const float value = random.uniform();
          std::memcpy(u + 4 * r, &value, 4);
        }
        break;
      case WeightFormat::kF16: fill_halves(u, 16, random); break;
      case WeightFormat::kBF16:
        for (int r = 0; r < 16; ++r) {
          const uint16_t bits = static_cast<uint16_t>((random.next() & 0x807F) | (110 + random.next() % 18) << 7);
          std::memcpy(u + 2 * r, &bits, 2);
        }
        break;
      case WeightFormat::kQ8_0:
      case WeightFormat::kQ4_0:
      case WeightFormat::kQ6_K: fill_halves(u, 16, random); break;
      case WeightFormat::kQ4_1:
      case WeightFormat::kQ4_K: fill_halves(u, 32, random); break;
      case WeightFormat::kMXFP8:
        for (int i = 16; i < format.unit_bytes; ++i) {
          if ((u[i] & 0x7F) == 0x7F) u[i] = 0;  // NaN has a test of its own
        }
        [[fallthrough]];
      case WeightFormat::kMXFP4:
      case WeightFormat::kMXFP6:
        for (int r = 0; r < 16; ++r) {
          // Few are far from the others, since there are kernels for panels without such.
          const bool is_far = random.next() % 1500 == 0;
          u[r] = static_cast<uint8_t>(is_far ? 20 + random.next() % 200 : 110 + random.next() % 20);
        }
        break;
    }
  }
  return m;
}

// The integer of a code, or the element times `factor`, from the text of docs/panels.md.
inline int number_of_value(int k, int row) { return k / 4 * 64 + row * 4 + k % 4; }
inline int nibble(const uint8_t* codes, int k, int row) {
  const int v = number_of_value(k, row);
  return v < 256 ? codes[v] % 16 : codes[v - 256] / 16;
}
inline int six_bits(const uint8_t* codes, int k, int row) {
  const int v = number_of_value(k, row);
  return nibble(codes, k, row) + 16 * (codes[256 + v % 128] >> (2 * (v / 128)) & 3);
}
inline double float_element(int code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (code >> (exponent_bits + mantissa_bits)) & 1 ? -magnitude : magnitude;
}
// Eight times an E2M3 element.
inline int eightfold_element(const uint8_t* codes, int k, int row) {
  constexpr int kWhole[8] = {-64, -32, 0, 32, -30, 2, -15, -13};
  constexpr int kSplit[16] = {0, 1, 2, 3, 16, 18, 32, 48, -64, -48, -32, -30, -16, -15, -14, -13};
  constexpr int kPlane[8] = {0, 3, 2, 5, 1, 4, 2, 5};
  const int g = k / 4, at = row * 4 + k % 4;
  const int byte = codes[64 * kPlane[g] + at];
  if (g % 4 < 2) return kWhole[byte % 4 + (byte & 16) / 4] + 4 * (byte / 32);
  return kSplit[g < 4 ? byte % 16 : byte / 16] + (codes[64 * kPlane[g - 2] + at] & 12);
}

struct Weight {
  int code;                // whole number, the offset applied
  float d, m;              // scale and minimum of the block
  float s;                 // q6_k: whole-number scale of the half
  float value;
};

inline Weight weight_at(const Matrix& matrix, int64_t row64, int64_t col) {
  const uint8_t* u = matrix.unit(row64, col);
  const int row = static_cast<int>(row64 % 16);
  const int k = static_cast<int>(col % matrix.format.unit_cols);
  const auto half = [u](int offset) {
    uint16_t h;
    std::memcpy(&h, u + offset, 2);
    return half_value(h);
  };
  Weight w{0, 0, 0, 0, 0};
  switch (matrix.format.format) {
    case WeightFormat::kF32: std::memcpy(&w.value, u + 4 * row, 4); return w;
    case WeightFormat::kF16: w.value = half(2 * row); return w;
    case WeightFormat::kBF16: {
      uint32_t bits = 0;
      std::memcpy(reinterpret_cast<char*>(&bits) + 2, u + 2 * row, 2);
      std::memcpy(&w.value, &bits, 4);
      return w;
    }
    case WeightFormat::kMXFP8: {
      const int code = u[16 + 16 * k + row];
      w.value = (code & 0x7F) == 0x7F ? std::numeric_limits<float>::quiet_NaN()
                                      : static_cast<float>(std::ldexp(float_element(code, 4, 3), u[row] - 127));
      return w;
    }
    case WeightFormat::kQ8_0:
      w.d = half(2 * row);
      w.code = static_cast<int8_t>(u[32 + number_of_value(k, row)]);
      break;
    case WeightFormat::kQ4_0:
      w.d = half(2 * row);
      w.code = nibble(u + 32, k, row) - 8;
      break;
    case WeightFormat::kQ4_1:
      w.d = half(2 * row);
      w.m = half(32 + 2 * row);
      w.code = nibble(u + 64, k, row);
      break;
    case WeightFormat::kMXFP4:
      w.d = static_cast<float>(std::ldexp(1, u[row] - 128));
      w.code = static_cast<int>(2 * float_element(nibble(u + 16, k, row), 2, 1));
      break;
    case WeightFormat::kMXFP6:
      w.d = static_cast<float>(std::ldexp(1, u[row] - 130));
      w.code = eightfold_element(u + 16, k, row);
      break;
    case WeightFormat::kQ4_K: {
      const uint8_t* block = u + 64 + k / 32 * 288;
      w.d = half(2 * row) * static_cast<float>(block[row]);
      w.m = -(half(32 + 2 * row) * static_cast<float>(block[16 + row]));
      w.code = nibble(block + 32, k % 32, row);
      break;
    }
    case WeightFormat::kQ6_K: {
      const uint8_t* block = u + 32 + k / 32 * 416;
      w.d = half(2 * row);
      w.s = static_cast<float>(static_cast<int8_t>(block[k % 32 / 16 * 16 + row]));
      w.code = six_bits(block + 32, k % 32, row) - 32;
      w.value = w.d * w.s * static_cast<float>(w.code);
      return w;
    }
  }
  w.value = w.d * static_cast<float>(w.code) + w.m;
  return w;
}

struct Rounded {
  int64_t num_blocks, q_stride, scale_stride;
  Buffer<int8_t> q;
  Buffer<float> scale;
  Buffer<int32_t> sum;
  Rounded(int64_t num_tokens, int64_t cols)
      : num_blocks((cols + 31) / 32), q_stride(32 * num_blocks + 16), scale_stride(num_blocks + 3),
        q(num_tokens * q_stride), scale(num_tokens * scale_stride), sum(num_tokens * scale_stride) {}
  RoundedActivations view() const { return {q.data(), scale.data(), sum.data(), q_stride, scale_stride}; }
};

// One product by the table of docs/panels.md; plain is the product in double, size the sum of its magnitudes.
inline float model(const Matrix& matrix, int64_t row, const float* x, const Rounded& rounded, int64_t token,
                   double* plain, double* size) {
  float acc = 0;
  *plain = *size = 0;
  if (!takes_int8(matrix.format.format)) {
    for (int64_t c = 0; c < matrix.cols; ++c) {
      const float w = weight_at(matrix, row, c).value;
      acc = std::fma(w, x[c], acc);
      *plain += static_cast<double>(w) * x[c];
      *size += std::fabs(static_cast<double>(w) * x[c]);
    }
    return acc;
  }
  for (int64_t b = 0; b < rounded.num_blocks; ++b) {
    const int8_t* q = rounded.q.data() + token * rounded.q_stride + 32 * b;
    const float a = rounded.scale[token * rounded.scale_stride + b];
    const float t = static_cast<float>(rounded.sum[token * rounded.scale_stride + b]);
    int32_t halves[2] = {0, 0};
    Weight w{0, 0, 0, 0, 0};
    float s[2] = {0, 0};
    for (int k = 0; k < 32 && 32 * b + k < matrix.cols; ++k) {
      w = weight_at(matrix, row, 32 * b + k);
      halves[k / 16] += w.code * q[k];
      s[k / 16] = w.s;
      const double product = static_cast<double>(w.value) * (static_cast<double>(a) * q[k]);
      *plain += product;
      *size += std::fabs(product);
    }
    if (matrix.format.format == WeightFormat::kQ6_K) {
      acc = std::fma(static_cast<float>(halves[0]) * (w.d * s[0]), a, acc);
      acc = std::fma(static_cast<float>(halves[1]) * (w.d * s[1]), a, acc);
    } else {
      acc = std::fma(static_cast<float>(halves[0] + halves[1]) * w.d, a, acc);
    }
    if (matrix.format.format == WeightFormat::kQ4_1 || matrix.format.format == WeightFormat::kQ4_K)
      acc = std::fma(w.m, a * t, acc);
  }
  return acc;
}

struct Isa {
  const char* name;
  const LinearKernels* kernels;
};

// Scalar first: the others are compared with it.
inline std::vector<Isa> all_isas() {
  std::vector<Isa> isas;
  for (const Kernels& kernels : available_kernels())
    isas.insert(isas.begin(), {kernels.isa, kernels.linear});
  return isas;
}

inline const LinearKernels& scalar_kernels() { return *choose_kernels("scalar").linear; }

inline Buffer<float> random_activations(int64_t num_tokens, int64_t stride, Random& random) {
  Buffer<float> x(num_tokens * stride);
  for (int64_t i = 0; i < x.size(); ++i) x[i] = random.uniform() * (random.next() % 64 == 0 ? 30.0f : 1.0f);
  return x;
}

inline bool same_bits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

// The end of a test's main.
inline int report(const char* name) {
  if (num_failures == 0) std::printf("%s: all instruction sets agree with the model\n", name);
  return num_failures == 0 ? 0 : 1;
}

}  // namespace qeff::linear_model

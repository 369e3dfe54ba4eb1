// Products and roundings of every instruction set this processor has, against docs/panels.md.
//
// The model here is written from that document alone: one row, one token, one column after the
// other. Results have to be equal to it bit by bit, whatever the number of tokens, the split into
// panels, the strides or the instruction set.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "isa/kernels.h"
#include "kernels/linear.h"

namespace {

using qeff::LinearArgs;
using qeff::LinearKernels;
using qeff::RoundedActivations;
using qeff::WeightFormat;

int num_failures = 0;

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

float half_value(uint16_t h) {
  const int exponent = (h >> 10) & 31;
  const double mantissa = h & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((h & 0x8000) != 0 ? -magnitude : magnitude);
}
// A half between 2^-14 and 2^-7, of either sign, or subnormal.
uint16_t random_half(Random& random) {
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

int64_t aligned(int64_t n) { return (n + 63) / 64 * 64; }

// Memory that begins at a multiple of 64 bytes, so that sanitizers see every access past its end.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t size) : size_(size), data_(static_cast<T*>(std::aligned_alloc(64, bytes()))) {
    std::memset(static_cast<void*>(data_), 0, bytes());
  }
  Buffer(const Buffer& other) : Buffer(other.size_) { std::memcpy(data_, other.data_, bytes()); }
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  T* data() const { return data_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) const { return data_[i]; }

 private:
  size_t bytes() const { return static_cast<size_t>(aligned(size_ * static_cast<int64_t>(sizeof(T)) + 1)); }
  int64_t size_;
  T* data_;
};

struct Matrix {
  Format format;
  int64_t rows, cols, panel_bytes;
  Buffer<uint8_t> panels;

  const uint8_t* unit(int64_t row, int64_t col) const {
    return panels.data() + row / 16 * panel_bytes + col / format.unit_cols * format.unit_bytes;
  }
};

void fill_halves(uint8_t* p, int n, Random& random) {
  for (int i = 0; i < n; ++i) {
    const uint16_t h = random_half(random);
    std::memcpy(p + 2 * i, &h, 2);
  }
}

Matrix random_matrix(const Format& format, int64_t rows, int64_t cols, Random& random) {
  const int64_t bytes = qeff::panel_bytes(format.format, cols);
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
int number_of_value(int k, int row) { return k / 4 * 64 + row * 4 + k % 4; }
int nibble(const uint8_t* codes, int k, int row) {
  const int v = number_of_value(k, row);
  return v < 256 ? codes[v] % 16 : codes[v - 256] / 16;
}
int six_bits(const uint8_t* codes, int k, int row) {
  const int v = number_of_value(k, row);
  return nibble(codes, k, row) + 16 * (codes[256 + v % 128] >> (2 * (v / 128)) & 3);
}
double float_element(int code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                         : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (code >> (exponent_bits + mantissa_bits)) & 1 ? -magnitude : magnitude;
}
// Eight times an E2M3 element.
int eightfold_element(const uint8_t* codes, int k, int row) {
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

Weight weight_at(const Matrix& matrix, int64_t row64, int64_t col) {
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
float model(const Matrix& matrix, int64_t row, const float* x, const Rounded& rounded, int64_t token, double* plain,
            double* size) {
  float acc = 0;
  *plain = *size = 0;
  if (!qeff::takes_int8(matrix.format.format)) {
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
std::vector<Isa> all_isas() {
  std::vector<Isa> isas;
  for (const qeff::Kernels& kernels : qeff::available_kernels())
    isas.insert(isas.begin(), {kernels.isa, kernels.linear});
  return isas;
}

const LinearKernels& scalar_kernels() { return *qeff::choose_kernels("scalar").linear; }

Buffer<float> random_activations(int64_t num_tokens, int64_t stride, Random& random) {
  Buffer<float> x(num_tokens * stride);
  for (int64_t i = 0; i < x.size(); ++i) x[i] = random.uniform() * (random.next() % 64 == 0 ? 30.0f : 1.0f);
  return x;
}

bool same_bits(const float* a, const float* b, int64_t n) {
  return std::memcmp(a, b, static_cast<size_t>(n) * sizeof(float)) == 0;
}

// Products of one matrix with num_tokens tokens on every instruction set; y has a frame that must stay as it is.
void test_products(const Matrix& matrix, int64_t num_tokens, bool indexed, bool with_bias, Random& random) {
  const int64_t x_stride = matrix.cols + 5, y_stride = matrix.rows + 3;
  const int64_t num_rows_x = num_tokens + 2;
  const Buffer<float> x = random_activations(num_rows_x, x_stride, random);
  Buffer<float> bias(matrix.rows);
  for (int64_t r = 0; r < matrix.rows; ++r) bias[r] = random.uniform();
  std::vector<int32_t> index(static_cast<size_t>(num_tokens));
  for (auto& i : index) i = static_cast<int32_t>(random.next() % static_cast<uint32_t>(num_rows_x));
  Rounded rounded(num_rows_x, matrix.cols);
  scalar_kernels().round_activations(x.data(), x_stride, matrix.cols, 0, num_rows_x, rounded.view());
  const int64_t num_panels = (matrix.rows + 15) / 16;
  Buffer<uint8_t> scratch(qeff::kLinearScratchBytes);
  const auto row_of = [&](int64_t t) { return indexed ? index[static_cast<size_t>(t)] : t; };

  Buffer<float> expected(num_tokens * y_stride);
  for (int64_t i = 0; i < expected.size(); ++i) expected[i] = -777.0f;
  const int64_t row_step = matrix.rows * num_tokens * matrix.cols > 400000 ? 7 : 1;
  for (const Isa& isa : all_isas()) {
    Buffer<float> y(num_tokens * y_stride);
    for (int64_t i = 0; i < y.size(); ++i) y[i] = -777.0f;
    LinearArgs args{matrix.format.format,
                    matrix.panels.data(),
                    matrix.rows,
                    matrix.cols,
                    num_tokens,
                    x.data(),
                    x_stride,
                    rounded.view(),
                    with_bias ? bias.data() : nullptr,
                    y.data(),
                    y_stride,
                    indexed ? index.data() : nullptr};
    const int64_t middle = num_panels / 3;
    isa.kernels->linear(args, middle, num_panels, scratch.data());
    isa.kernels->linear(args, 0, middle, scratch.data());
    const std::string what = std::string(isa.name) + " " + matrix.format.name + " rows " + std::to_string(matrix.rows) +
                             " cols " + std::to_string(matrix.cols) + " tokens " + std::to_string(num_tokens);
    if (isa.kernels == &scalar_kernels()) {
      std::memcpy(expected.data(), y.data(), static_cast<size_t>(y.size()) * sizeof(float));
      for (int64_t t = 0; t < num_tokens; ++t) {
        for (int64_t r = 0; r < y_stride; ++r) {
          const float got = y[t * y_stride + r];
          if (r >= matrix.rows) {
            CHECK(got == -777.0f, "%s wrote past the rows", what.c_str());
          } else if ((r + t) % row_step == 0) {
            double plain, size;
            float want = model(matrix, r, x.data() + row_of(t) * x_stride, rounded, row_of(t), &plain, &size);
            if (with_bias) want += bias[r], plain += bias[r];
            CHECK(got == want, "%s row %d token %d: %.9g, model %.9g", what.c_str(), int(r), int(t), got, want);
            CHECK(std::fabs(got - plain) <= 2e-6 * (1 + size), "%s row %d token %d: %.9g, in double %.9g",
                  what.c_str(), int(r), int(t), got, plain);
          }
        }
      }
      continue;
    }
    CHECK(same_bits(y.data(), expected.data(), y.size()), "%s differs from scalar", what.c_str());
  }
}

// Any number of tokens gives the bits that each token gives alone.
void test_batches(const Matrix& matrix, int64_t most_tokens, Random& random) {
  const Buffer<float> x = random_activations(most_tokens, matrix.cols, random);
  Rounded rounded(most_tokens, matrix.cols);
  Buffer<uint8_t> scratch(qeff::kLinearScratchBytes);
  const int64_t num_panels = (matrix.rows + 15) / 16;
  for (const Isa& isa : all_isas()) {
    isa.kernels->round_activations(x.data(), matrix.cols, matrix.cols, 0, most_tokens, rounded.view());
    LinearArgs args{matrix.format.format, matrix.panels.data(), matrix.rows, matrix.cols, 1,           x.data(),
                    matrix.cols,          rounded.view(),       nullptr,     nullptr,     matrix.rows, nullptr};
    Buffer<float> alone(most_tokens * matrix.rows);
    for (int32_t t = 0; t < most_tokens; ++t) {
      args.token_index = &t;
      args.y = alone.data() + t * matrix.rows;
      isa.kernels->linear(args, 0, num_panels, scratch.data());
    }
    args.token_index = nullptr;
    for (int64_t n = 0; n <= most_tokens; n += n < 19 ? 1 : 37) {
      Buffer<float> y(n * matrix.rows);
      args.num_tokens = n;
      args.y = y.data();
      isa.kernels->linear(args, 0, num_panels, scratch.data());
      CHECK(same_bits(y.data(), alone.data(), n * matrix.rows), "%s %s: %d tokens of %d columns", isa.name,
            matrix.format.name, int(n), int(matrix.cols));
    }
  }
}

void test_unpack_row(const Matrix& matrix) {
  for (const Isa& isa : all_isas()) {
    Buffer<float> row(matrix.cols);
    for (int64_t r = 0; r < matrix.rows; ++r) {
      isa.kernels->unpack_row(matrix.format.format, matrix.panels.data(), matrix.cols, r, row.data());
      for (int64_t c = 0; c < matrix.cols; ++c) {
        const float want = weight_at(matrix, r, c).value;
        CHECK(row[c] == want, "%s %s row %d column %d: %.9g, not %.9g", isa.name, matrix.format.name, int(r), int(c),
              row[c], want);
      }
    }
  }
}

void test_rounding(Random& random) {
  const int64_t num_tokens = 9;
  for (const int64_t cols : {1, 31, 32, 33, 64, 100, 576}) {
    const Buffer<float> x = random_activations(num_tokens, cols + 1, random);
    for (int64_t c = 0; c < cols; ++c) {
      x[c] = 0;                                                        // a block of zeros
      x[(cols + 1) + c] = static_cast<float>(c % 255 - 127) * 0.5f;    // ties
      x[2 * (cols + 1) + c] = 1e-40f * static_cast<float>(c);          // too small for 127 / max
      x[3 * (cols + 1) + c] *= 1e30f;
    }
    Rounded first(num_tokens, cols);
    for (const Isa& isa : all_isas()) {
      Rounded rounded(num_tokens, cols);
      for (int64_t i = 0; i < rounded.q.size(); ++i) rounded.q[i] = 99;
      isa.kernels->round_activations(x.data(), cols + 1, cols, 0, num_tokens, rounded.view());
      for (int64_t t = 0; t < num_tokens; ++t) {
        for (int64_t b = 0; b < rounded.num_blocks; ++b) {
          float most = 0;
          for (int64_t k = 32 * b; k < 32 * b + 32 && k < cols; ++k)
            most = std::fmax(most, std::fabs(x[t * (cols + 1) + k]));
          if (most < 0x1p-120f) most = 0;
          int32_t sum = 0;
          for (int64_t k = 32 * b; k < 32 * b + 32; ++k) {
            const float value = k < cols ? x[t * (cols + 1) + k] : 0.0f;
            const int want = most == 0 ? 0 : static_cast<int>(std::nearbyint(value * (127.0f / most)));
            CHECK(rounded.q[t * rounded.q_stride + k] == want, "%s: q[%d] of token %d", isa.name, int(k), int(t));
            sum += want;
          }
          CHECK(rounded.scale[t * rounded.scale_stride + b] == most / 127.0f, "%s: scale of token %d", isa.name,
                int(t));
          CHECK(rounded.sum[t * rounded.scale_stride + b] == sum, "%s: sum of token %d", isa.name, int(t));
        }
        for (int64_t k = 32 * rounded.num_blocks; k < rounded.q_stride; ++k) {
          CHECK(rounded.q[t * rounded.q_stride + k] == 99, "%s wrote past the blocks", isa.name);
        }
      }
    }
  }
}

// One of 64 whole codes into column 0, or one of 64 split codes, with zero before it, into column 8.
void put_e2m3(uint8_t* codes, int row, int code) {
  const int base = code < 64 ? code % 4 + code / 4 % 2 * 16 : 2;
  const int steps = code < 64 ? code / 8 * 32 : code / 16 % 4 * 4;
  codes[4 * row] = static_cast<uint8_t>(base + steps);
  codes[64 * 2 + 4 * row] = static_cast<uint8_t>(code < 64 ? 0 : code % 16);
}

// Every element of the MX formats by its OCP definition, with the smallest and the largest scales.
void test_elements() {
  bool seen[2][256] = {};
  for (int code = 0; code < 128; ++code) {
    uint8_t codes[384] = {};
    put_e2m3(codes, 0, code);
    seen[code / 64][128 + eightfold_element(codes, code < 64 ? 0 : 8, 0)] = true;
  }
  for (int code = 0; code < 64; ++code) {
    const int eightfold = static_cast<int>(8 * float_element(code, 2, 3));
    CHECK(seen[0][128 + eightfold] && seen[1][128 + eightfold], "E2M3 element %d has no code", code);
  }
  for (const WeightFormat format : {WeightFormat::kMXFP4, WeightFormat::kMXFP6, WeightFormat::kMXFP8}) {
    const Format& f = kFormats[static_cast<int>(format)];
    const int num_codes = format == WeightFormat::kMXFP4 ? 16 : format == WeightFormat::kMXFP6 ? 128 : 256;
    for (const int e : {0, 1, 2, 3, 127, 200, 247, 254}) {
      Matrix matrix{f, 16, 32, f.unit_bytes, Buffer<uint8_t>(f.unit_bytes)};
      for (int first = 0; first < num_codes; first += 16) {
        uint8_t* p = matrix.panels.data();
        std::memset(p, 0, static_cast<size_t>(f.unit_bytes));
        std::memset(p, e, 16);
        for (int row = 0; row < 16; ++row) {  // the code in column 0, or a split one in column 8
          const int code = first + row;
          if (format == WeightFormat::kMXFP8) p[16 + row] = static_cast<uint8_t>(code);
          if (format == WeightFormat::kMXFP4) p[16 + 4 * row] = static_cast<uint8_t>(code);
          if (format == WeightFormat::kMXFP6) put_e2m3(p + 16, row, code);
        }
        float x[32] = {127.0f / 64, 0, 0, 0, 0, 0, 0, 0, 127.0f / 64};
        Rounded rounded(1, 32);
        Buffer<uint8_t> scratch(qeff::kLinearScratchBytes);
        for (const Isa& isa : all_isas()) {
          isa.kernels->round_activations(x, 32, 32, 0, 1, rounded.view());
          constexpr int kMost = 11;  // a whole tile of tokens and more
          float y[16 * kMost];
          const int32_t index[kMost] = {};
          for (const int64_t num_tokens : {1, 2, 8, kMost}) {
            LinearArgs args{format, p, 16, 32, num_tokens, x, 32, rounded.view(), nullptr, y, 16, index};
            isa.kernels->linear(args, 0, 1, scratch.data());
            for (int i = 0; i < 16 * num_tokens; ++i) {
              double plain, size;
              const float want = model(matrix, i % 16, x, rounded, 0, &plain, &size);
              CHECK(y[i] == want || (std::isnan(want) && std::isnan(y[i])), "%s %s code %d scale %d: %.9g, not %.9g",
                    isa.name, f.name, first + i % 16, e, y[i], want);
            }
          }
        }
        if (format != WeightFormat::kMXFP8 || first + 16 < 128) test_unpack_row(matrix);
      }
    }
  }
}

void test_names() {
  WeightFormat format = WeightFormat::kF32;
  for (const Format& f : kFormats) {
    CHECK(qeff::weight_format_from_name(f.name, &format) && format == f.format, "%s", f.name);
    CHECK(qeff::panel_bytes(f.format, 256) == 256 / f.unit_cols * f.unit_bytes, "%s", f.name);
    CHECK(qeff::panel_bytes(f.format, -1) == -1, "%s", f.name);
  }
  CHECK(!qeff::weight_format_from_name("q5_0", &format), "q5_0 is no format");
  CHECK(qeff::panel_bytes(WeightFormat::kQ4_0, 33) == 2 * 288, "padded to whole blocks");
  CHECK(qeff::panel_bytes(WeightFormat::kQ4_K, 288) == -1, "q4_k needs multiples of 256");
}

}  // namespace

int main() {
  Random random{20240613};
  test_names();
  test_rounding(random);
  test_elements();
  for (const Format& format : kFormats) {
    const bool large = format.unit_cols == 256;
    const int64_t shapes[][2] = {{1, 1}, {16, 32}, {17, 33}, {40, 100}, {15, 31}, {50, 576}, {33, 1600}};
    const int64_t large_shapes[][2] = {{1, 256}, {16, 256}, {33, 768}, {50, 1536}, {17, 1792}};
    for (size_t i = 0; i < (large ? 5u : 7u); ++i) {
      const Matrix m = random_matrix(format, large ? large_shapes[i][0] : shapes[i][0],
                                     large ? large_shapes[i][1] : shapes[i][1], random);
      if (m.cols <= 256) test_unpack_row(m);
      for (const int64_t num_tokens : {1, 2, 3, 4, 5, 7, 8, 11}) {
        test_products(m, num_tokens, num_tokens % 2 == 0, num_tokens % 3 != 0, random);
      }
      if (i >= 3) test_batches(m, i == 3 ? 250 : 20, random);
    }
    // Long rows: several stretches of scratch on all paths.
    const Matrix m = random_matrix(format, 18, 35072, random);
    for (const int64_t num_tokens : {1, 2, 4, 5, 7}) test_products(m, num_tokens, false, true, random);
    const Matrix wide = random_matrix(format, 18, 3328, random);
    test_products(wide, 43, true, false, random);
    const Matrix none = random_matrix(format, 5, 0, random);
    test_products(none, 1, false, true, random);
    test_products(none, 6, false, true, random);
  }
  if (num_failures == 0) std::printf("linear_test: all instruction sets agree with the model\n");
  return num_failures == 0 ? 0 : 1;
}

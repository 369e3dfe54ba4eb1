// Weight formats: names and sizes, every element of the MX formats by its definition, rows unpacked.
#include <cmath>
#include <cstring>

#include "tests/linear_model.h"

namespace qeff::linear_model {
namespace {

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
        Buffer<uint8_t> scratch(kLinearScratchBytes);
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
    CHECK(weight_format_from_name(f.name, &format) && format == f.format, "%s", f.name);
    CHECK(panel_bytes(f.format, 256) == 256 / f.unit_cols * f.unit_bytes, "%s", f.name);
    CHECK(panel_bytes(f.format, -1) == -1, "%s", f.name);
  }
  CHECK(!weight_format_from_name("q5_0", &format), "q5_0 is no format");
  CHECK(panel_bytes(WeightFormat::kQ4_0, 33) == 2 * 288, "padded to whole blocks");
  CHECK(panel_bytes(WeightFormat::kQ4_K, 288) == -1, "q4_k needs multiples of 256");
}

}  // namespace
}  // namespace qeff::linear_model

int main() {
  using namespace qeff::linear_model;
  test_names();
  test_elements();
  Random random{20240613};
  for (const Format& format : kFormats) {
    for (const int64_t rows : {1, 16, 17, 50}) {
      const int64_t cols = format.unit_cols == 256 ? 512 : 29 + 4 * rows;
      test_unpack_row(random_matrix(format, rows, cols, random));
    }
  }
  return report("linear_format_test");
}

// Products against the model, bit by bit: sizes that fill nothing, strides, indexed tokens, any split into panels.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/linear_model.h"

namespace qeff::linear_model {
namespace {

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
  Buffer<uint8_t> scratch(kLinearScratchBytes);
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

}  // namespace
}  // namespace qeff::linear_model

int main() {
  using namespace qeff::linear_model;
  Random random{20240613};
  for (const Format& format : kFormats) {
    for (const Shape& shape : shapes_of(format)) {
      const Matrix m = random_matrix(format, shape.rows, shape.cols, random);
      for (const int64_t num_tokens : {1, 2, 3, 4, 5, 7, 8, 11}) {
        test_products(m, num_tokens, num_tokens % 2 == 0, num_tokens % 3 != 0, random);
      }
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
  return report("linear_product_test");
}

// Any number of tokens gives each of them the bits that it gets alone.
#include "tests/linear_model.h"

namespace qeff::linear_model {
namespace {

void test_batches(const Matrix& matrix, int64_t most_tokens, Random& random) {
  const Buffer<float> x = random_activations(most_tokens, matrix.cols, random);
  Rounded rounded(most_tokens, matrix.cols);
  Buffer<uint8_t> scratch(kLinearScratchBytes);
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
    for (int64_t n = 0; n <= most_tokens; n += n < 44 ? 1 : 37) {
      Buffer<float> y(n * matrix.rows);
      args.num_tokens = n;
      args.y = y.data();
      isa.kernels->linear(args, 0, num_panels, scratch.data());
      CHECK(same_bits(y.data(), alone.data(), n * matrix.rows), "%s %s: %d tokens of %d columns", isa.name,
            matrix.format.name, int(n), int(matrix.cols));
    }
  }
}

}  // namespace
}  // namespace qeff::linear_model

int main() {
  using namespace qeff::linear_model;
  Random random{20240613};
  for (const Format& format : kFormats) {
    const std::vector<Shape> shapes = shapes_of(format);
    for (size_t i = 3; i < shapes.size(); ++i)
      test_batches(random_matrix(format, shapes[i].rows, shapes[i].cols, random), i == 3 ? 250 : 20, random);
  }
  return report("linear_batch_test");
}

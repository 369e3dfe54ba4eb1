// Activations rounded to int8 blocks: zeros, ties, numbers that are too small or very large, rows that end in a block.
#include <cmath>

#include "tests/linear_model.h"

namespace qeff::linear_model {
namespace {

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

}  // namespace
}  // namespace qeff::linear_model

int main() {
  using namespace qeff::linear_model;
  Random random{20240613};
  test_rounding(random);
  return report("linear_rounding_test");
}

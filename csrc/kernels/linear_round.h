// Activations rounded to int8 by blocks of 32, as docs/panels.md has it. Included by linear.cc alone.
#pragma once

namespace qeff::QEFF_ISA {

// Blocks whose largest value is below this count as zeros: the factor 127 / max would not be finite.
inline constexpr float kSmallestMax = 0x1p-120f;
// Blocks that are worked on at once: all largest values, then all factors, then all codes. One block after the other
// would wait for its divisions. At least as many as a vector has lanes.
inline constexpr int64_t kRoundedBlocks = 16;

[[gnu::always_inline]] static inline void load_block(const float* x, F32 (&values)[32 / kLanes]) {
  for (int v = 0; v < 32 / kLanes; ++v) values[v] = load(x + kLanes * v);
}

// num <= kRoundedBlocks blocks.
static inline void round_blocks(const float* x, int64_t num, int8_t* q, float* scale, int32_t* sum) {
  alignas(64) float most[kRoundedBlocks] = {}, factor[kRoundedBlocks];
  F32 values[32 / kLanes];
  for (int64_t b = 0; b < num; ++b) {
    load_block(x + 32 * b, values);
    most[b] = largest_magnitude(values);
  }
  for (int64_t b = 0; b < num; b += kLanes) {
    const F32 m = load(most + b), is_zero = set1(kSmallestMax) - m;
    store(factor + b, select_positive(is_zero, zero(), set1(127.0f) / m));
    store(most + b, select_positive(is_zero, zero(), m / set1(127.0f)));
  }
  for (int64_t b = 0; b < num; ++b) {
    load_block(x + 32 * b, values);
    const F32 times = set1(factor[b]);
    for (F32& v : values) v = v * times;
    sum[b] = store_rounded(q + 32 * b, values);
    scale[b] = most[b];
  }
}

static inline void round_row(const float* x, int64_t cols, int8_t* q, float* scale, int32_t* sum) {
  const int64_t num_whole = cols / 32;
  for (int64_t b = 0; b < num_whole; b += kRoundedBlocks) {
    round_blocks(x + 32 * b, min_of(kRoundedBlocks, num_whole - b), q + 32 * b, scale + b, sum + b);
  }
  if (32 * num_whole < cols) {
    float padded[32] = {};
    std::memcpy(padded, x + 32 * num_whole, static_cast<size_t>(cols - 32 * num_whole) * sizeof(float));
    round_blocks(padded, 1, q + 32 * num_whole, scale + num_whole, sum + num_whole);
  }
}

}  // namespace qeff::QEFF_ISA

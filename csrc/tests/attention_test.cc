// Attention against a model in double precision, and bit for bit against itself: however prompts are cut, steps
// are shared, items are split and branches are laid out, on every instruction set that this machine has.
#include <limits>

#include "tests/attention_layer.h"

// The elementary functions, on the layer that every processor has.
#define QEFF_ISA tested
#include "simd/scalar.h"

#include "simd/math.h"

#include "kernels/attention_softmax.h"

using namespace qeff;

namespace {

void test_plain(const AttentionKernels& kernels, const Layer& layer, Random& random) {
  std::vector<std::vector<Token>> sequences(static_cast<size_t>(pick(random, 1, 3)));
  for (auto& tokens : sequences) {
    const int64_t len = pick(random, 1, 150);
    for (int64_t i = 0; i < len; ++i) tokens.push_back(make_token(layer, random));
  }
  const auto want = whole(kernels, layer, sequences, random);
  const auto out_len = static_cast<size_t>(layer.num_heads * layer.value_dim);
  for (size_t s = 0; s < sequences.size(); ++s) {
    std::vector<const Token*> chain;
    std::vector<int64_t> positions;
    for (size_t t = 0; t < sequences[s].size(); ++t) {
      chain.push_back(&sequences[s][t]);
      positions.push_back(static_cast<int64_t>(t));
      if (t % 5 != 0 && t + 3 < sequences[s].size()) continue;  // the model is slow
      expect_near(&want[s][t * out_len], expected(layer, chain, positions), layer, "");
    }
  }
  // The same in pieces, several sequences a step, items in any order.
  for (const Items how : {Items::kSingle, Items::kRandom, Items::kThreads}) {
    Cache cache(kernels, layer, 40, random);
    std::vector<std::vector<int32_t>> blocks;
    for (const auto& tokens : sequences) blocks.push_back(cache.take(static_cast<int64_t>(tokens.size())));
    std::vector<int64_t> done(sequences.size(), 0);
    for (bool is_over = false; !is_over;) {
      std::vector<Part> parts;
      std::vector<size_t> owners;
      is_over = true;
      for (size_t s = 0; s < sequences.size(); ++s) {
        const auto len = static_cast<int64_t>(sequences[s].size());
        if (done[s] == len) continue;
        is_over = false;
        if (random() % 3 == 0) continue;
        const int64_t last = std::min(len, done[s] + (random() % 2 ? 1 : pick(random, 1, 90)));
        parts.push_back({&blocks[s], done[s], pointers(sequences[s], done[s], last), {}, {}});
        owners.push_back(s);
      }
      if (parts.empty()) continue;
      const auto got = run(cache, parts, how, random);
      size_t offset = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        const size_t num = parts[i].tokens.size() * out_len;
        const float* same = &want[owners[i]][static_cast<size_t>(parts[i].first) * out_len];
        expect(std::memcmp(&got[offset], same, num * sizeof(float)) == 0, "in pieces, " + layer.name());
        offset += num;
        done[owners[i]] += static_cast<int64_t>(parts[i].tokens.size());
      }
    }
  }
}

void test_tree(const AttentionKernels& kernels, const Layer& layer, bool has_odd_positions, Random& random) {
  const int64_t num_before = pick(random, 0, 100), num_nodes = pick(random, 1, 60);
  std::vector<Token> before, nodes;
  for (int64_t i = 0; i < num_before; ++i) before.push_back(make_token(layer, random));
  for (int64_t i = 0; i < num_nodes; ++i) nodes.push_back(make_token(layer, random));
  std::vector<int32_t> parents;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < num_nodes; ++i) {
    const int64_t parent = i == 0 ? -1 : random() % 2 ? i - 1 : pick(random, -1, i - 1);
    parents.push_back(static_cast<int32_t>(parent));
    int64_t position = parent < 0 ? num_before : positions[static_cast<size_t>(parent)] + 1;
    if (has_odd_positions && i > 0) position += pick(random, 0, 3);
    positions.push_back(position);
  }
  Cache cache(kernels, layer, 40, random);
  const auto blocks = cache.take(num_before + num_nodes), other = cache.take(num_before + 1);
  if (num_before > 0) {
    run(cache, {{&blocks, 0, pointers(before, 0, num_before), {}, {}}}, Items::kAll, random);
    run(cache, {{&other, 0, pointers(before, 0, num_before), {}, {}}}, Items::kAll, random);
  }
  // Beside the tree, a sequence that decodes one token.
  const std::vector<Part> parts = {{&other, num_before, {&nodes[0]}, {}, {}},
                                   {&blocks, num_before, pointers(nodes, 0, num_nodes), positions, parents}};
  const auto got = run(cache, parts, random() % 2 ? Items::kRandom : Items::kSingle, random);
  const auto out_len = static_cast<size_t>(layer.num_heads * layer.value_dim);
  expect(std::memcmp(&got[0], &got[out_len], out_len * sizeof(float)) == 0, "a root is a chain, " + layer.name());
  for (int64_t i = 0; i < num_nodes; ++i) {
    std::vector<const Token*> branch;
    std::vector<int64_t> branch_positions;
    for (int64_t up = i; up >= 0; up = parents[static_cast<size_t>(up)]) {
      branch.insert(branch.begin(), &nodes[static_cast<size_t>(up)]);
      branch_positions.insert(branch_positions.begin(), positions[static_cast<size_t>(up)]);
    }
    const float* mine = &got[static_cast<size_t>(i + 1) * out_len];
    if (!has_odd_positions && (i % 4 == 0 || i + 1 == num_nodes)) {
      Cache plain(kernels, layer, 10, random);
      const auto line = plain.take(num_before + static_cast<int64_t>(branch.size()));
      std::vector<const Token*> prompt = pointers(before, 0, num_before);
      prompt.insert(prompt.end(), branch.begin(), branch.end());
      const auto want = run(plain, {{&line, 0, prompt, {}, {}}}, Items::kAll, random);
      expect(std::memcmp(mine, &want[(prompt.size() - 1) * out_len], out_len * sizeof(float)) == 0,
             "a branch is a chain, " + layer.name());
    }
    if (i % 6 == 0) {
      std::vector<const Token*> chain = pointers(before, 0, num_before);
      std::vector<int64_t> chain_positions;
      for (int64_t j = 0; j < num_before; ++j) chain_positions.push_back(j);
      chain.insert(chain.end(), branch.begin(), branch.end());
      chain_positions.insert(chain_positions.end(), branch_positions.begin(), branch_positions.end());
      expect_near(mine, expected(layer, chain, chain_positions), layer, "tree, ");
    }
  }
}

// A token must not feel infinities that come after it, nor may a NaN that it sees be lost.
void test_bad_numbers(const AttentionKernels& kernels, CacheFormat format, Random& random) {
  Layer layer;
  layer.format = format;
  layer.num_heads = 3;
  std::vector<Token> tokens;
  for (int i = 0; i < 50; ++i) tokens.push_back(make_token(layer, random));
  const auto want = whole(kernels, layer, {tokens}, random);
  for (float& value : tokens[40].v) value = std::numeric_limits<float>::infinity();
  for (float& value : tokens[40].k) value = NAN;
  const auto got = whole(kernels, layer, {tokens}, random);
  const size_t out_len = 3 * 8;
  expect(std::memcmp(got[0].data(), want[0].data(), 40 * out_len * sizeof(float)) == 0, "later rows do not count");
  for (size_t i = 40 * out_len; i < got[0].size(); ++i) expect(std::isnan(got[0][i]), "a NaN is kept");
}

// ---- what a cache keeps ---------------------------------------------------------------------------------------

// With a window of 1 the weight of a token's own row is exactly 1, and the result is its value as stored.
void test_stored_values(const AttentionKernels& kernels, CacheFormat format, Random& random) {
  const float tricky[][4] = {{1.0f, 0.0078125f, 0.0234375f, -0.0234375f},  // halves: to even
                             {1.999f, -1.999f, 1.9921875f, 1.984375f},     // limited to 127
                             {1e-40f, -3e-42f, 1e-45f, 0.0f},
                             {5.9e-39f, 1.1754944e-38f, 0.0f, 2e-39f},
                             {3.4e38f, 1e38f, -3.4e38f, 2e36f},
                             {0.0f, -0.0f, 0.0f, 0.0f},
                             {65519.0f, 65504.0f, 6e-8f, 2.9e-8f},
                             {6.1e-5f, 6.0e-5f, 1.0009766f, 1.0014648f}};
  Layer layer;
  layer.format = format;
  layer.value_dim = 97;
  layer.window = 1;
  std::vector<Token> tokens;
  for (int i = 0; i < 60; ++i) {
    tokens.push_back(make_token(layer, random));
    for (size_t e = 0; e < 97; ++e) {
      float& value = tokens.back().v[e];
      if (i % 2 == 0) value = tricky[static_cast<size_t>(i / 2) % std::size(tricky)][(e + e / 32) % 4];
      if (i % 4 == 1) value = std::ldexp(value, static_cast<int>(pick(random, -20, 20)));
    }
  }
  const auto got = whole(kernels, layer, {tokens}, random);
  for (size_t t = 0; t < tokens.size(); ++t) {
    const auto want = stored(format, tokens[t].v.data(), 97);
    for (size_t e = 0; e < 97; ++e) {
      const double value = static_cast<double>(got[0][t * 97 + e]);
      // Where the stored value is infinite, so is the result. Products of halves end where their smallest number is.
      const bool is_small = kMultipliesHalves && format == CacheFormat::kF16 && std::fabs(want[e]) < 0x1p-8;
      expect(is_small ? std::fabs(value - want[e]) <= 0x1p-19 : value == want[e],
             "value " + std::to_string(t) + ", " + std::to_string(e) + " of " + layer.name());
    }
  }
}

// With a query of one dim and one earlier row of zeros, the result is the logistic function of the key as stored.
void test_stored_keys(const AttentionKernels& kernels, CacheFormat format, Random& random) {
  Layer layer;
  layer.format = format;
  layer.key_dim = 70;
  layer.value_dim = 1;
  Token zeros = make_token(layer, random), key = zeros;
  zeros.k.assign(70, 0.0f);
  zeros.v = {0.0f};
  key.v = {1.0f};
  for (size_t d = 0; d < 70; ++d) key.k[d] = 1.3f * std::sin(static_cast<float>(d));
  key.k[3] = 0.2578125f;  // halfway between two elements, as the next
  key.k[5] = 0.2734375f;
  key.k[9] = -1.9999f;
  const auto want = stored(format, key.k.data(), 70);
  for (size_t d = 0; d < 70; ++d) {
    key.q.assign(70, 0.0f);
    key.q[d] = 1.0f;
    const auto got = whole(kernels, layer, {{zeros, key}}, random);
    const double logistic = 1 / (1 + std::exp(-want[d]));
    const double error = std::fabs(static_cast<double>(got[0][1]) - logistic);
    expect(error < (kMultipliesHalves && format == CacheFormat::kF16 ? 1.3e-4 : 1e-6),
           "key " + std::to_string(d) + " of " + layer.name());
  }
}

// ---- products of halves ----------------------------------------------------------------------------------------

// Keys and values of a hundred and more, all of one sign, and keys that are close to the largest half: no sum may
// become infinite, and the largest score wins.
void test_large_numbers(const AttentionKernels& kernels, float size, Random& random) {
  Layer layer;
  layer.format = CacheFormat::kF16;
  layer.key_dim = layer.value_dim = 128;
  layer.scale = 1e-3f / size;
  std::vector<Token> tokens;
  std::vector<const Token*> chain;
  std::vector<int64_t> positions;
  for (int i = 0; i < 130; ++i) tokens.push_back(make_token(layer, random));
  for (Token& token : tokens) {
    for (float& value : token.k) value = size * (1.0f + 0.01f * value);
    for (float& value : token.v) value = size * (1.0f + 0.01f * value);
    for (float& value : token.q) value = 1.0f + 0.01f * value;
    positions.push_back(static_cast<int64_t>(chain.size()));
    chain.push_back(&token);
  }
  const auto got = whole(kernels, layer, {tokens}, random);
  const auto want = expected(layer, chain, positions);
  for (size_t e = 0; e < want.size(); ++e) {
    const double error = std::fabs(static_cast<double>(got[0][(tokens.size() - 1) * want.size() + e]) / want[e] - 1);
    expect(error < 2e-3, "large numbers: off by " + std::to_string(error));
  }
}

struct Errors {
  double mean = 0, most = 0;
  int64_t num = 0;
  void add(double error) {
    mean = (mean * static_cast<double>(num) + std::fabs(error)) / static_cast<double>(num + 1);
    most = std::max(most, std::fabs(error));
    ++num;
  }
};

// Products of halves may add errors of the size of those that rounding keys and values to fp16 has made. Some dims of
// keys are far larger than the others, as they are in models with biases.
void test_half_errors(const AttentionKernels& kernels, float outlier, Random& random) {
  Layer layer;
  layer.key_dim = layer.value_dim = 64;
  layer.scale = 0.125f / std::sqrt(outlier);
  std::vector<Token> tokens;
  std::vector<const Token*> chain;
  std::vector<int64_t> positions;
  for (int i = 0; i < 400; ++i) tokens.push_back(make_token(layer, random));
  Errors rounding, arithmetic;
  layer.format = CacheFormat::kF16;
  for (Token& token : tokens) {
    for (const size_t d : {3u, 40u}) token.k[d] = outlier * (1.0f + 0.01f * token.k[d]);
  }
  const auto got = whole(kernels, layer, {tokens}, random);
  for (size_t t = 0; t < tokens.size(); ++t) {
    positions.push_back(static_cast<int64_t>(t));
    chain.push_back(&tokens[t]);
    if (t % 20 != 19) continue;
    layer.format = CacheFormat::kF32;
    const auto exact = expected(layer, chain, positions);
    layer.format = CacheFormat::kF16;
    const auto stored_only = expected(layer, chain, positions);
    for (size_t e = 0; e < exact.size(); ++e) {
      rounding.add(stored_only[e] - exact[e]);
      arithmetic.add(static_cast<double>(got[0][t * exact.size() + e]) - stored_only[e]);
    }
  }
  std::printf("outliers of %g: rounding to fp16 moves results by %.1e (%.1e at most), products by %.1e (%.1e)\n",
              static_cast<double>(outlier), rounding.mean, rounding.most, arithmetic.mean, arithmetic.most);
  expect(arithmetic.mean < 4 * rounding.mean && arithmetic.most < 8 * rounding.most, "errors of halves");
}

// ---- elementary functions -------------------------------------------------------------------------------------

double units_off(float got, double want) {
  const int exponent = std::max(std::ilogb(want), -126);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, exponent - 23);
}

float exp_nonpositive(float x) {
  tested::F32 vector = tested::set1(x);
  tested::exp_nonpositive<1>(&vector);
  return vector.v[0];
}

void test_functions() {
  double worst_exp = 0, worst_tanh = 0;
  for (int64_t i = 0; i <= 400000; ++i) {
    const float x = static_cast<float>(static_cast<double>(i) * (-20.0 / 400000));
    worst_exp = std::max(worst_exp, units_off(exp_nonpositive(x), std::exp(static_cast<double>(x))));
    const float y = static_cast<float>(static_cast<double>(i - 200000) * 5e-5 + 1e-6);
    worst_tanh = std::max(worst_tanh, units_off(tested::tanh(tested::set1(y)).v[0], std::tanh(static_cast<double>(y))));
  }
  std::printf("exp is off by at most %.2f units in the last place, tanh by %.2f\n", worst_exp, worst_tanh);
  expect(worst_exp < 3, "exp");
  expect(worst_tanh < 2.5, "tanh");
  const float infinity = std::numeric_limits<float>::infinity();
  const float inputs[] = {0.0f, -infinity, -1e30f, -88.0f};
  const float outputs[] = {1.0f, 0.0f, 0.0f, 0.0f};
  for (int i = 0; i < 4; ++i) {
    expect(exp_nonpositive(inputs[i]) == outputs[i], "exp at its limits");
  }
  expect(std::isnan(exp_nonpositive(NAN)), "exp of NaN");
  expect(std::isnan(tested::tanh(tested::set1(NAN)).v[0]), "tanh of NaN");
  expect(tested::tanh(tested::set1(infinity)).v[0] == 1 && tested::tanh(tested::set1(-infinity)).v[0] == -1, "tanh");
  expect(tested::tanh(tested::set1(0.0f)).v[0] == 0, "tanh of 0");
}

// Every instruction set gives the same bits as the first.
void test_sameness(const Layer& layer, uint64_t seed) {
  std::vector<std::vector<float>> first;
  for (const Kernels& kernels : available_kernels()) {
    Random random(seed);
    std::vector<std::vector<Token>> sequences(1);
    for (int i = 0; i < 90; ++i) sequences[0].push_back(make_token(layer, random));
    const auto out = whole(*kernels.attention, layer, sequences, random);
    if (first.empty()) first = out;
    expect(std::memcmp(out[0].data(), first[0].data(), out[0].size() * sizeof(float)) == 0,
           std::string("the bits of ") + kernels.isa + ", " + layer.name());
  }
}

}  // namespace

int main() {
  test_functions();
  constexpr CacheFormat kFormats[] = {CacheFormat::kF32, CacheFormat::kF16, CacheFormat::kMXINT8};
  for (const Kernels& kernels : available_kernels()) {
    Random random(7);
    for (const CacheFormat format : kFormats) {
      test_bad_numbers(*kernels.attention, format, random);
      test_stored_values(*kernels.attention, format, random);
      test_stored_keys(*kernels.attention, format, random);
      for (int i = 0; i < 16; ++i) {
        test_plain(*kernels.attention, random_layer(random, format), random);
        test_tree(*kernels.attention, random_layer(random, format), i % 4 == 3, random);
      }
      Layer wide;
      wide.format = format;
      wide.num_heads = 2;
      wide.key_dim = 511;
      wide.value_dim = 512;
      wide.scale = 0.05f;
      test_plain(*kernels.attention, wide, random);
    }
    for (const float size : {0.01f, 300.0f, 60000.0f}) test_large_numbers(*kernels.attention, size, random);
    for (const float outlier : {1.0f, 20.0f, 300.0f}) test_half_errors(*kernels.attention, outlier, random);
    std::printf("%s: %s\n", kernels.isa, num_failures == 0 ? "right" : "WRONG");
  }
  Random random(11);
  for (int i = 0; i < 12; ++i) test_sameness(random_layer(random, kFormats[i % 3]), static_cast<uint64_t>(i));
  return num_failures == 0 ? 0 : 1;
}

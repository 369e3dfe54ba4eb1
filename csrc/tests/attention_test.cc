// Attention against a model in double precision, and bit for bit against itself: however prompts are cut, steps
// are shared, items are split and branches are laid out, on every instruction set that this machine has.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "isa/kernels.h"
#include "tests/cache_formats.h"

// The elementary functions, on the layer that every processor has.
#define QEFF_ISA tested
#include "simd/scalar.h"

#include "simd/math.h"

#include "kernels/attention_softmax.h"

using namespace qeff;

namespace {

int num_failures = 0;

void expect(bool is_right, const std::string& what) {
  if (is_right) return;
  if (++num_failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}

using Random = std::mt19937_64;
double uniform(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }
int64_t pick(Random& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}
float normal(Random& random) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += uniform(random);
  return static_cast<float>(sum - 6);
}

// ---- a layer and its sequences --------------------------------------------------------------------------------

struct Layer {
  CacheFormat format = CacheFormat::kF32;
  int64_t num_heads = 1, num_kv_heads = 1, key_dim = 8, value_dim = 8;
  float scale = 1, softcap = 0;
  int64_t window = 0, chunk = 0;
  std::vector<float> sinks, slopes;

  std::string name() const {
    char text[200];
    std::snprintf(text, sizeof text, "format %d, heads %d/%d, dims %d/%d, softcap %g, window %d, chunk %d%s%s",
                  static_cast<int>(format), static_cast<int>(num_heads), static_cast<int>(num_kv_heads),
                  static_cast<int>(key_dim), static_cast<int>(value_dim), static_cast<double>(softcap),
                  static_cast<int>(window), static_cast<int>(chunk), sinks.empty() ? "" : ", sinks",
                  slopes.empty() ? "" : ", slopes");
    return text;
  }
};

struct Token {
  std::vector<float> q, k, v;
};

Token make_token(const Layer& layer, Random& random) {
  Token token;
  for (int64_t i = 0; i < layer.num_heads * layer.key_dim; ++i) token.q.push_back(normal(random));
  for (int64_t i = 0; i < layer.num_kv_heads * layer.key_dim; ++i) token.k.push_back(normal(random));
  for (int64_t i = 0; i < layer.num_kv_heads * layer.value_dim; ++i) token.v.push_back(normal(random));
  return token;
}

// A cache whose memory is full of NaN until it is written, in blocks of random order.
struct Cache {
  const AttentionKernels& kernels;
  const Layer& layer;
  int64_t head_bytes, next = 0;
  std::unique_ptr<uint8_t, void (*)(void*)> data{nullptr, std::free};
  std::vector<int32_t> order;

  Cache(const AttentionKernels& kernels, const Layer& layer, int64_t num_blocks, Random& random)
      : kernels(kernels), layer(layer) {
    head_bytes = kernels.head_bytes(layer.format, layer.key_dim, layer.value_dim);
    expect(head_bytes > 0 && head_bytes % 64 == 0, "blocks keep the alignment");
    const auto bytes = static_cast<size_t>(num_blocks * layer.num_kv_heads * head_bytes);
    data.reset(static_cast<uint8_t*>(std::aligned_alloc(64, bytes)));
    std::memset(data.get(), 0xFF, bytes);
    for (int64_t i = 0; i < num_blocks; ++i) order.push_back(static_cast<int32_t>(i));
    for (int64_t i = num_blocks - 1; i > 0; --i) std::swap(order[static_cast<size_t>(i)], order[random() % (i + 1)]);
  }
  std::vector<int32_t> take(int64_t num_rows) {
    std::vector<int32_t> blocks;
    for (int64_t i = 0; i < num_rows; i += kCacheBlockLen) blocks.push_back(order.at(static_cast<size_t>(next++)));
    return blocks;
  }
  CacheView view() const {
    return {layer.format, layer.num_kv_heads, layer.key_dim,   layer.value_dim,
            data.get(),   head_bytes * layer.num_kv_heads, head_bytes};
  }
};

// One sequence's part of a step. parents: within the span, -1 for none; empty: a chain.
struct Part {
  const std::vector<int32_t>* blocks;
  int64_t first;
  std::vector<const Token*> tokens;
  std::vector<int64_t> positions;
  std::vector<int32_t> parents;
};

// Some tokens of each span of a step that has been run, from a shorter list of queries: the bits that all give.
void expect_some(const Cache& cache, const AttentionArgs& whole, Random& random) {
  std::vector<float> q, out;
  std::vector<SpanView> spans;
  std::vector<int64_t> tokens;
  for (int64_t s = whole.num_spans - 1; s >= 0; --s) {
    SpanView span = whole.spans[s];
    const int64_t first = pick(random, span.start, span.stop - 1), last = pick(random, first + 1, span.stop);
    span.before = first - span.start;
    span.behind = span.stop - last;
    span.shift = first - static_cast<int64_t>(tokens.size());
    spans.push_back(span);
    for (int64_t t = first; t < last; ++t) tokens.push_back(t);
  }
  for (const int64_t t : tokens) q.insert(q.end(), whole.q + t * whole.q_stride, whole.q + (t + 1) * whole.q_stride);
  out.resize(tokens.size() * static_cast<size_t>(whole.out_stride), NAN);
  AttentionArgs args = whole;
  args.q = q.data();
  args.out = out.data();
  args.spans = spans.data();
  const std::unique_ptr<void, void (*)(void*)> scratch(
      std::aligned_alloc(64, (cache.kernels.scratch_bytes(args) + 63) / 64 * 64), std::free);
  cache.kernels.attend(args, 0, cache.kernels.num_items(args), scratch.get());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_same = std::memcmp(out.data() + i * static_cast<size_t>(whole.out_stride),
                                     whole.out + tokens[i] * whole.out_stride,
                                     static_cast<size_t>(whole.out_stride) * sizeof(float)) == 0;
    expect(is_same, cache.layer.name() + ": some tokens give other bits than all");
  }
}

enum class Items { kAll, kSingle, kRandom, kThreads };

// Writes and attends; gives the outputs of each part's tokens, one after the other.
std::vector<float> run(Cache& cache, const std::vector<Part>& parts, Items how, Random& random) {
  const Layer& layer = cache.layer;
  const int64_t q_len = layer.num_heads * layer.key_dim + 3, k_len = layer.num_kv_heads * layer.key_dim + 1;
  const int64_t v_len = layer.num_kv_heads * layer.value_dim + 2, out_len = layer.num_heads * layer.value_dim;
  std::vector<float> q, k, v;
  std::vector<int64_t> positions;
  std::vector<int32_t> parents;
  std::vector<SpanView> spans;
  bool has_parents = false;
  for (const Part& part : parts) has_parents = has_parents || !part.parents.empty();
  for (const Part& part : parts) {
    const auto start = static_cast<int64_t>(positions.size());
    for (size_t i = 0; i < part.tokens.size(); ++i) {
      const auto append = [](std::vector<float>& to, const std::vector<float>& from, int64_t len) {
        to.insert(to.end(), from.begin(), from.end());
        to.resize(to.size() + static_cast<size_t>(len) - from.size(), NAN);
      };
      append(q, part.tokens[i]->q, q_len);
      append(k, part.tokens[i]->k, k_len);
      append(v, part.tokens[i]->v, v_len);
      positions.push_back(part.positions.empty() ? part.first + static_cast<int64_t>(i) : part.positions[i]);
      const int32_t parent = part.parents.empty() ? static_cast<int32_t>(i) - 1 : part.parents[i];
      parents.push_back(parent < 0 ? -1 : static_cast<int32_t>(start) + parent);
    }
    spans.push_back({start, static_cast<int64_t>(positions.size()), part.first, part.blocks->data()});
  }
  std::vector<float> out(positions.size() * static_cast<size_t>(out_len), NAN);
  AttentionArgs args = {};
  args.q = q.data();
  args.k = k.data();
  args.v = v.data();
  args.out = out.data();
  args.q_stride = q_len;
  args.k_stride = k_len;
  args.v_stride = v_len;
  args.out_stride = out_len;
  args.num_heads = layer.num_heads;
  args.cache = cache.view();
  args.scale = layer.scale;
  args.softcap = layer.softcap;
  args.window = layer.window;
  args.chunk = layer.chunk;
  args.sinks = layer.sinks.empty() ? nullptr : layer.sinks.data();
  args.slopes = layer.slopes.empty() ? nullptr : layer.slopes.data();
  args.positions = positions.data();
  args.parents = has_parents ? parents.data() : nullptr;
  args.spans = spans.data();
  args.num_spans = static_cast<int64_t>(spans.size());
  args.num_threads = pick(random, 0, 12);
  for (int64_t s = 0; s < args.num_spans; ++s) {
    const int64_t middle = pick(random, spans[static_cast<size_t>(s)].start, spans[static_cast<size_t>(s)].stop);
    cache.kernels.write(args, s, middle, spans[static_cast<size_t>(s)].stop);
    cache.kernels.write(args, s, spans[static_cast<size_t>(s)].start, middle);
  }
  const int64_t num_items = cache.kernels.num_items(args);
  const size_t scratch_bytes = (cache.kernels.scratch_bytes(args) + 63) / 64 * 64;
  const auto attend = [&](int64_t first, int64_t last) {
    const std::unique_ptr<void, void (*)(void*)> scratch(std::aligned_alloc(64, scratch_bytes), std::free);
    std::memset(scratch.get(), 0xFF, scratch_bytes);
    cache.kernels.attend(args, first, last, scratch.get());
  };
  if (how == Items::kAll) attend(0, num_items);
  if (how == Items::kSingle) {
    for (int64_t i = num_items - 1; i >= 0; --i) attend(i, i + 1);
  }
  if (how == Items::kRandom) {
    for (int64_t i = 0; i < num_items;) {
      const int64_t last = pick(random, i + 1, num_items);
      attend(i, last);
      i = last;
    }
  }
  if (how == Items::kThreads) {
    std::thread other(attend, 0, num_items / 2);
    attend(num_items / 2, num_items);
    other.join();
  }
  expect_some(cache, args, random);
  return out;
}

// What one token must give: chain is what it sees if neither window nor chunk forbids it, with positions.
std::vector<double> expected(const Layer& layer, const std::vector<const Token*>& chain,
                             const std::vector<int64_t>& positions) {
  const Token& own = *chain.back();
  const int64_t position = positions.back(), group = layer.num_heads / layer.num_kv_heads;
  std::vector<double> out;
  for (int64_t h = 0; h < layer.num_heads; ++h) {
    std::vector<double> scores, sum(static_cast<size_t>(layer.value_dim), 0.0);
    double top = layer.sinks.empty() ? -HUGE_VAL : static_cast<double>(layer.sinks[static_cast<size_t>(h)]);
    std::vector<size_t> rows;
    for (size_t j = 0; j < chain.size(); ++j) {
      if (layer.window != 0 && positions[j] <= position - layer.window) continue;
      if (layer.chunk != 0 && positions[j] / layer.chunk != position / layer.chunk) continue;
      const auto key = stored(layer.format, chain[j]->k.data() + h / group * layer.key_dim, layer.key_dim);
      double score = 0;
      for (int64_t d = 0; d < layer.key_dim; ++d) {
        score += static_cast<double>(own.q[static_cast<size_t>(h * layer.key_dim + d)]) * key[static_cast<size_t>(d)];
      }
      score *= static_cast<double>(layer.scale);
      if (layer.softcap != 0) {
        score = static_cast<double>(layer.softcap) * std::tanh(score / static_cast<double>(layer.softcap));
      }
      if (!layer.slopes.empty()) {
        const auto distance = static_cast<double>(positions[j] - position);
        score += static_cast<double>(layer.slopes[static_cast<size_t>(h)]) * distance;
      }
      rows.push_back(j);
      scores.push_back(score);
      top = std::max(top, score);
    }
    double total = layer.sinks.empty() ? 0 : std::exp(static_cast<double>(layer.sinks[static_cast<size_t>(h)]) - top);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto value = stored(layer.format, chain[rows[i]]->v.data() + h / group * layer.value_dim, layer.value_dim);
      const double weight = std::exp(scores[i] - top);
      total += weight;
      for (size_t e = 0; e < value.size(); ++e) sum[e] += weight * value[e];
    }
    for (const double value : sum) out.push_back(value / total);
  }
  return out;
}

void expect_near(const float* got, const std::vector<double>& want, const std::string& what) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
    worst = error > worst || !(error == error) ? error : worst;
    if (!(worst == worst)) break;
  }
  expect(worst < 2e-5, what + ": off by " + std::to_string(worst));
}

Layer random_layer(Random& random, CacheFormat format) {
  Layer layer;
  layer.format = format;
  layer.num_kv_heads = pick(random, 1, 3);
  layer.num_heads = layer.num_kv_heads * pick(random, 1, 5);
  const int64_t dims[] = {1, 2, 3, 5, 7, 16, 20, 31, 32, 33, 64, 80, 97, 128};
  layer.key_dim = dims[random() % std::size(dims)];
  layer.value_dim = random() % 2 ? layer.key_dim : dims[random() % std::size(dims)];
  layer.scale = static_cast<float>(1.5 / std::sqrt(static_cast<double>(layer.key_dim)));
  if (random() % 4 == 0) layer.softcap = 2.5f;
  if (random() % 3 == 0) layer.window = pick(random, 1, 70);
  if (random() % 4 == 0) layer.chunk = pick(random, 1, 50);
  for (int64_t h = 0; h < layer.num_heads && random() % 4 == 0; ++h) layer.sinks.push_back(normal(random));
  layer.sinks.resize(layer.sinks.empty() ? 0 : static_cast<size_t>(layer.num_heads), -0.5f);
  if (random() % 4 == 0) {
    for (int64_t h = 0; h < layer.num_heads; ++h) layer.slopes.push_back(0.25f / static_cast<float>(h + 1));
  }
  return layer;
}

std::vector<const Token*> pointers(const std::vector<Token>& tokens, int64_t first, int64_t last) {
  std::vector<const Token*> result;
  for (int64_t i = first; i < last; ++i) result.push_back(&tokens[static_cast<size_t>(i)]);
  return result;
}

// Whole prompts of a few sequences, one step each: the outputs that everything else is compared with.
std::vector<std::vector<float>> whole(const AttentionKernels& kernels, const Layer& layer,
                                      const std::vector<std::vector<Token>>& sequences, Random& random) {
  Cache cache(kernels, layer, 40, random);
  std::vector<std::vector<float>> out;
  for (const auto& tokens : sequences) {
    const auto len = static_cast<int64_t>(tokens.size());
    const auto blocks = cache.take(len);
    out.push_back(run(cache, {{&blocks, 0, pointers(tokens, 0, len), {}, {}}}, Items::kAll, random));
  }
  return out;
}

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
      expect_near(&want[s][t * out_len], expected(layer, chain, positions), layer.name());
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
      expect_near(mine, expected(layer, chain, chain_positions), "tree, " + layer.name());
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
      // Where the stored value is infinite, so is the result.
      expect(value == want[e], "value " + std::to_string(t) + ", " + std::to_string(e) + " of " + layer.name());
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
    expect(error < 1e-6, "key " + std::to_string(d) + " of " + layer.name());
  }
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
    std::printf("%s: %s\n", kernels.isa, num_failures == 0 ? "right" : "WRONG");
  }
  Random random(11);
  for (int i = 0; i < 12; ++i) test_sameness(random_layer(random, kFormats[i % 3]), static_cast<uint64_t>(i));
  return num_failures == 0 ? 0 : 1;
}

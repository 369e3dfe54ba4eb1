// A layer of attention for tests: its sequences and cache, steps in any cut and order, and what they must give in
// double precision. Included by attention_test.cc alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "isa/kernels.h"
#include "tests/cache_formats.h"

namespace qeff {
namespace {

int num_failures = 0;

// Whether an fp16 cache is multiplied in halves, as all instruction sets of Arm do it.
#if defined(__aarch64__)
constexpr bool kMultipliesHalves = true;
#else
constexpr bool kMultipliesHalves = false;
#endif

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

void expect_near(const float* got, const std::vector<double>& want, const Layer& layer, const std::string& what) {
  double worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::fabs(static_cast<double>(got[i]) - want[i]);
    worst = error > worst || !(error == error) ? error : worst;
    if (!(worst == worst)) break;
  }
  const double limit = kMultipliesHalves && layer.format == CacheFormat::kF16 ? 1e-2 : 2e-5;
  expect(worst < limit, what + layer.name() + ": off by " + std::to_string(worst));
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

}  // namespace
}  // namespace qeff

#include "program/choosing.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace qeff {

namespace {

using Candidate = ChoosingMemory::Candidate;

// A row on its way: weights are the powers of the scores (logit - largest) / temperature, and sums those of each part
// of kPart of them.
struct Row {
  const LightKernels& kernels;
  const float* logits;
  int64_t size;
  Likeliest best;
  float scale;
  ChoosingMemory& memory;

  int64_t num_parts() const { return (size + kPowersPart - 1) / kPowersPart; }
  int64_t end_of(int64_t part) const { return std::min(size, (part + 1) * kPowersPart); }
  float score(int64_t token) const { return (logits[token] - best.value) * scale; }
};

double total_of(const Row& row) {
  double total = 0;
  for (const double sum : row.memory.sums) total += sum;
  return total;
}

void weigh(const Row& row) {
  row.memory.weights.resize(static_cast<size_t>(row.size));
  row.memory.sums.resize(static_cast<size_t>(row.num_parts()));
  row.kernels.powers(row.logits, row.size, row.best.value, row.scale, row.memory.weights.data(),
                     row.memory.sums.data());
}

// The tokens that `is_kept` holds of, in order. A part whose weights sum to less than least_sum has none of them.
template <typename Kept>
void gather(const Row& row, double least_sum, Kept is_kept) {
  const ChoosingMemory& memory = row.memory;
  row.memory.candidates.clear();
  for (int64_t part = 0; part < row.num_parts(); ++part) {
    if (memory.sums[static_cast<size_t>(part)] < least_sum) continue;
    for (int64_t token = part * kPowersPart; token < row.end_of(part); ++token) {
      const float weight = memory.weights[static_cast<size_t>(token)];
      if (is_kept(token, weight)) row.memory.candidates.push_back({token, row.logits[token], weight});
    }
  }
}

// The k largest logits and what equals the last of them. No more than k parts hold them, and the k-th largest of the
// parts' maxima is a bound that k logits reach.
void keep_top_k(const Row& row, int64_t k) {
  std::vector<float>& maxima = row.memory.maxima;
  maxima.resize(static_cast<size_t>(row.num_parts()));
  for (int64_t part = 0; part < row.num_parts(); ++part) {
    const int64_t first = part * kPowersPart;
    maxima[static_cast<size_t>(part)] = row.kernels.likeliest(row.logits + first, row.end_of(part) - first).value;
  }
  float bound = -INFINITY;
  if (k <= row.num_parts()) {
    std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<>());
    bound = maxima[static_cast<size_t>(k - 1)];
  }
  gather(row, 0, [&](int64_t token, float) { return row.logits[token] >= bound; });
  std::vector<Candidate>& found = row.memory.candidates;
  if (static_cast<int64_t>(found.size()) <= k) return;
  maxima.clear();
  for (const Candidate& one : found) maxima.push_back(one.logit);
  std::nth_element(maxima.begin(), maxima.begin() + (k - 1), maxima.end(), std::greater<>());
  const float least = maxima[static_cast<size_t>(k - 1)];
  std::erase_if(found, [least](const Candidate& one) { return one.logit < least; });
}

// Of the candidates, which weigh `total` with those that are too light to count, the heaviest that weigh p of it.
void keep_top_p(std::vector<Candidate>& found, double wanted) {
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  double sum = 0;
  size_t count = 0;
  while (count < found.size() && sum < wanted) sum += found[count++].weight;
  while (count > 0 && count < found.size() && found[count].logit == found[count - 1].logit) ++count;
  found.resize(std::max<size_t>(count, 1));
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
}

int64_t draw(const std::vector<Candidate>& found, double number) {
  double total = 0, sum = 0;
  for (const Candidate& one : found) total += one.weight;
  for (const Candidate& one : found) {
    sum += one.weight;
    if (sum > number * total) return one.token;
  }
  return found.back().token;
}

// From all tokens: the part first, then the token in it.
int64_t draw(const Row& row, double number) {
  double left = number * total_of(row);
  int64_t part = 0;
  while (part + 1 < row.num_parts() && left >= row.memory.sums[static_cast<size_t>(part)])
    left -= row.memory.sums[static_cast<size_t>(part++)];
  int64_t last = row.best.index;  // where rounding leaves nothing of the last part
  for (int64_t token = part * kPowersPart; token < row.end_of(part); ++token) {
    const float weight = row.memory.weights[static_cast<size_t>(token)];
    if (weight == 0) continue;
    left -= weight;
    last = token;
    if (left < 0) break;
  }
  return last;
}

}  // namespace

void ChoosingMemory::reserve(int64_t size) {
  const auto count = static_cast<size_t>(size);
  weights.reserve(count);
  maxima.reserve(count);
  sums.reserve(count / kPowersPart + 1);
  candidates.reserve(count);
}

double uniform(const uint64_t (&key)[2], uint64_t index) {
  using Wide = unsigned __int128;
  uint64_t key0 = key[0], key1 = key[1];
  uint64_t a = index + 1, b = a == 0, c = 0, d = 0;
  for (int round = 0; round < 10; ++round) {
    const Wide first = Wide{0xD2E7470EE14C6C93} * a, second = Wide{0xCA5A826395121157} * c;
    a = static_cast<uint64_t>(second >> 64) ^ b ^ key0;
    b = static_cast<uint64_t>(second);
    c = static_cast<uint64_t>(first >> 64) ^ d ^ key1;
    d = static_cast<uint64_t>(first);
    key0 += 0x9E3779B97F4A7C15;
    key1 += 0xBB67AE8584CAA73B;
  }
  return static_cast<double>(a >> 11) * 0x1p-53;
}

int64_t choose(const LightKernels& kernels, const float* logits, int64_t size, Likeliest best, const Choice& choice,
               ChoosingMemory& memory) {
  if (choice.temperature == 0) return best.index;
  const float scale = static_cast<float>(1 / std::max(static_cast<double>(choice.temperature), 1.17549435e-38));
  const Row row{kernels, logits, size, best, scale, memory};
  const double number = uniform(choice.key, choice.index);
  weigh(row);
  const bool has_top_k = choice.top_k > 0 && choice.top_k < size, has_top_p = choice.top_p < 1;
  const float least = choice.min_p > 0 ? std::log(choice.min_p) : -INFINITY;
  if (has_top_k) {
    keep_top_k(row, choice.top_k);
  } else if (has_top_p) {
    // All that are below this weigh less together than what is to go; the margin is for rounding.
    const double low = 0.99 * (1 - static_cast<double>(choice.top_p)) * total_of(row) / static_cast<double>(size);
    gather(row, low, [low](int64_t, float weight) { return weight >= low; });
  } else if (choice.min_p > 0) {
    gather(row, 0.99 * choice.min_p, [&](int64_t token, float) { return row.score(token) >= least; });
  } else {
    return draw(row, number);
  }
  if (has_top_p) {
    double total = total_of(row);
    if (has_top_k) {
      total = 0;
      for (const Candidate& one : memory.candidates) total += one.weight;
    }
    keep_top_p(memory.candidates, static_cast<double>(choice.top_p) * total);
  }
  if (choice.min_p > 0)
    std::erase_if(memory.candidates, [&](const Candidate& one) { return row.score(one.token) < least; });
  return draw(memory.candidates, number);
}

}  // namespace qeff

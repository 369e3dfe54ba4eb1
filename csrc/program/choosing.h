// The choice of a token from a row of logits: temperature, top-k, top-p, min-p, then one random number.
//
// A token depends on the row's logits and its settings alone. The random number is a function of a key and an index
// (Philox), so nothing is kept from one choice to the next. Functions here may run on any number of threads at once,
// each with memory of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/light.h"

namespace qeff {

struct Choice {
  float temperature;  // 0: the largest logit; negative: no token is wanted
  float top_p;        // only the likeliest tokens whose probabilities sum to this; 1 is off
  float min_p;        // only tokens at least this fraction as likely as the likeliest; 0 is off
  int32_t top_k;      // only so many likeliest tokens, and those equal to the last of them; 0 is off
  uint64_t key[2];
  uint64_t index;
};

struct ChoosingMemory {
  struct Candidate {
    int64_t token;
    float logit, weight;
  };
  std::vector<float> weights, maxima;
  std::vector<double> sums;
  std::vector<Candidate> candidates;

  // Makes room for all that choosing from a row of this size may take: choose() itself asks for no memory.
  void reserve(int64_t size);
};

// The number in [0, 1) that `index` has in the sequence of a key: the first word of Philox 4x64-10 with the counter
// index + 1, as numpy.random.Philox gives it.
double uniform(const uint64_t (&key)[2], uint64_t index);

// The token of a row whose largest logit is finite and stands at `best`.
int64_t choose(const LightKernels& kernels, const float* logits, int64_t size, Likeliest best, const Choice& choice,
               ChoosingMemory& memory);

}  // namespace qeff

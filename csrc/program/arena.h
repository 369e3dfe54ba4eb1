// Memory planning: values that are never alive in the same phase may share bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace qeff {

struct Life {
  int first, last;  // phases, both ends included
};

// From which phase to which each value is needed.
class Lives {
 public:
  void note(int value, int phase) {
    const auto [found, is_first] = lives_.try_emplace(value, Life{phase, phase});
    if (!is_first) found->second = {std::min(found->second.first, phase), std::max(found->second.last, phase)};
  }
  // By beginning, the longer life first.
  std::vector<std::pair<int, Life>> sorted() const {
    std::vector<std::pair<int, Life>> result(lives_.begin(), lives_.end());
    std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) {
      return a.second.first != b.second.first ? a.second.first < b.second.first : a.second.last > b.second.last;
    });
    return result;
  }

 private:
  std::map<int, Life> lives_;
};

// Gives each life the lowest free bytes.
class ArenaLayout {
 public:
  int64_t place(Life life, int64_t bytes) {
    int64_t at = 0;
    for (const Taken& taken : taken_) {  // by offset
      if (taken.life.last < life.first || taken.life.first > life.last) continue;
      if (at + bytes <= taken.start) break;
      at = std::max(at, taken.stop);
    }
    const Taken mine{at, at + bytes, life};
    taken_.insert(std::upper_bound(taken_.begin(), taken_.end(), mine,
                                   [](const Taken& a, const Taken& b) { return a.start < b.start; }),
                  mine);
    bytes_ = std::max(bytes_, at + bytes);
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  struct Taken {
    int64_t start, stop;
    Life life;
  };
  std::vector<Taken> taken_;
  int64_t bytes_ = 0;
};

}  // namespace qeff

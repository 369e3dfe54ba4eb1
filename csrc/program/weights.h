// The weights file: safetensors, mapped. Every tensor's place is checked against the file before it is given out.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>

#include "base/mapped_file.h"
#include "program/program.h"

namespace qeff {

class Weights {
 public:
  // Throws Error(kContainer) when the header is malformed or a tensor lies outside the file.
  explicit Weights(const std::string& path);

  // The bytes of a weight value, after its element type and its size were found to be what the value
  // declares. Aligned to 64. Throws Error(kContainer).
  const std::byte* find(const Value& value) const;
  int64_t total_bytes() const { return static_cast<int64_t>(file_.size()); }

 private:
  struct Tensor {
    std::string dtype;
    const std::byte* data;
    int64_t bytes;
  };
  MappedFile file_;
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace qeff

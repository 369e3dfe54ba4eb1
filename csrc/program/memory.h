// A piece of memory that begins at a multiple of 64 bytes. Not cleared; pages come when touched.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/error.h"

namespace qeff {

class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
    if (data_ == nullptr)
      throw Error(ErrorCode::kResource, "there is no memory for " + std::to_string(bytes) + " bytes");
  }
  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace qeff

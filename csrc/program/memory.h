// A piece of memory that begins at a multiple of 64 bytes. Not cleared; pages come when touched.
//
// A large piece is asked of the system and goes back to it at once. In the allocator's heap, caches and arenas of many
// sizes, which come and go with engines and steps, would leave holes that nothing fits into.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/error.h"

namespace qeff {

class AlignedMemory {
 public:
  AlignedMemory() = default;
  explicit AlignedMemory(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* data = is_mapped() ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                             : std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (data == nullptr || data == MAP_FAILED)
      throw Error(ErrorCode::kResource, "there is no memory for " + std::to_string(bytes) + " bytes");
    data_ = static_cast<std::byte*>(data);
  }
  AlignedMemory(AlignedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedMemory& operator=(AlignedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedMemory() {
    if (is_mapped())
      munmap(data_, bytes_);
    else
      std::free(data_);
  }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
#ifdef __SANITIZE_ADDRESS__
  static constexpr size_t kMappedBytes = SIZE_MAX;  // it sees what lies around the pieces of the heap alone
#else
  static constexpr size_t kMappedBytes = size_t{1} << 20;
#endif
  bool is_mapped() const { return bytes_ >= kMappedBytes; }

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace qeff

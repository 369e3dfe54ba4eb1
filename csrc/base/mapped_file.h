// A file mapped into memory, read only. Pages are read when touched and shared between processes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace qeff {

class MappedFile {
 public:
  // Throws Error(kContainer) when the file cannot be opened or mapped.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Says that the file will be read over and over: large pages are worth having.
  void expect_streaming() const;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace qeff

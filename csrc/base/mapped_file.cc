#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace qeff {

MappedFile::MappedFile(const std::string& path) {
  const auto fail = [&path](const char* what) {
    throw Error(ErrorCode::kContainer, std::string("cannot ") + what + " " + path + ": " + std::strerror(errno));
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe must not make us wait
  if (file < 0) fail("open");
  struct stat found {};
  if (::fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) {
    ::close(file);
    throw Error(ErrorCode::kContainer, path + " is no file");
  }
  size_ = static_cast<size_t>(found.st_size);
  void* mapped = size_ == 0 ? nullptr : ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
  ::close(file);
  if (mapped == MAP_FAILED) fail("map");
  data_ = static_cast<const std::byte*>(mapped);
}

void MappedFile::expect_streaming() const {
#if defined(MADV_HUGEPAGE)
  // A hint: where the system cannot follow it, small pages are right, only slower.
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_HUGEPAGE);
#endif
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace qeff

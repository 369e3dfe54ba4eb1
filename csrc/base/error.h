// The one exception of the library. It never crosses the C API: api/ turns it into a code and a text.
#pragma once

#include <stdexcept>
#include <string>

namespace qeff {

// Whose mistake it was; the numbers are those of the C API.
enum class ErrorCode : int { kContainer = 1, kRequest = 2, kResource = 3, kInternal = 4 };

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace qeff

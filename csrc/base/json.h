// A JSON value, and a strict parser for files that may be anything.
//
// Values own what they hold and are never changed after parsing. Every accessor checks the type and
// throws Error(kContainer) with the place in words, so a caller may read a hostile file plainly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace qeff {

class Json {
 public:
  enum class Type { kNull, kBool, kInt, kFloat, kString, kArray, kObject };

  // Parses a whole text; nesting deeper than 64 and repeated keys are refused.
  static Json parse(std::string_view text);

  Type type() const { return type_; }
  bool as_bool() const;
  int64_t as_int() const;
  double as_float() const;  // whole numbers too
  const std::string& as_string() const;
  const std::vector<Json>& as_array() const;
  const std::vector<std::pair<std::string, Json>>& as_object() const;
  // A member of an object; find gives null when it is missing, at throws.
  const Json* find(std::string_view key) const;
  const Json& at(std::string_view key) const;
  std::vector<int64_t> as_ints() const;

 private:
  friend class JsonParser;
  Type type_ = Type::kNull;
  bool bool_ = false;
  int64_t int_ = 0;
  double float_ = 0;
  std::string string_;
  std::vector<Json> array_;
  std::vector<std::pair<std::string, Json>> object_;
};

}  // namespace qeff

#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace qeff {

namespace {
[[noreturn]] void fail(const std::string& why) { throw Error(ErrorCode::kContainer, "JSON: " + why); }
constexpr int kMaxDepth = 64;
}  // namespace

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Json parse_all() {
    Json result = parse_value(0);
    skip_space();
    if (at_ != text_.size()) fail("something follows the value");
    return result;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c != ' ' && c != '\t' && c != '\n' && c != '\r') break;
      ++at_;
    }
  }

  void expect(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail("expected '" + std::string(word) + "'");
    at_ += word.size();
  }

  Json parse_value(int depth) {
    if (depth > kMaxDepth) fail("nested too deep");
    skip_space();
    Json result;
    switch (peek()) {
      case '{': parse_object(&result, depth); break;
      case '[': parse_array(&result, depth); break;
      case '"':
        result.type_ = Json::Type::kString;
        result.string_ = parse_string();
        break;
      case 't': expect("true"); result.type_ = Json::Type::kBool; result.bool_ = true; break;
      case 'f': expect("false"); result.type_ = Json::Type::kBool; break;
      case 'n': expect("null"); break;
      default: parse_number(&result);
    }
    return result;
  }

  void parse_object(Json* out, int depth) {
    out->type_ = Json::Type::kObject;
    ++at_;
    skip_space();
    if (peek() == '}') { ++at_; return; }
    while (true) {
      skip_space();
      if (peek() != '"') fail("a key must be a string");
      std::string key = parse_string();
      skip_space();
      expect(":");
      out->object_.emplace_back(std::move(key), parse_value(depth + 1));
      skip_space();
      if (peek() == ',') { ++at_; continue; }
      expect("}");
      return check_keys(*out);
    }
  }

  static void check_keys(const Json& object) {
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : object.object_) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) fail("key '" + std::string(*twice) + "' is there twice");
  }

  void parse_array(Json* out, int depth) {
    out->type_ = Json::Type::kArray;
    ++at_;
    skip_space();
    if (peek() == ']') { ++at_; return; }
    while (true) {
      out->array_.push_back(parse_value(depth + 1));
      skip_space();
      if (peek() == ',') { ++at_; continue; }
      expect("]");
      return;
    }
  }

  unsigned parse_hex4() {
    if (at_ + 4 > text_.size()) fail("a string ends within an escape");
    unsigned code = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, code, 16);
    if (error != std::errc() || end != text_.data() + at_ + 4) fail("bad \\u escape");
    at_ += 4;
    return code;
  }

  static void append_utf8(std::string* out, unsigned code) {
    if (code < 0x80) {
      out->push_back(static_cast<char>(code));
    } else if (code < 0x800) {
      out->push_back(static_cast<char>(0xC0 | code >> 6));
      out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
    } else if (code < 0x10000) {
      out->push_back(static_cast<char>(0xE0 | code >> 12));
      out->push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
      out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
    } else {
      out->push_back(static_cast<char>(0xF0 | code >> 18));
      out->push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
      out->push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
      out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
    }
  }

  void parse_escape(std::string* out) {
    const char c = peek();
    ++at_;
    switch (c) {
      case '"': case '\\': case '/': out->push_back(c); return;
      case 'b': out->push_back('\b'); return;
      case 'f': out->push_back('\f'); return;
      case 'n': out->push_back('\n'); return;
      case 'r': out->push_back('\r'); return;
      case 't': out->push_back('\t'); return;
      case 'u': break;
      default: fail("unknown escape in a string");
    }
    unsigned code = parse_hex4();
    if (code >= 0xD800 && code < 0xDC00) {  // the first half of a pair
      expect("\\u");
      const unsigned low = parse_hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail("half a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      fail("half a surrogate pair");
    }
    append_utf8(out, code);
  }

  std::string parse_string() {
    ++at_;
    std::string out;
    while (true) {
      if (at_ >= text_.size()) fail("a string does not end");
      const char c = text_[at_++];
      if (c == '"') return out;
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
      if (c == '\\') {
        parse_escape(&out);
      } else {
        out.push_back(c);
      }
    }
  }

  void parse_number(Json* out) {
    const size_t start = at_;
    bool is_whole = true;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '.' || c == 'e' || c == 'E') is_whole = false;
      if (!(c >= '0' && c <= '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E') break;
      ++at_;
    }
    const char* first = text_.data() + start;
    const char* last = text_.data() + at_;
    if (first == last) fail("a value is missing");
    if (is_whole) {
      const auto [end, error] = std::from_chars(first, last, out->int_);
      if (error == std::errc() && end == last) {
        out->type_ = Json::Type::kInt;
        return;
      }
    }
    const auto [end, error] = std::from_chars(first, last, out->float_);
    if (error != std::errc() || end != last || !std::isfinite(out->float_)) fail("bad number");
    out->type_ = Json::Type::kFloat;
  }

  std::string_view text_;
  size_t at_ = 0;
};

Json Json::parse(std::string_view text) { return JsonParser(text).parse_all(); }

bool Json::as_bool() const {
  if (type_ != Type::kBool) fail("expected true or false");
  return bool_;
}

int64_t Json::as_int() const {
  if (type_ != Type::kInt) fail("expected a whole number");
  return int_;
}

double Json::as_float() const {
  if (type_ == Type::kInt) return static_cast<double>(int_);
  if (type_ != Type::kFloat) fail("expected a number");
  return float_;
}

const std::string& Json::as_string() const {
  if (type_ != Type::kString) fail("expected a string");
  return string_;
}

const std::vector<Json>& Json::as_array() const {
  if (type_ != Type::kArray) fail("expected a list");
  return array_;
}

const std::vector<std::pair<std::string, Json>>& Json::as_object() const {
  if (type_ != Type::kObject) fail("expected an object");
  return object_;
}

const Json* Json::find(std::string_view key) const {
  for (const auto& [name, value] : as_object()) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view key) const {
  const Json* found = find(key);
  if (found == nullptr) fail("there is no '" + std::string(key) + "'");
  return *found;
}

std::vector<int64_t> Json::as_ints() const {
  std::vector<int64_t> result;
  for (const Json& item : as_array()) result.push_back(item.as_int());
  return result;
}

}  // namespace qeff

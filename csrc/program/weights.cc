#include "program/weights.h"

#include <cstring>

#include "base/error.h"

namespace qeff {

namespace {

constexpr uint64_t kAlignment = 64;

[[noreturn]] void fail(const std::string& why) { throw Error(ErrorCode::kContainer, "weights: " + why); }

const char* stored_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kI64: return "I64";
    case DType::kI32: return "I32";
    case DType::kBool: return "BOOL";
    case DType::kPanels: return "U8";
  }
  return "";
}

// Bytes that a value takes in the file.
int64_t expected_bytes(const Value& value) {
  if (value.dtype != DType::kPanels) return value.size * dtype_bytes(value.dtype);
  const int64_t panel = panel_bytes(value.format, value.panel_cols);
  if (panel < 0) fail("'" + value.name + "' cannot be of its format");
  const int64_t matrices = value.size / (value.panel_rows * value.panel_cols);
  const int64_t panels = matrices * ((value.panel_rows + kPanelRows - 1) / kPanelRows);
  if (panel != 0 && panels > (int64_t{1} << 46) / panel) fail("'" + value.name + "' is too large");
  return panels * panel;
}

}  // namespace

Weights::Weights(const std::string& path) : file_(path) {
  file_.expect_streaming();
  uint64_t header_bytes = 0;
  if (file_.size() < sizeof header_bytes) fail("the file is cut");
  std::memcpy(&header_bytes, file_.data(), sizeof header_bytes);
  if (header_bytes > file_.size() - sizeof header_bytes) fail("the file is cut");
  const uint64_t start = sizeof header_bytes + header_bytes;
  const Json header = Json::parse(file_.text().substr(sizeof header_bytes, header_bytes));
  for (const auto& [name, entry] : header.as_object()) {
    if (name == "__metadata__") continue;
    const auto range = entry.at("data_offsets").as_ints();
    if (range.size() != 2 || range[0] < 0 || range[1] < range[0] ||
        static_cast<uint64_t>(range[1]) > file_.size() - start)
      fail("'" + name + "' lies outside the file");
    const Tensor tensor{entry.at("dtype").as_string(), file_.data() + start + range[0], range[1] - range[0]};
    if (!tensors_.emplace(name, tensor).second) fail("'" + name + "' is there twice");
  }
}

const std::byte* Weights::find(const Value& value) const {
  const auto found = tensors_.find(value.name);
  if (found == tensors_.end()) fail("there is no '" + value.name + "'");
  const Tensor& tensor = found->second;
  if (tensor.dtype != stored_dtype(value.dtype))
    fail("'" + value.name + "' has another element type than the program says");
  if (tensor.bytes != expected_bytes(value)) fail("'" + value.name + "' has another size than the program says");
  if (reinterpret_cast<uintptr_t>(tensor.data) % kAlignment != 0 && tensor.bytes != 0)
    fail("'" + value.name + "' is not aligned");
  if (value.dtype == DType::kBool) {
    for (int64_t i = 0; i < tensor.bytes; ++i) {
      if (tensor.data[i] > std::byte{1}) fail("'" + value.name + "' is neither true nor false");
    }
  }
  return tensor.data;
}

}  // namespace qeff

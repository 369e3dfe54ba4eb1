// The program as the container has it: values, and ops from first to last. Read once, then constant.
//
// load_program checks that the list can be run from first to last and that sizes are sane; what each
// op kind asks of its inputs is checked where the op is prepared (csrc/ops).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "kernels/attention.h"
#include "kernels/linear.h"

namespace qeff {

enum class ValueKind : uint8_t { kToken, kRow, kWeight };
// Element types. kPanels: a matrix in one of the weight formats, laid out as docs/panels.md says.
enum class DType : uint8_t { kF32, kI64, kI32, kBool, kPanels };

int64_t dtype_bytes(DType dtype);     // of one element; kPanels has none
const char* dtype_name(DType dtype);  // as a program spells it; kPanels has none

struct Value {
  std::string name;
  ValueKind kind;
  DType dtype;
  WeightFormat format;         // of a matrix; a plain f32 weight says kF32
  std::vector<int64_t> shape;  // of one token, one row, or the whole weight
  int64_t panel_rows, panel_cols;  // of kPanels: each matrix; the table of an embed is one of whatever shape
  int64_t size;                // product of shape
};

struct Op {
  std::string kind;
  std::string name;
  std::vector<int> inputs;  // -1: absent
  std::vector<int> outputs;
  Json attrs;
};

struct CacheLayer {
  int64_t num_kv_heads, key_dim, value_dim;
};

struct Program {
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<CacheLayer> caches;
  CacheFormat cache_format;
  int tokens, positions, logits;  // indices of values
};

// Throws Error(kContainer). Weights that linear, moe or embed read as matrices get dtype kPanels.
Program load_program(std::string_view json);

}  // namespace qeff

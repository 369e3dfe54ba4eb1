// Reads a program: JSON into values and ops, with every number checked before it is used.
#include <map>

#include "base/error.h"
#include "program/program.h"

namespace qeff {

namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kLayout = 2;            // of panels
constexpr int64_t kMaxSize = 1LL << 40;   // elements of a weight
constexpr int64_t kMaxInnerSize = 1 << 26;  // elements of a value for one token
constexpr size_t kMaxCount = 1 << 20;     // values or ops

[[noreturn]] void fail(const std::string& why) { throw Error(ErrorCode::kContainer, "program: " + why); }

int64_t size_of(const std::vector<int64_t>& shape, const std::string& name) {
  int64_t size = 1;
  for (const int64_t n : shape) {
    if (n < 0 || n > kMaxSize || (n != 0 && size > kMaxSize / n)) fail("value '" + name + "' has an impossible shape");
    size *= n;
  }
  return size;
}

Value read_value(const Json& item) {
  const auto& parts = item.as_array();
  if (parts.size() != 4) fail("a value must have four parts");
  Value value;
  value.name = parts[0].as_string();
  const std::string& kind = parts[1].as_string();
  if (kind == "token") value.kind = ValueKind::kToken;
  else if (kind == "row") value.kind = ValueKind::kRow;
  else if (kind == "weight") value.kind = ValueKind::kWeight;
  else fail("value '" + value.name + "' has kind '" + kind + "'");
  value.shape = parts[2].as_ints();
  value.size = size_of(value.shape, value.name);
  if (value.kind != ValueKind::kWeight && value.size > kMaxInnerSize)
    fail("value '" + value.name + "' is too large for one token");
  const std::string& dtype = parts[3].as_string();
  value.format = WeightFormat::kF32;
  value.panel_rows = value.panel_cols = 0;
  if (dtype == "f32") value.dtype = DType::kF32;
  else if (dtype == "i64") value.dtype = DType::kI64;
  else if (dtype == "i32") value.dtype = DType::kI32;
  else if (dtype == "bool") value.dtype = DType::kBool;
  else if (value.kind == ValueKind::kWeight && weight_format_from_name(dtype.c_str(), &value.format))
    value.dtype = DType::kPanels;
  else fail("value '" + value.name + "' has dtype '" + dtype + "', which this engine does not compute in");
  return value;
}

std::vector<int> read_ids(const Json& list, size_t num_values, bool may_be_absent) {
  std::vector<int> ids;
  for (const int64_t id : list.as_ints()) {
    if (id >= static_cast<int64_t>(num_values) || id < (may_be_absent ? -1 : 0))
      fail("an op names a value that does not exist");
    ids.push_back(static_cast<int>(id));
  }
  return ids;
}

Op read_op(const Json& item, size_t num_values) {
  const auto& parts = item.as_array();
  if (parts.size() != 5) fail("an op must have five parts");
  Op op;
  op.kind = parts[0].as_string();
  op.name = parts[1].as_string();
  op.inputs = read_ids(parts[2], num_values, true);
  op.outputs = read_ids(parts[3], num_values, false);
  parts[4].as_object();
  op.attrs = parts[4];
  return op;
}

// Which input of which kinds of op is a matrix in panels.
bool is_matrix_input(const std::string& kind, size_t index) {
  if (kind == "linear") return index == 1;
  if (kind == "embed") return index == 0;
  if (kind == "moe") return index == 3 || index == 4;
  return false;
}

// A table [N, ...] is a matrix of N rows; other weights are matrices of their last two axes.
void set_panel_shape(Value* value, bool is_table) {
  const auto& shape = value->shape;
  const size_t rank = shape.size();
  if (rank < (is_table ? 1 : 2) || (value->size == 0)) fail("weight '" + value->name + "' is no matrix");
  value->panel_rows = is_table ? shape[0] : shape[rank - 2];
  value->panel_cols = is_table ? value->size / shape[0] : shape[rank - 1];
}

// A float matrix of linear, moe or embed lies in panels; everything else is a plain array.
void mark_matrices(Program* program) {
  std::vector<uint8_t> uses(program->values.size(), 0);  // bit 0: as a matrix, bit 1: otherwise
  std::vector<bool> is_table(program->values.size(), false);
  for (const Op& op : program->ops) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] < 0) continue;
      const Value& value = program->values[op.inputs[i]];
      const bool is_float = value.dtype == DType::kF32 || value.dtype == DType::kPanels;
      uses[op.inputs[i]] |= is_matrix_input(op.kind, i) && is_float ? 1 : 2;
      if (op.kind == "embed" && i == 0) is_table[op.inputs[i]] = true;
    }
  }
  for (size_t id = 0; id < uses.size(); ++id) {
    Value& value = program->values[id];
    if (value.kind != ValueKind::kWeight) continue;
    if (uses[id] == 3) fail("weight '" + value.name + "' is read both as a matrix and otherwise");
    if (uses[id] == 1) value.dtype = DType::kPanels;
    if (value.dtype == DType::kPanels) set_panel_shape(&value, is_table[id]);
    if (uses[id] == 2 && value.dtype == DType::kPanels)
      fail("weight '" + value.name + "' has a packed dtype, but no op reads it as a matrix");
  }
}

void check_order(const Program& program) {
  std::vector<bool> is_made(program.values.size(), false);
  for (size_t id = 0; id < is_made.size(); ++id) is_made[id] = program.values[id].kind == ValueKind::kWeight;
  for (const int id : {program.tokens, program.positions}) {
    const Value& value = program.values[id];
    if (value.kind != ValueKind::kToken || value.dtype != DType::kI64 || value.size != 1 || is_made[id])
      fail("tokens and positions must be two whole numbers for each token");
    is_made[id] = true;
  }
  for (const Op& op : program.ops) {
    for (const int id : op.inputs) {
      if (id >= 0 && !is_made[id]) fail("op '" + op.name + "' uses a value before it is made");
    }
    for (const int id : op.outputs) {
      if (is_made[id]) fail("op '" + op.name + "' makes a value again");
      is_made[id] = true;
    }
  }
  const Value& logits = program.values[program.logits];
  if (!is_made[program.logits] || logits.kind != ValueKind::kRow || logits.dtype != DType::kF32 ||
      logits.shape.size() != 1 || logits.size == 0)
    fail("logits must be a row of floats");
}

CacheFormat read_cache_format(const Json& engine) {
  const std::string& name = engine.at("kv").as_string();
  if (name == "fp32") return CacheFormat::kF32;
  if (name == "fp16") return CacheFormat::kF16;
  if (name == "mxint8") return CacheFormat::kMXINT8;
  fail("the cache format '" + name + "' is unknown");
}

}  // namespace

int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kI64: return 8;
    case DType::kF32: case DType::kI32: return 4;
    case DType::kBool: return 1;
    case DType::kPanels: break;
  }
  return 0;
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kI64: return "i64";
    case DType::kI32: return "i32";
    case DType::kBool: return "bool";
    case DType::kPanels: break;
  }
  return "";
}

Program load_program(std::string_view text) {
  const Json json = Json::parse(text);
  if (json.at("version").as_int() != kVersion) fail("its version is not one that this release reads");
  const Json& engine = json.at("engine");
  if (engine.at("layout").as_int() != kLayout) fail("its panel layout is not one that this release reads");
  Program program;
  const auto& values = json.at("values").as_array();
  const auto& ops = json.at("ops").as_array();
  if (values.size() > kMaxCount || ops.size() > kMaxCount) fail("it is too long");
  for (const Json& item : values) program.values.push_back(read_value(item));
  for (const Json& item : ops) program.ops.push_back(read_op(item, values.size()));
  for (const Json& item : json.at("caches").as_array()) {
    const CacheLayer layer{item.at("num_kv_heads").as_int(), item.at("key_dim").as_int(),
                           item.at("value_dim").as_int()};
    for (const int64_t n : {layer.num_kv_heads, layer.key_dim, layer.value_dim}) {
      if (n < 1 || n > 1 << 16) fail("a cache has an impossible shape");
    }
    program.caches.push_back(layer);
  }
  program.cache_format = read_cache_format(engine);
  for (auto [field, name] :
       {std::pair{&program.tokens, "tokens"}, {&program.positions, "positions"}, {&program.logits, "logits"}}) {
    const int64_t id = json.at(name).as_int();
    if (id < 0 || id >= static_cast<int64_t>(values.size())) fail("it names an input or output that does not exist");
    *field = static_cast<int>(id);
  }
  mark_matrices(&program);
  check_order(program);
  return program;
}

}  // namespace qeff

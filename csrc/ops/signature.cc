#include "ops/signature.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace qeff {

namespace {

constexpr int64_t kMostElements = int64_t{1} << 40;

uint8_t dtype_set(DType dtype) {
  switch (dtype) {
    case DType::kF32: return kFloats;
    case DType::kI64: case DType::kI32: return kWholes;
    case DType::kBool: return kTruths;
    case DType::kPanels: return kMatrices;
  }
  return 0;
}

void check_attributes(const OpContext& ctx, const std::vector<const char*>& names) {
  for (const auto& [name, value] : ctx.op().attrs.as_object()) {
    const bool is_known = std::any_of(names.begin(), names.end(), [&](const char* known) { return name == known; });
    if (!is_known) ctx.fail("has no attribute '" + name + "'");
  }
}

void check_input(const OpContext& ctx, int i, const InputSpec& spec) {
  const Value& value = ctx.value(ctx.input(i));
  const bool is_weight = value.kind == ValueKind::kWeight;
  if ((is_weight && spec.from == From::kEntry) || (!is_weight && spec.from == From::kWeight)) {
    ctx.fail(std::string("input '") + spec.name + "' is a " + (is_weight ? "weight" : "token or row") + " value");
  }
  if ((dtype_set(value.dtype) & spec.dtypes) == 0) {
    ctx.fail(std::string("input '") + spec.name + "' has an element type that it does not take");
  }
}

}  // namespace

ValueKind check_inputs(const OpContext& ctx, const Signature& signature) {
  const int num_specs = static_cast<int>(signature.inputs.size());
  if (!signature.is_variadic && ctx.num_inputs() > num_specs) ctx.fail("has too many inputs");
  ctx.check(ctx.num_outputs() == signature.num_outputs, "has a wrong number of outputs");
  bool has_entry = false;
  ValueKind kind = ValueKind::kToken;
  for (int i = 0; i < std::max(ctx.num_inputs(), num_specs); ++i) {
    const InputSpec& spec = signature.inputs[std::min(i, num_specs - 1)];
    if (!ctx.has_input(i)) {
      if (!spec.is_optional) ctx.fail(std::string("lacks its input '") + spec.name + "'");
      continue;
    }
    check_input(ctx, i, spec);
    const Value& value = ctx.value(ctx.input(i));
    if (value.kind == ValueKind::kWeight || (has_entry && signature.is_led)) continue;
    ctx.check(!has_entry || value.kind == kind, "mixes token and row values");
    has_entry = true;
    kind = value.kind;
  }
  ctx.check(has_entry, "has only weights as inputs");
  check_attributes(ctx, signature.attributes);
  return kind;
}

ValueKind check_signature(const OpContext& ctx, const Signature& signature) {
  const ValueKind kind = check_inputs(ctx, signature);
  for (int i = 0; i < ctx.num_outputs(); ++i) {
    ctx.check(ctx.value(ctx.output(i)).kind == kind, "gives a value of another kind than its inputs");
  }
  return kind;
}

void check_output(const OpContext& ctx, int output, const Shape& shape, DType dtype) {
  const Value& value = ctx.value(ctx.output(output));
  if (value.shape != shape) {
    ctx.fail("declares a result " + shape_text(value.shape) + ", its rule says " + shape_text(shape));
  }
  ctx.check(value.dtype == dtype, "declares a result of a wrong element type");
}

int axis_attr(const OpContext& ctx, const char* name, const Shape& shape) {
  const int64_t axis = ctx.int_attr(name);
  if (axis < 0 || axis >= static_cast<int64_t>(shape.size())) {
    ctx.fail("axis " + std::to_string(axis) + " is outside the inner shape " + shape_text(shape));
  }
  return static_cast<int>(axis);
}

int64_t int_attr_in(const OpContext& ctx, const char* name, int64_t least, int64_t most) {
  const int64_t value = ctx.int_attr(name);
  if (value < least || value > most) {
    ctx.fail(std::string("attribute '") + name + "' is " + std::to_string(value) + ", outside its range");
  }
  return value;
}

float finite_attr(const OpContext& ctx, const char* name) {
  const double value = ctx.float_attr(name);
  const double most = std::numeric_limits<float>::max();
  if (!(value >= -most && value <= most)) ctx.fail(std::string("attribute '") + name + "' is outside its range");
  return static_cast<float>(value);
}

int choice_attr(const OpContext& ctx, const char* name, std::initializer_list<const char*> choices) {
  const std::string& value = ctx.string_attr(name);
  int place = 0;
  for (const char* choice : choices) {
    if (value == choice) return place;
    ++place;
  }
  ctx.fail(std::string("attribute '") + name + "' is '" + value + "', which is none of its choices");
}

AxisSplit split_at(const OpContext& ctx, const Shape& shape, int axis) {
  AxisSplit split{1, shape[axis], 1};
  for (int i = 0; i < static_cast<int>(shape.size()); ++i) {
    int64_t* part = i < axis ? &split.outer : &split.inner;
    if (i != axis) *part = product_within(ctx, {*part, shape[i]}, kMostElements);
  }
  return split;
}

Shape broadcast_shape(const OpContext& ctx, const std::vector<BroadcastInput>& inputs) {
  size_t rank = 0;
  for (const BroadcastInput& input : inputs) {
    if (!input.is_weight) rank = std::max(rank, input.shape.size());
  }
  Shape result(rank, 1);
  for (const BroadcastInput& input : inputs) {
    ctx.check(input.is_weight || input.shape.size() == rank, "combines values with different numbers of axes");
    ctx.check(input.shape.size() <= rank, "combines a weight that has more axes than the values");
    const size_t missing = rank - input.shape.size();
    for (size_t i = 0; i < input.shape.size(); ++i) {
      int64_t* size = &result[missing + i];
      if (input.shape[i] == 1 || input.shape[i] == *size) continue;
      ctx.check(*size == 1, "combines shapes that do not broadcast");
      *size = input.shape[i];
    }
  }
  return result;
}

int64_t product_within(const OpContext& ctx, std::initializer_list<int64_t> sizes, int64_t most) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || (size != 0 && product > most / size)) ctx.fail("has sizes that are too large");
    product *= size;
  }
  return product;
}

std::string shape_text(const Shape& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

}  // namespace qeff

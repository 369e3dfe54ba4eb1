// What every op kind asks of its inputs, outputs and attributes, checked in one place.
//
// Mirrors the tables of qeff/ops: a prepare function states its signature first, and may rely on it
// from then on. All functions throw through OpContext::fail.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "program/op_context.h"

namespace qeff {

// Sets of element types.
inline constexpr uint8_t kFloats = 1;
inline constexpr uint8_t kWholes = 2;
inline constexpr uint8_t kTruths = 4;
inline constexpr uint8_t kMatrices = 8;
inline constexpr uint8_t kNumbers = kFloats | kWholes;
inline constexpr uint8_t kAnything = kNumbers | kTruths;

// Where an input may come from.
enum class From : uint8_t { kEntry, kWeight, kEither };  // kEntry: a token or row value

struct InputSpec {
  const char* name;
  uint8_t dtypes;
  From from = From::kEntry;
  bool is_optional = false;
};

struct Signature {
  std::vector<InputSpec> inputs;
  std::vector<const char*> attributes;  // all of them
  int num_outputs = 1;
  bool is_variadic = false;  // the last input may be given any number of times
  bool is_led = false;       // outputs are of the kind of the first input, whatever the others are
};

// Checks the op against the signature, and that its inputs that are no weights (is_led: the first) and its outputs are
// of one kind, which it gives.
ValueKind check_signature(const OpContext& ctx, const Signature& signature);
// The same for an op whose outputs are of another kind than its inputs: the kind of the inputs.
ValueKind check_inputs(const OpContext& ctx, const Signature& signature);

using Shape = std::vector<int64_t>;

// The output is what the op's rule says.
void check_output(const OpContext& ctx, int output, const Shape& shape, DType dtype);

// An int attribute that must be an axis of the shape.
int axis_attr(const OpContext& ctx, const char* name, const Shape& shape);
// An int attribute in [least, most].
int64_t int_attr_in(const OpContext& ctx, const char* name, int64_t least, int64_t most);
// A finite float attribute that fits a float.
float finite_attr(const OpContext& ctx, const char* name);
// The place of a string attribute in a list of choices.
int choice_attr(const OpContext& ctx, const char* name, std::initializer_list<const char*> choices);

// Elements before, at and behind an axis. Their product is the size of the value.
struct AxisSplit {
  int64_t outer, size, inner;
};
AxisSplit split_at(const OpContext& ctx, const Shape& shape, int axis);

// The shape that values broadcast to: equal numbers of axes, but weights may have fewer.
struct BroadcastInput {
  Shape shape;
  bool is_weight;
};
Shape broadcast_shape(const OpContext& ctx, const std::vector<BroadcastInput>& inputs);

// The product of sizes that are not negative; fails when it passes `most`.
int64_t product_within(const OpContext& ctx, std::initializer_list<int64_t> sizes, int64_t most);

// "(3, 4)", for messages.
std::string shape_text(const Shape& shape);

}  // namespace qeff

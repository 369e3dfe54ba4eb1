// How an op of the program becomes stages: what a function of csrc/ops sees and gives.
//
// A prepare function checks everything that its stages rely on: shapes, dtypes, attributes, that ids
// are there. What it does not check may be anything, since a container may be damaged or hostile. It throws
// through fail(). It then emits one or more stages that together do the op.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "isa/kernels.h"
#include "program/program.h"
#include "program/stage.h"

namespace qeff {

class OpContext {
 public:
  virtual ~OpContext() = default;
  virtual const Op& op() const = 0;
  virtual const Program& program() const = 0;
  virtual const Kernels& kernels() const = 0;

  // Number of the op in the program, for Step::fail.
  virtual int index() const = 0;
  int num_inputs() const { return static_cast<int>(op().inputs.size()); }
  int num_outputs() const { return static_cast<int>(op().outputs.size()); }
  bool has_input(int i) const { return i < num_inputs() && op().inputs[i] >= 0; }
  // Value id of an input or output; fails when it is absent.
  int input(int i) const;
  int output(int i) const;
  const Value& value(int id) const { return program().values[id]; }
  // Bytes of a plain weight (already checked against its shape), or of a matrix's panels.
  virtual const std::byte* weight_data(int id) const = 0;

  // Attributes; each fails unless present with this type. Floats take whole numbers too.
  int64_t int_attr(const char* name) const;
  double float_attr(const char* name) const;
  bool bool_attr(const char* name) const;
  const std::string& string_attr(const char* name) const;
  std::vector<int64_t> ints_attr(const char* name) const;

  // An unnamed value of `bytes` bytes for each token or row; alive between the stages that name it.
  virtual int make_temporary(ValueKind kind, int64_t bytes) = 0;
  // The rounded form of an f32 value [.., cols] of `groups` rows of `cols` features an entry, made once and shared by
  // every op that asks for it: ids of q, scale and sum, whose entries hold `groups` rows each, rows padded to whole
  // blocks.
  struct Rounded {
    int q, scale, sum;
    int64_t num_blocks;
  };
  virtual Rounded rounded(int value, int64_t groups, int64_t cols) = 0;
  // The output is the same memory as the input, from byte `shift` of each entry on: no stage at all.
  virtual void alias(int output, int input, int64_t shift) = 0;

  // Adds a stage. reads and writes name every value (outputs and temporaries included, weights not) that it touches;
  // caches are named by emit_cache.
  virtual void emit(std::unique_ptr<Stage> stage, std::vector<int> reads, std::vector<int> writes) = 0;
  // The same for a stage that reads or writes cache `cache`.
  virtual void emit_cache(std::unique_ptr<Stage> stage, std::vector<int> reads, std::vector<int> writes,
                          int cache, bool is_write) = 0;

  [[noreturn]] void fail(const std::string& why) const;
  void check(bool holds, const char* why) const {
    if (!holds) fail(why);
  }
};

using Prepare = void (*)(OpContext&);
// The function for an op kind, or null. csrc/ops/registry.cc holds the one table.
Prepare find_prepare(const std::string& kind);

}  // namespace qeff

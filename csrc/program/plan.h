// The plan of a container: which stages run in which phase, and where every value lies. Made once.
//
// A phase is a set of stages that need nothing of each other, so threads share all their items and meet only when it
// ends. Light work, which is done token by token, is chained: one phase runs a list of such stages on one token after
// the other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "isa/kernels.h"
#include "program/program.h"
#include "program/stage.h"
#include "program/weights.h"

namespace qeff {

struct Phase {
  Stage::Over over;
  std::vector<const Stage*> stages;  // kTokens, kRows: in order on each item; kItems: independent
  std::vector<int> ops;              // the op of each stage, for profiles
  Stage::Features features = {};     // of a light phase all of whose stages can cut the same features
};

// Where a value's entries lie: `offset` bytes times the capacity from the start of its arena.
struct Place {
  enum class Where : uint8_t { kTokenArena, kRowArena, kWeight, kTokenIds, kPositions, kLogits };
  Where where = Where::kTokenArena;
  int64_t offset = 0;  // in the arena, for a capacity of one
  int64_t stride = 0;  // bytes from entry to entry
  int64_t shift = 0;   // bytes from the start of an entry, for a part of another value
  const std::byte* weight = nullptr;
};

struct Plan {
  Program program;
  std::vector<std::unique_ptr<Stage>> stages;
  std::vector<Phase> phases;
  std::vector<Place> places;        // by value id, temporaries behind the program's own
  int64_t token_arena_bytes = 0;    // for each token
  int64_t row_arena_bytes = 0;      // for each row
};

// Throws Error(kContainer) for an op that cannot be run as it stands.
Plan make_plan(Program program, const Weights& weights, const Kernels& kernels);

}  // namespace qeff

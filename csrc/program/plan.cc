#include "program/plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "program/arena.h"
#include "program/op_context.h"

namespace qeff {

int OpContext::input(int i) const {
  if (!has_input(i)) fail("lacks input " + std::to_string(i));
  return op().inputs[i];
}

int OpContext::output(int i) const {
  if (i >= num_outputs()) fail("lacks output " + std::to_string(i));
  return op().outputs[i];
}

void OpContext::fail(const std::string& why) const {
  throw Error(ErrorCode::kContainer, "op '" + op().name + "' (" + op().kind + ") " + why);
}

namespace {
const Json& attr(const OpContext& context, const char* name) {
  const Json* found = context.op().attrs.find(name);
  if (found == nullptr) context.fail(std::string("lacks its attribute '") + name + "'");
  return *found;
}
}  // namespace

int64_t OpContext::int_attr(const char* name) const { return attr(*this, name).as_int(); }
double OpContext::float_attr(const char* name) const { return attr(*this, name).as_float(); }
bool OpContext::bool_attr(const char* name) const { return attr(*this, name).as_bool(); }
const std::string& OpContext::string_attr(const char* name) const { return attr(*this, name).as_string(); }
std::vector<int64_t> OpContext::ints_attr(const char* name) const { return attr(*this, name).as_ints(); }

namespace {

// A stage with everything that decides when it may run.
struct Node {
  int stage;  // index into Plan::stages
  int op;
  std::vector<int> reads, writes;  // value ids, aliases resolved
  int cache = -1;
  bool is_cache_write = false;
  bool is_done = false;
};

// Rounds f32 rows to int8 blocks; one for each value that a packed product reads.
class RoundStage final : public Stage {
 public:
  RoundStage(Over over, const LinearKernels& kernels, int x, OpContext::Rounded out, int64_t groups, int64_t cols)
      : Stage(over), kernels_(kernels), x_(x), out_(out), groups_(groups), cols_(cols) {}

  void run(const Step& step, int64_t first, int64_t last, Scratch) const override {
    for (int64_t i = first; i < last; ++i) {
      kernels_.round_activations(step.entry<float>(x_, i), cols_, cols_, 0, groups_, rounded(step, i, 0));
    }
  }
  Features features() const override { return {groups_ == 1 ? cols_ : 0, kBlockLen}; }
  void run_features(const Step& step, int64_t entry, int64_t first, int64_t last) const override {
    const float* x = step.entry<float>(x_, entry) + first;
    kernels_.round_activations(x, cols_, last - first, 0, 1, rounded(step, entry, first / kBlockLen));
  }

 private:
  // From `block` of an entry on.
  RoundedActivations rounded(const Step& step, int64_t i, int64_t block) const {
    return {step.entry<int8_t>(out_.q, i) + block * kBlockLen, step.entry<float>(out_.scale, i) + block,
            step.entry<int32_t>(out_.sum, i) + block, kBlockLen * out_.num_blocks, out_.num_blocks};
  }

  const LinearKernels& kernels_;
  const int x_;
  const OpContext::Rounded out_;
  const int64_t groups_, cols_;
};

class Planner final : public OpContext {
 public:
  Planner(Program program, const Weights& weights, const Kernels& kernels) : kernels_(kernels) {
    plan_.program = std::move(program);
    const auto& values = plan_.program.values;
    kinds_.reserve(values.size());
    for (const Value& value : values) {
      Place place;
      place.where = value.kind == ValueKind::kRow ? Place::Where::kRowArena : Place::Where::kTokenArena;
      if (value.kind == ValueKind::kWeight) {
        place.where = Place::Where::kWeight;
        place.weight = weights.find(value);
      } else {
        if (value.dtype == DType::kPanels)
          throw Error(ErrorCode::kContainer, "program: value '" + value.name + "' is packed but no weight");
        place.stride = round_up(value.size * dtype_bytes(value.dtype));
      }
      add_value(value.kind, place);
    }
    plan_.places[plan_.program.tokens].where = Place::Where::kTokenIds;
    plan_.places[plan_.program.tokens].stride = 8;
    plan_.places[plan_.program.positions].where = Place::Where::kPositions;
    plan_.places[plan_.program.positions].stride = 8;
  }

  Plan run() {
    for (index_ = 0; index_ < static_cast<int>(plan_.program.ops.size()); ++index_) {
      const Prepare prepare = find_prepare(op().kind);
      if (prepare == nullptr) fail("is of a kind that this engine does not know");
      prepare(*this);
    }
    place_logits();
    schedule();
    place_values();
    return std::move(plan_);
  }

  const Op& op() const override { return plan_.program.ops[index_]; }
  const Program& program() const override { return plan_.program; }
  const Kernels& kernels() const override { return kernels_; }
  int index() const override { return index_; }
  const std::byte* weight_data(int id) const override { return plan_.places[id].weight; }

  int make_temporary(ValueKind kind, int64_t bytes) override {
    Place place;
    place.where = kind == ValueKind::kRow ? Place::Where::kRowArena : Place::Where::kTokenArena;
    place.stride = round_up(bytes);
    return add_value(kind, place);
  }

  Rounded rounded(int value, int64_t groups, int64_t cols) override {
    const auto key = std::tuple(value, groups, cols);
    if (const auto found = rounded_.find(key); found != rounded_.end()) return found->second;
    const ValueKind kind = kinds_[value];
    const int64_t blocks = (cols + kBlockLen - 1) / kBlockLen;
    const Rounded made{make_temporary(kind, groups * blocks * kBlockLen), make_temporary(kind, groups * blocks * 4),
                       make_temporary(kind, groups * blocks * 4), blocks};
    const auto over = kind == ValueKind::kRow ? Stage::Over::kRows : Stage::Over::kTokens;
    emit(std::make_unique<RoundStage>(over, *kernels_.linear, value, made, groups, cols), {value},
         {made.q, made.scale, made.sum});
    rounded_.emplace(key, made);
    return made;
  }

  void alias(int output, int input, int64_t shift) override {
    plan_.places[output] = plan_.places[input];
    plan_.places[output].shift += shift;
    roots_[output] = roots_[input];
  }

  void emit(std::unique_ptr<Stage> stage, std::vector<int> reads, std::vector<int> writes) override {
    emit_cache(std::move(stage), std::move(reads), std::move(writes), -1, false);
  }

  void emit_cache(std::unique_ptr<Stage> stage, std::vector<int> reads, std::vector<int> writes, int cache,
                  bool is_write) override {
    const int index = static_cast<int>(plan_.stages.size());
    plan_.stages.push_back(std::move(stage));
    for (int& id : reads) id = roots_[id];
    for (int& id : writes) id = roots_[id];
    nodes_.push_back({index, index_, std::move(reads), std::move(writes), cache, is_write});
  }

 private:
  static int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  int add_value(ValueKind kind, const Place& place) {
    const int id = static_cast<int>(plan_.places.size());
    plan_.places.push_back(place);
    kinds_.push_back(kind);
    roots_.push_back(id);
    return id;
  }

  // The logits lie in the caller's memory, unless they are a part of another value.
  void place_logits() {
    const int logits = plan_.program.logits;
    if (roots_[logits] != logits) return;
    for (size_t id = 0; id < roots_.size(); ++id) {
      if (roots_[id] != logits) continue;
      plan_.places[id].where = Place::Where::kLogits;
      plan_.places[id].stride = plan_.program.values[logits].size * 4;
    }
  }

  // Everything that must be done before a stage, counted; and who waits for it.
  void connect(std::vector<int>* num_waits, std::vector<std::vector<int>>* waiters) {
    std::vector<std::vector<int>> writers(plan_.places.size());
    std::vector<int> cache_writers(plan_.program.caches.size(), -1);
    num_waits->assign(nodes_.size(), 0);
    waiters->assign(nodes_.size(), {});
    const auto add = [&](int before, int after) {
      (*waiters)[before].push_back(after);
      ++(*num_waits)[after];
    };
    for (int n = 0; n < static_cast<int>(nodes_.size()); ++n) {
      const Node& node = nodes_[n];
      for (const int id : node.reads) {
        for (const int writer : writers[id]) add(writer, n);
      }
      if (node.cache >= 0) {
        if (!node.is_cache_write) {
          if (cache_writers[node.cache] < 0)
            throw Error(ErrorCode::kContainer, "program: a cache is read that nothing wrote");
          add(cache_writers[node.cache], n);
        }
        if (node.is_cache_write) {
          if (cache_writers[node.cache] >= 0) throw Error(ErrorCode::kContainer, "program: a cache is written twice");
          cache_writers[node.cache] = n;
        }
      }
      for (const int id : node.writes) writers[id].push_back(n);
    }
  }

  // Light stages run as soon as they can, heavy ones together when nothing light is left.
  void schedule() {
    std::vector<int> num_waits;
    std::vector<std::vector<int>> waiters;
    connect(&num_waits, &waiters);
    std::vector<int> ready;
    for (int n = 0; n < static_cast<int>(nodes_.size()); ++n) {
      if (num_waits[n] == 0) ready.push_back(n);
    }
    size_t num_done = 0;
    const auto finish = [&](int n) {
      ++num_done;
      for (const int waiter : waiters[n]) {
        if (--num_waits[waiter] == 0) ready.insert(std::upper_bound(ready.begin(), ready.end(), waiter), waiter);
      }
    };
    while (!ready.empty()) {
      Phase phase{Stage::Over::kItems, {}, {}, {}};
      for (const auto over : {Stage::Over::kTokens, Stage::Over::kRows}) {
        if (!phase.stages.empty()) break;
        phase.over = over;
        // A light stage becomes ready when the one before it in the same chain is done.
        for (size_t i = 0; i < ready.size();) {
          const int n = ready[i];
          if (plan_.stages[nodes_[n].stage]->over() != over) { ++i; continue; }
          ready.erase(ready.begin() + static_cast<int64_t>(i));
          append(&phase, n);
          finish(n);
          i = 0;
        }
      }
      if (phase.stages.empty()) {
        phase.over = Stage::Over::kItems;
        const std::vector<int> together = std::move(ready);
        ready.clear();
        for (const int n : together) append(&phase, n);
        for (const int n : together) finish(n);
      }
      phase.features = common_features(phase);
      plan_.phases.push_back(std::move(phase));
    }
    if (num_done != nodes_.size()) throw Error(ErrorCode::kContainer, "program: its ops wait for each other");
  }

  static Stage::Features common_features(const Phase& phase) {
    Stage::Features common = phase.stages[0]->features();
    for (const Stage* stage : phase.stages) {
      const Stage::Features features = stage->features();
      if (features.count != common.count) return {};
      common.grain = std::lcm(common.grain, features.grain);
    }
    return common;
  }

  void append(Phase* phase, int n) {
    phase->stages.push_back(plan_.stages[nodes_[n].stage].get());
    phase->ops.push_back(nodes_[n].op);
    const int number = static_cast<int>(plan_.phases.size());
    for (const auto* ids : {&nodes_[n].reads, &nodes_[n].writes}) {
      for (const int id : *ids) lives_.note(id, number);
    }
  }

  void place_values() {
    for (const auto where : {Place::Where::kTokenArena, Place::Where::kRowArena}) {
      ArenaLayout layout;
      for (const auto& [id, life] : lives_.sorted()) {
        if (plan_.places[id].where == where) plan_.places[id].offset = layout.place(life, plan_.places[id].stride);
      }
      (where == Place::Where::kTokenArena ? plan_.token_arena_bytes : plan_.row_arena_bytes) = layout.bytes();
    }
    for (size_t id = 0; id < roots_.size(); ++id) plan_.places[id].offset = plan_.places[roots_[id]].offset;
  }

  Plan plan_;
  const Kernels& kernels_;
  int index_ = 0;
  std::vector<ValueKind> kinds_;  // by value id
  std::vector<int> roots_;        // by value id: whose memory it is
  std::vector<Node> nodes_;
  std::map<std::tuple<int, int64_t, int64_t>, Rounded> rounded_;
  Lives lives_;
};

}  // namespace

Plan make_plan(Program program, const Weights& weights, const Kernels& kernels) {
  return Planner(std::move(program), weights, kernels).run();
}

}  // namespace qeff

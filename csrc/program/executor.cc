#include "program/executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace qeff {

namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorCode::kRequest, why); }

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

constexpr int64_t kMostBytes = int64_t{1} << 46;  // of the caches, and of an arena

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

Program read_program(const std::string& folder) {
  const MappedFile file(folder + "/program.json");
  return load_program(file.text());
}

}  // namespace

Executor::Executor(const std::string& folder, int num_threads, const std::string& isa)
    : kernels_(choose_kernels(isa)),
      weights_(folder + "/weights.safetensors"),
      plan_(make_plan(read_program(folder), weights_, kernels_)),
      pool_(num_threads > 0 ? num_threads : count_physical_cores()),
      scratch_(static_cast<size_t>(pool_.num_threads())),
      placements_(plan_.places.size()),
      taken_(new Taken[static_cast<size_t>(pool_.num_threads())]) {
  for (const CacheLayer& layer : plan_.program.caches) {
    const int64_t head = kernels_.attention->head_bytes(plan_.program.cache_format, layer.key_dim, layer.value_dim);
    caches_.push_back({plan_.program.cache_format, layer.num_kv_heads, layer.key_dim, layer.value_dim, nullptr,
                       head * layer.num_kv_heads, head});
  }
  choosing_.resize(scratch_.size());
  step_.caches = caches_.data();
  step_.num_threads = pool_.num_threads();
  step_.placements = placements_.data();
}

void Executor::reserve(int64_t num_blocks) {
  if (num_blocks < 0 || num_blocks > INT32_MAX) refuse("the number of cache blocks is out of range");
  for (CacheView& cache : caches_) cache.data = nullptr;
  cache_memory_ = AlignedMemory();
  num_blocks_ = 0;
  int64_t bytes = 0;
  for (const CacheView& cache : caches_) {
    if (num_blocks > (kMostBytes - bytes) / cache.block_stride)
      throw Error(ErrorCode::kResource, "the caches are too large");
    bytes += aligned(num_blocks * cache.block_stride);
  }
  cache_memory_ = AlignedMemory(static_cast<size_t>(bytes));
  uint8_t* data = reinterpret_cast<uint8_t*>(cache_memory_.data());
  for (CacheView& cache : caches_) {
    cache.data = data;
    data += aligned(num_blocks * cache.block_stride);
  }
  num_blocks_ = num_blocks;
}

void Executor::copy_block(int64_t from, int64_t to) {
  if (from < 0 || to < 0 || from >= num_blocks_ || to >= num_blocks_) refuse("there is no such cache block");
  if (from == to) return;
  for (const CacheView& cache : caches_)
    std::memcpy(cache.data + to * cache.block_stride, cache.data + from * cache.block_stride,
                static_cast<size_t>(cache.block_stride));
}

void Executor::copy_row(int64_t from, int64_t to) {
  const int64_t num_rows = num_blocks_ * kCacheBlockLen;
  if (from < 0 || to < 0 || from >= num_rows || to >= num_rows) refuse("there is no such cache row");
  if (from == to) return;
  for (const CacheView& cache : caches_) kernels_.attention->copy_row(cache, from, to);
}

int64_t Executor::block_bytes() const {
  int64_t bytes = 0;
  for (const CacheView& cache : caches_) bytes += cache.block_stride;
  return bytes;
}

void Executor::check(const StepInput& input) const {
  int64_t end = 0;
  for (int64_t s = 0; s < input.num_spans; ++s) {
    const SpanInput& span = input.spans[s];
    if (span.start != end || span.stop <= span.start || span.stop > input.num_tokens)
      refuse("the spans do not cover the tokens in order");
    end = span.stop;
    const int64_t first = input.positions[span.start];
    if (first < 0 || first > INT32_MAX) refuse("a position is out of range");
    if ((first + (span.stop - span.start) - 1) / kCacheBlockLen >= span.num_blocks)
      refuse("a sequence has too few cache blocks for its tokens");
    for (int64_t i = 0; i < span.num_blocks; ++i) {
      if (span.blocks[i] < 0 || span.blocks[i] >= num_blocks_)
        refuse("a sequence names a cache block that does not exist");
    }
    for (int64_t t = span.start; t < span.stop; ++t) {
      if (input.parents == nullptr) {
        if (input.positions[t] != first + (t - span.start)) refuse("positions must rise by one within a sequence");
        continue;
      }
      const int32_t parent = input.parents[t];
      if (parent != -1 && (parent < span.start || parent >= t))
        refuse("a token's parent must come before it in its sequence");
      const int64_t expected = parent == -1 ? first : input.positions[parent] + 1;
      if (input.positions[t] != expected) refuse("a token's position must follow its parent's");
    }
  }
  if (end != input.num_tokens) refuse("the spans do not cover the tokens in order");
  for (int64_t r = 0; input.choices != nullptr && r < input.num_rows; ++r) {
    const Choice& choice = input.choices[r];
    const bool is_sound = std::isfinite(choice.temperature) && choice.top_p > 0 && choice.top_p <= 1 &&
                          choice.min_p >= 0 && choice.min_p <= 1 && choice.top_k >= 0;
    if (choice.temperature >= 0 && !is_sound) refuse("a token is to be chosen by settings that are out of range");
    if (std::isnan(choice.temperature)) refuse("a temperature is not a number");
  }
  for (int64_t r = 0; r < input.num_rows; ++r) {
    if (input.rows[r] < 0 || input.rows[r] >= input.num_tokens) refuse("a row names a token that is not in the step");
  }
}

namespace {
constexpr int64_t kSlice = 1 << 13;  // of a row of logits, that one thread looks through

int64_t num_slices(int64_t vocab_size) { return (vocab_size + kSlice - 1) / kSlice; }

// Room for this many entries of an arena.
AlignedMemory arena(int64_t count, int64_t entry_bytes) {
  if (entry_bytes != 0 && count > kMostBytes / entry_bytes)
    throw Error(ErrorCode::kResource, "the step is too large");
  return AlignedMemory(static_cast<size_t>(count * entry_bytes));
}
}  // namespace

void Executor::prepare_spans(const StepInput& input) {
  spans_.clear();
  row_spans_.clear();
  for (int64_t s = 0; s < input.num_spans; ++s) {
    const SpanInput& span = input.spans[s];
    spans_.push_back({span.start, span.stop, input.positions[span.start], span.blocks});
  }
  // Rows may come in any order; neighbours that are neighbours in a sequence attend together.
  for (int64_t r = 0; r < input.num_rows; ++r) {
    const int64_t token = input.rows[r];
    if (r > 0 && token == input.rows[r - 1] + 1 && token < row_spans_.back().stop) {
      --row_spans_.back().behind;
      continue;
    }
    SpanView span = *std::upper_bound(spans_.begin(), spans_.end(), token,
                                      [](int64_t t, const SpanView& view) { return t < view.stop; });
    span.before = token - span.start;
    span.behind = span.stop - token - 1;
    span.shift = token - r;
    row_spans_.push_back(span);
  }
}

void Executor::prepare(const StepInput& input, float* logits) {
  if (input.num_tokens > token_capacity_) {
    token_capacity_ = 0;
    token_arena_ = arena(input.num_tokens, plan_.token_arena_bytes);
    token_capacity_ = input.num_tokens;
  }
  if (input.num_rows > row_capacity_) {
    row_capacity_ = 0;
    row_arena_ = arena(input.num_rows, plan_.row_arena_bytes);
    row_capacity_ = input.num_rows;
  }
  prepare_spans(input);
  for (size_t id = 0; id < placements_.size(); ++id) {
    const Place& place = plan_.places[id];
    const auto shifted = [&place](std::byte* base, int64_t capacity) {
      return base + place.offset * capacity + place.shift;
    };
    // The caller's tokens and positions, and the weights, are only ever read.
    switch (place.where) {
      case Place::Where::kTokenArena:
        placements_[id] = {shifted(token_arena_.data(), token_capacity_), place.stride};
        break;
      case Place::Where::kRowArena: placements_[id] = {shifted(row_arena_.data(), row_capacity_), place.stride}; break;
      case Place::Where::kWeight: placements_[id] = {const_cast<std::byte*>(place.weight), 0}; break;
      case Place::Where::kTokenIds:
        placements_[id] = {reinterpret_cast<std::byte*>(const_cast<int64_t*>(input.tokens)), 8};
        break;
      case Place::Where::kPositions:
        placements_[id] = {reinterpret_cast<std::byte*>(const_cast<int64_t*>(input.positions)), 8};
        break;
      case Place::Where::kLogits:
        placements_[id] = {reinterpret_cast<std::byte*>(logits) + place.shift, place.stride};
        break;
    }
  }
  step_.num_tokens = input.num_tokens;
  step_.num_rows = input.num_rows;
  step_.row_tokens = input.rows;
  step_.positions = input.positions;
  step_.parents = input.parents;
  step_.spans = spans_.data();
  step_.num_spans = input.num_spans;
  step_.row_spans = row_spans_.data();
  step_.num_row_spans = static_cast<int64_t>(row_spans_.size());
  step_.failed_op.store(-1);
  size_t scratch = 0;
  for (const auto& stage : plan_.stages) scratch = std::max(scratch, stage->scratch_bytes(step_));
  for (AlignedMemory& memory : scratch_) {
    if (memory.bytes() < scratch) memory = AlignedMemory(scratch);
  }
  step_stamp_ += static_cast<uint32_t>(plan_.phases.size());
}

void Executor::step(const StepInput& input, float* logits, int64_t* chosen) {
  check(input);
  if (input.num_tokens == 0) return;
  const int id = plan_.program.logits;
  const int64_t size = plan_.program.values[id].size;
  const bool lies_outside = plan_.places[id].where == Place::Where::kLogits;
  choices_ = input.choices;
  chosen_ = chosen;
  float* all = logits;
  if (choices_ != nullptr) {
    slices_.resize(static_cast<size_t>(input.num_rows * num_slices(size)));
    best_.resize(static_cast<size_t>(input.num_rows));
    const auto draws = [](const Choice& choice) { return choice.temperature > 0; };
    if (std::any_of(choices_, choices_ + input.num_rows, draws)) {
      const size_t num_members = std::min(choosing_.size(), static_cast<size_t>(input.num_rows));
      for (size_t member = 0; member < num_members; ++member) choosing_[member].reserve(size);
    }
    const size_t bytes = lies_outside ? static_cast<size_t>(input.num_rows * size) * 4 : 0;
    if (logits_.bytes() < bytes) logits_ = AlignedMemory(bytes);
    all = reinterpret_cast<float*>(logits_.data());
  }
  prepare(input, all);
  pool_.run([](void* self, int member) { static_cast<Executor*>(self)->run_member(member); }, this);
  const int op = step_.failed_op.load();
  if (op >= 0) {
    refuse("op '" + plan_.program.ops[static_cast<size_t>(op)].name + "' was asked for entry " +
           std::to_string(step_.failed_number.load()) + ", which does not exist");
  }
  if (choices_ == nullptr && lies_outside) return;
  for (int64_t r = 0; r < input.num_rows; ++r) {
    if (choices_ != nullptr && choices_[r].temperature >= 0) continue;
    std::memcpy(logits, step_.entry<float>(id, r), static_cast<size_t>(size) * 4);
    logits += size;
  }
}

void Executor::run_choices(int member) {
  const int id = plan_.program.logits;
  const int64_t size = plan_.program.values[id].size, count = num_slices(size), step = pool_.num_threads();
  for (int64_t s = member; s < step_.num_rows * count; s += step) {
    const int64_t row = s / count, first = s % count * kSlice;
    if (choices_[row].temperature < 0) continue;
    slices_[static_cast<size_t>(s)] =
        kernels_.light->likeliest(step_.entry<float>(id, row) + first, std::min(kSlice, size - first));
  }
  pool_.barrier([this] { join_slices(); });
  for (int64_t row = member; row < step_.num_rows; row += step) {
    const Likeliest best = best_[static_cast<size_t>(row)];
    chosen_[row] = -1;
    if (choices_[row].temperature >= 0 && best.index >= 0)
      chosen_[row] = choose(*kernels_.light, step_.entry<float>(id, row), size, best, choices_[row],
                            choosing_[static_cast<size_t>(member)]);
  }
}

void Executor::join_slices() {
  const int64_t count = num_slices(plan_.program.values[plan_.program.logits].size);
  for (int64_t row = 0; row < step_.num_rows; ++row) {
    if (choices_[row].temperature < 0) continue;
    const Likeliest* slices = slices_.data() + row * count;
    int64_t best = 0;
    bool is_number = true;
    for (int64_t s = 0; s < count; ++s) {
      is_number &= slices[s].index >= 0;
      if (slices[s].value > slices[best].value) best = s;
    }
    is_number &= std::isfinite(slices[best].value);
    const int64_t index = is_number ? best * kSlice + slices[best].index : -1;
    best_[static_cast<size_t>(row)] = {index, slices[best].value};
  }
}

// A phase that cannot be shared, such as the norm of a single token, is run by whoever arrives last at the end of
// the phase before it: the others wait once instead of twice.
void Executor::run_member(int member) {
  const bool is_timed = is_profiling_ && member == 0;
  size_t index = skip_alone(0);
  pool_.barrier([&] { run_alone(0, index, member); });
  while (index < plan_.phases.size()) {
    const int64_t before = is_timed ? now_ns() : 0;
    run_phase(index, member);
    const size_t next = skip_alone(index + 1);
    pool_.barrier([&] { run_alone(index + 1, next, member); });
    if (is_timed) profile_[index] += now_ns() - before - alone_ns_;
    index = next;
  }
  if (choices_ != nullptr) run_choices(member);
}

size_t Executor::skip_alone(size_t index) const {
  while (index < plan_.phases.size() && num_chunks(plan_.phases[index]) <= 1) ++index;
  return index;
}

void Executor::run_alone(size_t first, size_t last, int member) {
  const int64_t start = is_profiling_ ? now_ns() : 0;
  int64_t before = start;
  for (size_t index = first; index < last; ++index) {
    run_phase(index, member);
    if (!is_profiling_) continue;
    const int64_t after = now_ns();
    profile_[index] += after - before;
    before = after;
  }
  alone_ns_ = before - start;
}

namespace {

int64_t cost_of_item(const Stage& stage, const Step& step) { return std::max<int64_t>(1, stage.item_cost(step)); }

// How a phase is cut. A chunk is a part of the whole cost, whatever stages it falls on, so that all are alike.
struct Cut {
  int64_t cost, num_chunks;
  int64_t begin_of(int64_t chunk) const {
    // In two parts: the product of a cost and a number of chunks may not fit.
    return cost / num_chunks * chunk + cost % num_chunks * chunk / num_chunks;
  }
};

Cut cut_of_items(const Phase& phase, const Step& step, int num_members) {
  int64_t cost = 0, items = 0, calls = INT32_MAX;
  for (const Stage* stage : phase.stages) {
    items += stage->num_items(step);
    cost += stage->num_items(step) * cost_of_item(*stage, step);
    calls = std::min(calls, stage->calls_per_thread(step));
  }
  return {cost, std::min(items, calls * num_members)};
}

// How many items of a stage lie before `place` of the phase's cost, where the stage begins at `start`: those whose
// middle does.
int64_t items_before(int64_t place, int64_t start, int64_t item_cost, int64_t num_items) {
  return std::clamp<int64_t>((2 * (place - start) + item_cost) / (2 * item_cost), 0, num_items);
}

// Light work is cut into short runs of tokens or rows, and where there are fewer of them than members into parts of
// each, if that saves more than another barrier costs.
struct LightCut {
  static constexpr int64_t kFewestFeatures = 1024;

  LightCut(const Phase& phase, const Step& step, int num_members)
      : count(phase.over == Stage::Over::kRows ? step.num_rows : step.num_tokens),
        grain(std::clamp<int64_t>(count / (4 * num_members), 1, 16)) {
    if (count >= num_members || phase.features.count < kFewestFeatures) return;
    const int64_t most = (phase.features.count + phase.features.grain - 1) / phase.features.grain;
    num_parts = std::min(most, num_members / std::max<int64_t>(1, count));
    part = (most + num_parts - 1) / num_parts * phase.features.grain;
  }
  int64_t num_chunks() const { return (count + grain - 1) / grain * num_parts; }

  int64_t count, grain;
  int64_t num_parts = 1, part = 0;  // of an entry, and features of each
};

}  // namespace

int64_t Executor::num_chunks(const Phase& phase) const {
  if (phase.over == Stage::Over::kItems) return cut_of_items(phase, step_, num_threads()).num_chunks;
  return LightCut(phase, step_, num_threads()).num_chunks();
}

int64_t Executor::Taken::next(uint32_t phase, int64_t num_chunks) {
  uint64_t seen = state.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t count = seen >> 32 == phase ? seen & UINT32_MAX : 0;
    if (count >= static_cast<uint64_t>(num_chunks)) return -1;
    const uint64_t after = (static_cast<uint64_t>(phase) << 32) + count + 1;
    if (state.compare_exchange_weak(seen, after, std::memory_order_relaxed)) return static_cast<int64_t>(count);
  }
}

// Chunks are cut into one run for each member. A member takes its own run from first to last, so that it streams
// through memory, and then helps the others with theirs.
void Executor::run_phase(size_t index, int member) {
  const Phase& phase = plan_.phases[index];
  const int num_members = num_threads();
  const AlignedMemory& memory = scratch_[static_cast<size_t>(member)];
  const Scratch scratch{memory.data(), memory.bytes()};
  const int64_t total = num_chunks(phase);
  if (total == 1) return run_chunk(phase, 0, scratch);
  for (int turn = 0; turn < num_members; ++turn) {
    const int owner = (member + turn) % num_members;
    const int64_t begin = total * owner / num_members;
    const int64_t end = total * (owner + 1) / num_members;
    Taken& taken = taken_[static_cast<size_t>(owner)];
    const uint32_t stamp = step_stamp_ + static_cast<uint32_t>(index);
    for (int64_t chunk; (chunk = taken.next(stamp, end - begin)) >= 0;) run_chunk(phase, begin + chunk, scratch);
  }
}

void Executor::run_chunk(const Phase& phase, int64_t chunk, Scratch scratch) const {
  if (phase.over != Stage::Over::kItems) {
    const LightCut cut(phase, step_, num_threads());
    if (cut.num_parts > 1) {  // the grain is one entry
      const int64_t first = std::min(chunk % cut.num_parts * cut.part, phase.features.count);
      const int64_t last = std::min(first + cut.part, phase.features.count);
      for (const Stage* stage : phase.stages) stage->run_features(step_, chunk / cut.num_parts, first, last);
      return;
    }
    const int64_t first = chunk * cut.grain, last = std::min(first + cut.grain, cut.count);
    for (const Stage* stage : phase.stages) stage->run(step_, first, last, scratch);
    return;
  }
  const Cut cut = cut_of_items(phase, step_, num_threads());
  const int64_t begin = cut.begin_of(chunk), end = cut.begin_of(chunk + 1);
  int64_t start = 0;
  for (const Stage* stage : phase.stages) {
    const int64_t num_items = stage->num_items(step_), item_cost = cost_of_item(*stage, step_);
    const int64_t first = items_before(begin, start, item_cost, num_items);
    const int64_t last = items_before(end, start, item_cost, num_items);
    if (first < last) stage->run(step_, first, last, scratch);
    start += num_items * item_cost;
  }
}

void Executor::set_profiling(bool is_on) {
  is_profiling_ = is_on;
  profile_.assign(is_on ? plan_.phases.size() : 0, 0);
}

std::vector<int64_t> Executor::take_profile() {
  std::vector<int64_t> result = profile_;
  std::fill(profile_.begin(), profile_.end(), 0);
  return result;
}

}  // namespace qeff

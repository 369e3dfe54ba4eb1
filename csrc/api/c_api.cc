// The C API: turns C arguments into the executor's and exceptions into codes. Nothing else lives here.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include "base/error.h"
#include "include/qeff.h"
#include "isa/limits.h"
#include "program/executor.h"

struct qeff_session {
  qeff::Executor executor;
  std::string profile;  // a profile that was made and not yet fetched
  std::vector<qeff::SpanInput> spans;
  std::vector<qeff::Choice> choices;
};

namespace {

void put(char* out, size_t size, const char* text) {
  if (out != nullptr && size != 0) std::snprintf(out, size, "%s", text);
}

[[noreturn]] void refuse(const char* why) { throw qeff::Error(qeff::ErrorCode::kRequest, why); }

qeff_session& opened(qeff_session* session) {
  if (session == nullptr) refuse("there is no open session");
  return *session;
}

// Whether there are `count` elements to be read or written.
bool is_there(const void* data, int64_t count) { return count == 0 || (count > 0 && data != nullptr); }

// Sizes, and that every array is there. What the numbers in them say is checked by the executor.
void check_arrays(const qeff_batch* batch, const float* logits, const int64_t* chosen) {
  if (batch == nullptr) refuse("there is no step");
  const qeff_batch& step = *batch;
  constexpr int64_t kMost = 1 << 24;
  if (step.num_tokens < 0 || step.num_tokens > kMost || step.num_spans < 0 || step.num_spans > step.num_tokens ||
      step.num_rows < 0 || step.num_rows > kMost)
    refuse("the sizes of the step are out of range");
  bool is_whole = is_there(step.tokens, step.num_tokens) && is_there(step.positions, step.num_tokens) &&
                  is_there(step.spans, step.num_spans) && is_there(step.rows, step.num_rows) &&
                  (step.choices == nullptr || is_there(chosen, step.num_rows));
  for (int64_t i = 0; is_whole && i < step.num_spans; ++i)
    is_whole = is_there(step.spans[i].blocks, step.spans[i].num_blocks);
  for (int64_t r = 0; is_whole && logits == nullptr && r < step.num_rows; ++r)
    is_whole = step.choices != nullptr && !(step.choices[r].temperature < 0);
  if (!is_whole) refuse("an array of the step is missing");
}

// Runs `body` and gives its error as a code.
template <typename Body>
int guarded(char* error, size_t error_size, Body&& body) {
  try {
    body();
    return QEFF_OK;
  } catch (const qeff::Error& e) {
    put(error, error_size, e.what());
    return static_cast<int>(e.code());
  } catch (const std::bad_alloc&) {
    put(error, error_size, "there is not enough memory");
    return QEFF_NO_RESOURCE;
  } catch (const std::exception& e) {
    put(error, error_size, e.what());
    return QEFF_INTERNAL;
  }
}

const char* name_of(qeff::CacheFormat format) {
  switch (format) {
    case qeff::CacheFormat::kF32: return "fp32";
    case qeff::CacheFormat::kF16: return "fp16";
    case qeff::CacheFormat::kMXINT8: return "mxint8";
  }
  return "";
}

void append_quoted(std::string* out, const std::string& text) {
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') out->push_back('\\');
    out->push_back(static_cast<unsigned char>(c) < 0x20 ? ' ' : c);
  }
  out->push_back('"');
}

std::string profile_json(qeff::Executor& executor) {
  const std::vector<int64_t> times = executor.take_profile();
  std::string out = "[";
  for (size_t i = 0; i < times.size(); ++i) {
    const qeff::Phase& phase = executor.plan().phases[i];
    out += i == 0 ? "[[" : ",[[";
    for (size_t j = 0; j < phase.ops.size(); ++j) {
      const qeff::Op& op = executor.plan().program.ops[static_cast<size_t>(phase.ops[j])];
      out += j == 0 ? "[" : ",[";
      append_quoted(&out, op.kind);
      out += ",";
      append_quoted(&out, op.name);
      out += "]";
    }
    out += "],";
    out += std::to_string(times[i]);
    out += "]";
  }
  out += "]";
  return out;
}

}  // namespace

extern "C" {

int32_t qeff_api_version(void) { return QEFF_API_VERSION; }

const char* qeff_isas(void) {
  static const std::string names = [] {
    std::string joined;
    for (const qeff::Kernels& kernels : qeff::available_kernels()) {
      if (!joined.empty()) joined += ',';
      joined += kernels.isa;
    }
    return joined;
  }();
  return names.c_str();
}

qeff_session* qeff_open(const char* folder, const qeff_options* options, int* code, char* error, size_t error_size) {
  qeff_session* session = nullptr;
  const int result = guarded(error, error_size, [&] {
    const int threads = options == nullptr ? 0 : options->num_threads;
    const char* isa = options == nullptr || options->isa == nullptr ? "" : options->isa;
    if (folder == nullptr) refuse("there is no folder");
    if (threads < 0 || threads > 1024) refuse("the number of threads must lie between 0 and 1024");
    session = new qeff_session{qeff::Executor(folder, threads, isa), {}, {}, {}};
  });
  if (code != nullptr) *code = result;
  return session;
}

void qeff_close(qeff_session* session) { delete session; }

void qeff_describe(const qeff_session* session, qeff_info* info) {
  const qeff::Executor& executor = session->executor;
  const qeff::Plan& plan = executor.plan();
  *info = {};
  info->vocab_size = plan.program.values[static_cast<size_t>(plan.program.logits)].size;
  info->block_len = qeff::kCacheBlockLen;
  info->block_bytes = executor.block_bytes();
  info->weights_bytes = executor.weights_bytes();
  info->token_bytes = plan.token_arena_bytes;
  info->num_threads = executor.num_threads();
  put(info->isa, sizeof info->isa, executor.kernels().isa);
  put(info->kv_format, sizeof info->kv_format, name_of(plan.program.cache_format));
}

int qeff_reserve(qeff_session* session, int64_t num_blocks, char* error, size_t error_size) {
  return guarded(error, error_size, [&] { opened(session).executor.reserve(num_blocks); });
}

int qeff_step(qeff_session* session, const qeff_batch* batch, float* logits, int64_t* chosen, char* error,
              size_t error_size) {
  return guarded(error, error_size, [&] {
    opened(session);
    check_arrays(batch, logits, chosen);
    session->spans.clear();
    for (int64_t i = 0; i < batch->num_spans; ++i) {
      const qeff_span& span = batch->spans[i];
      session->spans.push_back({span.start, span.stop, span.blocks, span.num_blocks});
    }
    session->choices.clear();
    for (int64_t i = 0; batch->choices != nullptr && i < batch->num_rows; ++i) {
      const qeff_choice& one = batch->choices[i];
      session->choices.push_back(
          {one.temperature, one.top_p, one.min_p, one.top_k, {one.key0, one.key1}, one.index});
    }
    const bool has_choices = batch->choices != nullptr;
    session->executor.step({batch->tokens, batch->positions, batch->num_tokens, session->spans.data(), batch->num_spans,
                            batch->rows, batch->num_rows, batch->parents,
                            has_choices ? session->choices.data() : nullptr},
                           logits, chosen);
  });
}

int qeff_copy_blocks(qeff_session* session, const int32_t* pairs, int64_t num_pairs, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    qeff::Executor& executor = opened(session).executor;
    if (!is_there(pairs, num_pairs)) refuse("the array of pairs is missing");
    for (int64_t i = 0; i < num_pairs; ++i) executor.copy_block(pairs[2 * i], pairs[2 * i + 1]);
  });
}

int qeff_copy_rows(qeff_session* session, const int64_t* pairs, int64_t num_pairs, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    qeff::Executor& executor = opened(session).executor;
    if (!is_there(pairs, num_pairs)) refuse("the array of pairs is missing");
    for (int64_t i = 0; i < num_pairs; ++i) executor.copy_row(pairs[2 * i], pairs[2 * i + 1]);
  });
}

void qeff_profile(qeff_session* session, int32_t is_on) {
  if (session == nullptr) return;
  session->executor.set_profiling(is_on != 0);
  session->profile.clear();
}

size_t qeff_take_profile(qeff_session* session, char* json, size_t size) {
  if (session == nullptr) return 0;
  if (session->profile.empty()) session->profile = profile_json(session->executor);
  const size_t needed = session->profile.size() + 1;
  if (json != nullptr && size >= needed) {
    std::memcpy(json, session->profile.c_str(), needed);
    session->profile.clear();
  }
  return needed;
}

int qeff_measure_limits(int32_t num_threads, double* bytes_per_second, double* int8_products_per_second) {
  return guarded(nullptr, 0, [&] {
    const qeff::Limits limits = qeff::measure_limits(num_threads);
    *bytes_per_second = limits.bytes_per_second;
    *int8_products_per_second = limits.int8_products_per_second;
  });
}

}  // extern "C"

// The executor on a small decoder that this file writes to disk: right against double precision, the same bits with any
// number of threads and any cut of the prompt, two sessions at once, and refusals that leave the session usable.
#include "program/executor.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace qeff {
namespace {

using Floats = std::vector<float>;
using Ids = std::vector<int64_t>;

constexpr int64_t kVocab = 48, kWidth = 32, kHeads = 4, kKvHeads = 2, kDim = 8;
constexpr int64_t kMiddle = 1060;  // enough that threads share the gate of one token
constexpr int64_t kLen = 45;  // tokens of a prompt: more than one cache block
constexpr float kScale = 0.35f;

int num_failures = 0;
std::mutex failures_mutex;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  const std::lock_guard<std::mutex> lock(failures_mutex);
  std::printf("FAILED: %s\n", what.c_str());
  ++num_failures;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// ---- The decoder: embed, one layer of attention and MLP, head.

struct Matrix {
  std::string name;
  int64_t rows, cols;
  Floats data;  // row-major
};

struct Decoder {
  std::vector<Matrix> matrices;

  Decoder() {
    uint32_t seed = 1;
    for (const auto& [name, rows, cols] : {std::tuple{"table", kVocab, kWidth},
                                           {"q", kHeads * kDim, kWidth},
                                           {"k", kKvHeads * kDim, kWidth},
                                           {"v", kKvHeads * kDim, kWidth},
                                           {"o", kWidth, kHeads * kDim},
                                           {"gate", kMiddle, kWidth},
                                           {"up", kMiddle, kWidth},
                                           {"down", kWidth, kMiddle},
                                           {"head", kVocab, kWidth}}) {
      std::mt19937 random(seed++);
      std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(cols)));
      Matrix matrix{name, rows, cols, Floats(static_cast<size_t>(rows * cols))};
      for (float& x : matrix.data) x = normal(random);
      matrices.push_back(matrix);
    }
  }
  const Matrix& find(const std::string& name) const {
    for (const Matrix& matrix : matrices) {
      if (matrix.name == name) return matrix;
    }
    std::abort();
  }
};

// The bytes of a matrix in panels of f32: 16 rows, column by column (docs/panels.md).
Floats panels(const Matrix& matrix) {
  const int64_t num_panels = (matrix.rows + 15) / 16;
  Floats out(static_cast<size_t>(num_panels * 16 * matrix.cols), 0.0f);
  for (int64_t r = 0; r < matrix.rows; ++r) {
    for (int64_t c = 0; c < matrix.cols; ++c)
      out[static_cast<size_t>((r / 16 * matrix.cols + c) * 16 + r % 16)] =
          matrix.data[static_cast<size_t>(r * matrix.cols + c)];
  }
  return out;
}

// The same in panels of q8_0, with a scale of 2^-5 everywhere.
std::string panels_of_int8(const Matrix& matrix) {
  const int64_t num_panels = (matrix.rows + 15) / 16, num_blocks = (matrix.cols + 31) / 32;
  std::string out(static_cast<size_t>(num_panels * num_blocks * 544), '\0');
  for (int64_t r = 0; r < num_panels * 16; ++r) {
    for (int64_t b = 0; b < num_blocks; ++b) {
      char* block = &out[static_cast<size_t>((r / 16 * num_blocks + b) * 544)];
      block[2 * (r % 16) + 1] = 0x28;  // of the half 0x2800
      for (int64_t k = 0; k < 32 && r < matrix.rows && 32 * b + k < matrix.cols; ++k) {
        const float x = matrix.data[static_cast<size_t>(r * matrix.cols + 32 * b + k)];
        const float code = std::fmin(127.0f, std::fmax(-127.0f, std::nearbyint(x * 32)));
        block[32 + k / 4 * 64 + r % 16 * 4 + k % 4] = static_cast<char>(static_cast<int8_t>(code));
      }
    }
  }
  return out;
}

// int8: the name of the matrix that is stored as q8_0, if any.
void write_weights(const std::string& folder, const Decoder& decoder, const std::string& int8) {
  std::string header = "{", bytes;
  for (const Matrix& matrix : decoder.matrices) {
    const Floats data = panels(matrix);
    const std::string packed =
        matrix.name == int8 ? panels_of_int8(matrix)
                            : std::string(reinterpret_cast<const char*>(data.data()), data.size() * 4);
    const size_t start = bytes.size();
    bytes += packed;
    header += (start == 0 ? "\"" : ",\"") + matrix.name + "\":{\"dtype\":\"U8\",\"shape\":[" +
              std::to_string(packed.size()) + "],\"data_offsets\":[" + std::to_string(start) + "," +
              std::to_string(bytes.size()) + "]}";
    bytes.resize((bytes.size() + 63) / 64 * 64);
  }
  header += "}";
  while ((8 + header.size()) % 64 != 0) header += ' ';
  const uint64_t length = header.size();
  std::ofstream file(folder + "/weights.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), 8);
  file << header << bytes;
}

// Builds program.json value by value; indices are those of the list.
struct Writer {
  std::string values, ops;
  int num_values = 0;

  int value(const std::string& name, const char* kind, const Ids& shape, const char* dtype = "f32") {
    std::string sizes;
    for (const int64_t n : shape) sizes += (sizes.empty() ? "" : ",") + std::to_string(n);
    values += (num_values == 0 ? "[\"" : ",[\"") + name + "\",\"" + kind + "\",[" + sizes + "],\"" + dtype + "\"]";
    return num_values++;
  }
  int op(const std::string& kind, const std::vector<int>& inputs, const Ids& shape, const std::string& attrs,
         const char* of = "token") {
    const int out = value(kind + std::to_string(num_values), of, shape);
    std::string ids;
    for (const int id : inputs) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    ops += (ops.empty() ? "[\"" : ",[\"") + kind + "\",\"op" + std::to_string(out) + "\",[" + ids + "],[" +
           std::to_string(out) + "],{" + attrs + "}]";
    return out;
  }
};

void write_program(const std::string& folder, const Decoder& decoder, const std::string& int8) {
  Writer w;
  const int tokens = w.value("tokens", "token", {}, "i64");
  const int positions = w.value("positions", "token", {}, "i64");
  const auto weight = [&](const char* name) {
    const Matrix& matrix = decoder.find(name);
    return w.value(name, "weight", {matrix.rows, matrix.cols}, name == int8 ? "q8_0" : "f32");
  };
  const auto linear = [&](int x, const char* name, const char* of = "token") {
    const int matrix = weight(name);
    return w.op("linear", {x, matrix}, {decoder.find(name).rows}, "\"transposed\":false", of);
  };
  const auto heads = [&](int x, int64_t count) {
    return w.op("reshape", {x}, {count, kDim},
                "\"shape\":[" + std::to_string(count) + "," + std::to_string(kDim) + "]");
  };
  const auto add = [&](int a, int b) { return w.op("binary", {a, b}, {kWidth}, "\"function\":\"add\""); };
  int x = w.op("embed", {weight("table"), tokens}, {kWidth}, "\"offset\":0,\"dtype\":\"f32\"");
  const int q = heads(linear(x, "q"), kHeads), k = heads(linear(x, "k"), kKvHeads), v = heads(linear(x, "v"), kKvHeads);
  const int seen = w.op(
      "attention", {q, k, v}, {kHeads, kDim},
      "\"cache\":0,\"value_dim\":8,\"scale\":" + std::to_string(kScale) + ",\"softcap\":0.0,\"window\":0,\"chunk\":0");
  const int flat = w.op("reshape", {seen}, {kHeads * kDim}, "\"shape\":[" + std::to_string(kHeads * kDim) + "]");
  x = add(x, linear(flat, "o"));
  const int gated = w.op("gated", {linear(x, "gate"), linear(x, "up")}, {kMiddle}, "\"activation\":\"silu\"");
  x = add(x, linear(gated, "down"));
  const int logits = linear(w.op("gather_rows", {x}, {kWidth}, "", "row"), "head", "row");
  std::ofstream(folder + "/program.json")
      << "{\"version\":1,\"engine\":{\"layout\":2,\"kv\":\"fp32\"},\"values\":[" << w.values << "],\"ops\":[" << w.ops
      << "],\"caches\":[{\"num_kv_heads\":" << kKvHeads << ",\"key_dim\":" << kDim << ",\"value_dim\":" << kDim
      << "}],\"tokens\":" << tokens << ",\"positions\":" << positions << ",\"logits\":" << logits << "}";
}

// ---- The same in double precision, without cache, steps or panels.

using Doubles = std::vector<double>;

Doubles product(const Matrix& matrix, const Doubles& x) {
  Doubles y(static_cast<size_t>(matrix.rows), 0.0);
  for (size_t r = 0; r < y.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) y[r] += static_cast<double>(matrix.data[r * x.size() + c]) * x[c];
  }
  return y;
}

std::vector<Doubles> exact_logits(const Decoder& decoder, const Ids& tokens) {
  std::vector<Doubles> keys, values, result;
  for (const int64_t token : tokens) {
    const Matrix& table = decoder.find("table");
    Doubles x(table.data.begin() + token * kWidth, table.data.begin() + (token + 1) * kWidth);
    const Doubles q = product(decoder.find("q"), x);
    keys.push_back(product(decoder.find("k"), x));
    values.push_back(product(decoder.find("v"), x));
    Doubles seen(static_cast<size_t>(kHeads * kDim), 0.0);
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t own = h * kKvHeads / kHeads;
      Doubles weights;
      double total = 0;
      for (const Doubles& key : keys) {
        double score = 0;
        for (int64_t d = 0; d < kDim; ++d)
          score += q[static_cast<size_t>(h * kDim + d)] * key[static_cast<size_t>(own * kDim + d)];
        weights.push_back(std::exp(score * static_cast<double>(kScale)));
        total += weights.back();
      }
      for (size_t j = 0; j < weights.size(); ++j) {
        for (int64_t d = 0; d < kDim; ++d)
          seen[static_cast<size_t>(h * kDim + d)] +=
              weights[j] / total * values[j][static_cast<size_t>(own * kDim + d)];
      }
    }
    const Doubles attended = product(decoder.find("o"), seen);
    for (size_t i = 0; i < x.size(); ++i) x[i] += attended[i];
    Doubles gate = product(decoder.find("gate"), x);
    const Doubles up = product(decoder.find("up"), x);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    const Doubles down = product(decoder.find("down"), gate);
    for (size_t i = 0; i < x.size(); ++i) x[i] += down[i];
    result.push_back(product(decoder.find("head"), x));
  }
  return result;
}

// ---- Driving the executor.

Ids random_tokens(uint32_t seed) {
  std::mt19937 random(seed);
  Ids tokens(kLen);
  for (int64_t& token : tokens) token = static_cast<int64_t>(random() % kVocab);
  return tokens;
}

// Runs two sequences side by side in pieces of the given sizes; the logits of all their tokens, sequence by sequence.
Floats run_two(Executor& executor, const Ids (&sequences)[2], const std::vector<int64_t>& pieces) {
  executor.reserve(4);
  const int32_t blocks[2][2] = {{3, 0}, {1, 2}};
  Floats result(2 * kLen * kVocab);
  int64_t done = 0;
  for (size_t turn = 0; done < kLen; ++turn) {
    const int64_t count = std::min(pieces[turn % pieces.size()], kLen - done);
    Ids tokens, positions, rows;
    std::vector<SpanInput> spans;
    for (int s = 0; s < 2; ++s) {
      spans.push_back({s * count, (s + 1) * count, blocks[s], 2});
      for (int64_t i = 0; i < count; ++i) {
        tokens.push_back(sequences[s][static_cast<size_t>(done + i)]);
        positions.push_back(done + i);
        rows.push_back(s * count + i);
      }
    }
    Floats logits(rows.size() * kVocab);
    StepInput input{tokens.data(), positions.data(), 2 * count, spans.data(), 2,
                    rows.data(),   2 * count,        nullptr,   nullptr};
    executor.step(input, logits.data(), nullptr);
    // The same again, every other row by its likeliest token.
    std::vector<Choice> choices(rows.size(), Choice{0, 1, 0, 0, {0, 0}, 0});
    for (size_t r = 1; r < rows.size(); r += 2) choices[r].temperature = -1;
    Ids chosen(rows.size());
    Floats others(rows.size() / 2 * kVocab);
    input.choices = choices.data();
    executor.step(input, others.data(), chosen.data());
    for (size_t r = 0; r < rows.size(); ++r) {
      const float* row = &logits[r * kVocab];
      const int64_t best = r % 2 == 0 ? std::max_element(row, row + kVocab) - row : -1;
      expect(chosen[r] == best, "the likeliest token of a row");
      if (best < 0) expect(std::memcmp(&others[r / 2 * kVocab], row, kVocab * 4) == 0, "a row without a choice");
    }
    for (int64_t s = 0; s < 2; ++s)
      std::memcpy(&result[static_cast<size_t>((s * kLen + done) * kVocab)],
                  &logits[static_cast<size_t>(s * count * kVocab)], static_cast<size_t>(count * kVocab) * 4);
    done += count;
  }
  return result;
}

void test_against_double(const std::string& folder, const Decoder& decoder, const Ids (&sequences)[2]) {
  for (const Kernels& kernels : available_kernels()) {
    Executor executor(folder, 2, kernels.isa);
    const Floats found = run_two(executor, sequences, {kLen});
    double worst = 0;
    for (size_t s = 0; s < 2; ++s) {
      const std::vector<Doubles> exact = exact_logits(decoder, sequences[s]);
      for (size_t i = 0; i < static_cast<size_t>(kLen * kVocab); ++i)
        worst = std::max(worst,
                         std::fabs(static_cast<double>(found[s * kLen * kVocab + i]) - exact[i / kVocab][i % kVocab]));
    }
    expect(worst < 2e-5, std::string(kernels.isa) + ": largest error " + std::to_string(worst));
  }
}

void test_threads(const std::string& folder, const Ids (&sequences)[2], const Floats& expected) {
  for (int num_threads = 1; num_threads <= 4; ++num_threads) {
    Executor executor(folder, num_threads, "");
    expect(executor.num_threads() == num_threads, "the session has the threads asked for");
    executor.set_profiling(num_threads % 2 == 0);
    const std::vector<std::vector<int64_t>> cuts = {{kLen}, {1}, {7, 1, 1, 20}, {32, 1}};
    for (const auto& pieces : cuts)
      expect(same_bits(run_two(executor, sequences, pieces), expected),
             std::to_string(num_threads) + " threads, pieces of " + std::to_string(pieces[0]));
    const std::vector<int64_t> times = executor.take_profile();
    expect(times.size() == (num_threads % 2 == 0 ? executor.plan().phases.size() : 0), "a time for each phase");
  }
}

void test_two_sessions(const std::string& folder, const Ids (&sequences)[2], const Floats& expected) {
  const auto work = [&](int num_threads, int64_t piece) {
    for (int turn = 0; turn < 3; ++turn) {
      Executor executor(folder, num_threads, "");  // opened beside the other's steps
      expect(same_bits(run_two(executor, sequences, {piece}), expected), "two sessions at once");
    }
  };
  std::thread other(work, 2, 5);
  work(2, 9);
  other.join();
}

// A session that one thread uses after the other.
void test_callers(const std::string& folder, const Ids (&sequences)[2], const Floats& expected) {
  Executor executor(folder, 2, "");
  for (int turn = 0; turn < 3; ++turn) {
    Floats found;
    std::thread([&] { found = run_two(executor, sequences, {kLen}); }).join();
    expect(same_bits(found, expected), "a session in another thread");
    expect(same_bits(run_two(executor, sequences, {7}), expected), "a session back in its thread");
  }
}

// What a session refuses, and that it goes on working afterwards.
void test_refusals(const std::string& folder, const Ids (&sequences)[2], const Floats& expected) {
  Executor executor(folder, 2, "");
  executor.reserve(1);
  const auto refused = [&](int64_t token, int64_t position, int32_t block, int64_t row, const char* what) {
    const SpanInput span{0, 1, &block, 1};
    Floats logits(kVocab);
    try {
      executor.step({&token, &position, 1, &span, 1, &row, 1, nullptr, nullptr}, logits.data(), nullptr);
    } catch (const Error& error) {
      expect(error.code() == ErrorCode::kRequest, std::string(what) + " is the request's error");
      return;
    }
    expect(false, std::string(what) + " is refused");
  };
  refused(0, 0, 1, 0, "a block that does not exist");
  refused(0, -1, 0, 0, "a negative position");
  refused(0, kCacheBlockLen, 0, 0, "a position behind the last block");
  refused(0, 0, 0, 1, "a row that is no token");
  refused(kVocab, 0, 0, 0, "a token outside the table");
  refused(-1, 0, 0, 0, "a negative token");
  expect(same_bits(run_two(executor, sequences, {11}), expected), "a session works after refusals");
}

// A weights file that is cut anywhere opens nowhere.
void test_cut_weights(const std::string& folder) {
  const std::string cut = folder + "/cut";
  std::filesystem::create_directory(cut);
  std::filesystem::copy_file(folder + "/program.json", cut + "/program.json");
  const auto size = static_cast<int64_t>(std::filesystem::file_size(folder + "/weights.safetensors"));
  for (const int64_t bytes : {int64_t{0}, int64_t{7}, int64_t{8}, int64_t{100}, size / 2, size - 1}) {
    std::filesystem::copy_file(folder + "/weights.safetensors", cut + "/weights.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut + "/weights.safetensors", static_cast<uintmax_t>(bytes));
    try {
      Executor executor(cut, 1, "");
      expect(false, "weights cut to " + std::to_string(bytes) + " bytes are refused");
    } catch (const Error& error) {
      expect(error.code() == ErrorCode::kContainer, "a cut file is the container's error");
    }
  }
}

Floats run_alone(const std::string& folder, const Ids (&sequences)[2]) {
  Executor executor(folder, 1, "");
  return run_two(executor, sequences, {kLen});
}

int run_all(const std::string& folder) {
  const Decoder decoder;
  write_weights(folder, decoder, "");
  write_program(folder, decoder, "");
  const Ids sequences[2] = {random_tokens(21), random_tokens(22)};
  const Floats expected = run_alone(folder, sequences);
  test_against_double(folder, decoder, sequences);
  test_threads(folder, sequences, expected);
  test_two_sessions(folder, sequences, expected);
  test_callers(folder, sequences, expected);
  test_refusals(folder, sequences, expected);
  test_cut_weights(folder);
  write_weights(folder, decoder, "down");  // what its product reads is rounded to int8 behind the gate
  write_program(folder, decoder, "down");
  const Floats rounded = run_alone(folder, sequences);
  expect(!same_bits(rounded, expected), "rounding changes something");
  test_threads(folder, sequences, rounded);
  std::printf("%d failures\n", num_failures);
  return num_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace qeff

int main() {
  std::string folder = (std::filesystem::temp_directory_path() / "qeff-executor-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const int result = qeff::run_all(folder);
  std::filesystem::remove_all(folder);
  return result;
}

// Tests of the light kernels on every instruction set that this machine runs, against double precision,
// and of the promise that a result depends neither on the element's place nor on the instruction set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "isa/kernels.h"

namespace qeff {
namespace {

int num_failures = 0;

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++num_failures;
}

using Floats = std::vector<float>;

Floats random_floats(size_t n, float scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  Floats result(n);
  for (float& x : result) x = normal(random);
  return result;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

double exact_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double exact_gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double exact_gelu_tanh(double x) {
  const double inner = std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

struct Case {
  const char* name;
  UnaryFunction function;
  double (*exact)(double);
  double lowest, highest;  // of the arguments
  double relative, absolute;  // allowed: the larger of the two
};

const Case kCases[] = {
    {"gelu", UnaryFunction::kGelu, exact_gelu, -12, 12, 2e-7, 4e-7},
    {"gelu_tanh", UnaryFunction::kGeluTanh, exact_gelu_tanh, -12, 12, 3e-7, 4e-7},
    {"relu", UnaryFunction::kRelu, [](double x) { return x > 0 ? x : 0; }, -9, 9, 0, 0},
    {"relu2", UnaryFunction::kRelu2, [](double x) { return x > 0 ? x * x : 0; }, -9, 9, 1e-7, 0},
    {"sigmoid", UnaryFunction::kSigmoid, exact_sigmoid, -86.8, 90, 3e-7, 0},
    {"silu", UnaryFunction::kSilu, [](double x) { return x * exact_sigmoid(x); }, -80, 90, 3e-7, 0},
    {"tanh", UnaryFunction::kTanh, [](double x) { return std::tanh(x); }, -30, 30, 2e-7, 0},
    {"tanh near 0", UnaryFunction::kTanh, [](double x) { return std::tanh(x); }, -1, 1, 2e-7, 0},
    {"abs", UnaryFunction::kAbs, [](double x) { return std::fabs(x); }, -9, 9, 0, 0},
    {"ceil", UnaryFunction::kCeil, [](double x) { return std::ceil(x); }, -9, 9, 0, 0},
    {"cos", UnaryFunction::kCos, [](double x) { return std::cos(x); }, 0, 1e6, 1e-7, 0},
    {"erf", UnaryFunction::kErf, [](double x) { return std::erf(x); }, -6, 6, 2e-7, 0},
    {"erf near 0", UnaryFunction::kErf, [](double x) { return std::erf(x); }, -1, 1, 2e-7, 0},
    {"exp", UnaryFunction::kExp, [](double x) { return std::exp(x); }, -86.8, 88.7, 2e-7, 0},
    {"floor", UnaryFunction::kFloor, [](double x) { return std::floor(x); }, -9, 9, 0, 0},
    {"log", UnaryFunction::kLog, [](double x) { return std::log(x); }, 1e-6, 1e6, 1e-7, 0},
    {"neg", UnaryFunction::kNeg, [](double x) { return -x; }, -9, 9, 0, 0},
    {"reciprocal", UnaryFunction::kReciprocal, [](double x) { return 1 / x; }, 0.01, 9, 1e-7, 0},
    {"round", UnaryFunction::kRound, [](double x) { return std::nearbyint(x); }, -9, 9, 0, 0},
    {"rsqrt", UnaryFunction::kRsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.01, 90, 2e-7, 0},
    {"sign", UnaryFunction::kSign, [](double x) { return double((x > 0) - (x < 0)); }, -9, 9, 0, 0},
    {"sin", UnaryFunction::kSin, [](double x) { return std::sin(x); }, 0, 1e6, 1e-7, 0},
    {"softplus", UnaryFunction::kSoftplus, [](double x) { return std::log1p(std::exp(x)); }, -80, 80, 1e-7, 0},
    {"sqrt", UnaryFunction::kSqrt, [](double x) { return std::sqrt(x); }, 0, 90, 1e-7, 0},
    {"square", UnaryFunction::kSquare, [](double x) { return x * x; }, -9, 9, 1e-7, 0},
};

Floats unary(const LightKernels& light, UnaryFunction function, const Floats& x) {
  Floats y(x.size());
  light.unary[static_cast<int>(function)](x.data(), static_cast<int64_t>(x.size()), y.data());
  return y;
}

void test_accuracy(const Kernels& kernels) {
  for (const Case& test : kCases) {
    std::mt19937 random(7);
    std::uniform_real_distribution<double> even(test.lowest, test.highest);
    Floats x(100001);
    for (float& v : x) v = static_cast<float>(even(random));
    const Floats y = unary(*kernels.light, test.function, x);
    double worst = 0, at = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = test.exact(static_cast<double>(x[i]));
      const double error = std::fabs(static_cast<double>(y[i]) - exact);
      const double allowed = std::max(std::fabs(exact) * test.relative, test.absolute);
      const double share = error == 0 ? 0 : (allowed == 0 ? 1e9 : error / allowed);
      if (share > worst) worst = share, at = static_cast<double>(x[i]);
    }
    expect(worst <= 1, std::string(kernels.isa) + " " + test.name + ": " + std::to_string(worst) +
                           " times the error allowed at " + std::to_string(at));
  }
}

void test_special_numbers(const Kernels& kernels) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string isa = kernels.isa;
  const auto one = [&](UnaryFunction function, float x) { return unary(*kernels.light, function, {x})[0]; };
  expect(one(UnaryFunction::kExp, -infinity) == 0, isa + " exp(-inf)");
  expect(one(UnaryFunction::kExp, -200) == 0, isa + " exp(-200)");
  expect(one(UnaryFunction::kExp, 0) == 1, isa + " exp(0)");
  expect(one(UnaryFunction::kExp, 89) == infinity, isa + " exp(89)");
  expect(one(UnaryFunction::kExp, 1e30f) == infinity, isa + " exp(1e30)");
  expect(one(UnaryFunction::kExp, infinity) == infinity, isa + " exp(inf)");
  expect(one(UnaryFunction::kTanh, infinity) == 1 && one(UnaryFunction::kTanh, -infinity) == -1, isa + " tanh(inf)");
  expect(one(UnaryFunction::kErf, infinity) == 1 && one(UnaryFunction::kErf, -100) == -1, isa + " erf(inf)");
  expect(one(UnaryFunction::kSigmoid, infinity) == 1 && one(UnaryFunction::kSigmoid, -infinity) == 0,
         isa + " sigmoid(inf)");
  expect(one(UnaryFunction::kSilu, -1000) == 0 && one(UnaryFunction::kSilu, 1000) == 1000, isa + " silu(1000)");
  expect(one(UnaryFunction::kRound, 2.5f) == 2 && one(UnaryFunction::kRound, -3.5f) == -4, isa + " round(2.5)");
  for (int f = 0; f < kNumUnaryFunctions; ++f) {
    const float y = one(static_cast<UnaryFunction>(f), nan);
    expect(y != y, isa + " function " + std::to_string(f) + " of NaN");
  }
  float y = 0;
  for (int f = 0; f < kNumFloatBinaries; ++f) {
    kernels.light->binary[f](&nan, 1, &infinity, 1, 1, &y);
    expect(y != y, isa + " function " + std::to_string(f) + " of NaN and a number");
  }
}

// A block that holds a NaN, first or last, gets a NaN for its scale; its neighbours stay as they are.
void test_rounding_of_nan(const Kernels& kernels) {
  for (const size_t place : {32u, 40u, 63u}) {
    Floats x(96, 2.0f), scale(3);
    x[place] = std::numeric_limits<float>::quiet_NaN();
    std::vector<int8_t> q(96);
    std::vector<int32_t> sum(3);
    kernels.linear->round_activations(x.data(), 96, 96, 0, 1, {q.data(), scale.data(), sum.data(), 96, 3});
    for (const size_t block : {0u, 2u}) {
      expect(scale[block] == 2.0f / 127.0f && sum[block] == 32 * 127 && q[32 * block + 31] == 127,
             std::string(kernels.isa) + " rounds a block beside a NaN");
    }
    expect(scale[1] != scale[1], std::string(kernels.isa) + " rounds a NaN at " + std::to_string(place));
  }
}

// The same numbers at other places and among others give the same bits.
void test_places(const Kernels& kernels) {
  const Floats x = random_floats(67, 3.0f, 1), up = random_floats(67, 1.0f, 2);
  for (int f = 0; f < kNumUnaryFunctions; ++f) {
    const Floats whole = unary(*kernels.light, static_cast<UnaryFunction>(f), x);
    for (size_t start : {1u, 3u, 15u, 64u}) {
      const Floats part = unary(*kernels.light, static_cast<UnaryFunction>(f), Floats(x.begin() + start, x.end()));
      expect(same_bits(part, Floats(whole.begin() + start, whole.end())),
             std::string(kernels.isa) + " function " + std::to_string(f) + " depends on the place");
    }
  }
  for (int f = 0; f < kNumActivations; ++f) {
    const Floats active = unary(*kernels.light, static_cast<UnaryFunction>(f), x);
    Floats y(x.size());
    kernels.light->gated[f](x.data(), up.data(), 67, y.data());
    Floats expected(x.size());
    for (size_t i = 0; i < x.size(); ++i) expected[i] = active[i] * up[i];
    expect(same_bits(y, expected), std::string(kernels.isa) + " gate " + std::to_string(f));
  }
}

void test_norms(const Kernels& kernels) {
  for (const int64_t size : {1, 5, 16, 64, 67, 576, 1000, 8192}) {
    const int64_t groups = 3;
    Floats x = random_floats(static_cast<size_t>(groups * size), 2.0f, 3);
    for (float& v : x) v += 0.5f;
    const Floats weight = random_floats(static_cast<size_t>(size), 1.0f, 4);
    const Floats bias = random_floats(static_cast<size_t>(size), 1.0f, 5);
    for (const int form : {0, 1, 2, 3}) {
      const NormArgs args{form & 1 ? weight.data() : nullptr, form & 2 ? bias.data() : nullptr, groups, size, 1e-5f};
      for (const bool is_layer : {false, true}) {
        Floats y(x.size());
        (is_layer ? kernels.light->layer_norm : kernels.light->rms_norm)(args, x.data(), y.data());
        double worst = 0;
        for (int64_t g = 0; g < groups; ++g) {
          const float* row = x.data() + g * size;
          double mean = 0, squares = 0;
          for (int64_t i = 0; i < size; ++i) mean += static_cast<double>(row[i]) / static_cast<double>(size);
          if (!is_layer) mean = 0;
          for (int64_t i = 0; i < size; ++i)
            squares += std::pow(static_cast<double>(row[i]) - mean, 2) / static_cast<double>(size);
          for (int64_t i = 0; i < size; ++i) {
            double exact = (static_cast<double>(row[i]) - mean) / std::sqrt(squares + static_cast<double>(1e-5f));
            if (form & 1) exact *= static_cast<double>(weight[static_cast<size_t>(i)]);
            if (form & 2) exact += static_cast<double>(bias[static_cast<size_t>(i)]);
            worst = std::max(worst, std::fabs(static_cast<double>(y[static_cast<size_t>(g * size + i)]) - exact) /
                                        (1 + std::fabs(exact)));
          }
        }
        expect(worst < 1e-6,
               std::string(kernels.isa) + " norm of " + std::to_string(size) + ": " + std::to_string(worst));
      }
    }
  }
}

void test_rope(const Kernels& kernels) {
  const int64_t groups = 3, size = 22, half = 9;
  const Floats x = random_floats(static_cast<size_t>(groups * size), 1.0f, 6);
  const Floats cos = random_floats(half, 1.0f, 7), sin = random_floats(half, 1.0f, 8);
  for (const bool interleaved : {false, true}) {
    Floats expected = x, y(x.size()), in_place = x;
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t first = g * size + (interleaved ? 2 * i : i), second = first + (interleaved ? 1 : half);
        const float a = x[static_cast<size_t>(first)], b = x[static_cast<size_t>(second)];
        const float c = cos[static_cast<size_t>(i)], s = sin[static_cast<size_t>(i)];
        expected[static_cast<size_t>(first)] = a * c - b * s;
        expected[static_cast<size_t>(second)] = a * s + b * c;
      }
    }
    kernels.light->rope(x.data(), cos.data(), sin.data(), groups, size, half, interleaved, y.data());
    kernels.light->rope(in_place.data(), cos.data(), sin.data(), groups, size, half, interleaved, in_place.data());
    expect(same_bits(y, expected) && same_bits(in_place, expected), std::string(kernels.isa) + " rope");
  }
}

void test_likeliest(const Kernels& kernels) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t n : {1, 2, 15, 255, 256, 257, 1000, 5000}) {
    const Floats x = random_floats(static_cast<size_t>(n), 4.0f, 12);
    const auto check = [&](const Floats& values, int64_t expected, const char* what) {
      const Likeliest found = kernels.light->likeliest(values.data(), n);
      const bool has_value = expected < 0 || found.value == values[static_cast<size_t>(expected)];
      expect(found.index == expected && has_value,
             std::string(kernels.isa) + " likeliest of " + std::to_string(n) + ": " + what);
    };
    check(x, std::max_element(x.begin(), x.end()) - x.begin(), "random");
    check(Floats(x.size(), -3.0f), 0, "all equal");
    check(Floats(x.size(), -infinity), 0, "all masked");
    for (const size_t place : {size_t{0}, x.size() / 2, x.size() - 1}) {
      Floats y = x;
      y[place] = 100.0f;
      check(y, static_cast<int64_t>(place), "one high");
      y.back() = 100.0f;
      check(y, static_cast<int64_t>(place), "the first of two");
      y = x;
      y[place] = infinity;
      check(y, static_cast<int64_t>(place), "infinite");
      y.back() = nan;
      check(y, -1, "NaN");
      y = Floats(x.size(), -infinity);
      y[place] = -5.0f;
      check(y, static_cast<int64_t>(place), "one not masked");
    }
  }
}

void test_softmax_and_products(const Kernels& kernels) {
  const std::string isa = kernels.isa;
  for (const int64_t n : {1, 3, 8, 17, 64, 129}) {
    Floats x = random_floats(static_cast<size_t>(n), 4.0f, 9), y(x.size());
    for (float& v : x) v += 1000.0f;
    kernels.light->softmax(x.data(), n, y.data());
    double sum = 0, worst = 0;
    for (const float v : x) sum += std::exp(static_cast<double>(v) - 1000);
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]) - 1000) / sum;
      worst = std::max(worst, std::fabs(static_cast<double>(y[i]) - exact) / exact);
    }
    expect(worst < 5e-7, isa + " softmax of " + std::to_string(n) + ": " + std::to_string(worst));
  }
  const int64_t rows = 3, inner = 7, cols = 27;
  const Floats a = random_floats(rows * inner, 1.0f, 10), b = random_floats(inner * cols, 1.0f, 11);
  Floats y(rows * cols), expected(rows * cols, 0.0f);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      float* sum = &expected[static_cast<size_t>(r * cols + c)];
      for (int64_t i = 0; i < inner; ++i)
        *sum = std::fma(a[static_cast<size_t>(r * inner + i)], b[static_cast<size_t>(i * cols + c)], *sum);
    }
  }
  kernels.light->matmul(a.data(), b.data(), rows, inner, cols, y.data());
  expect(same_bits(y, expected), isa + " matmul");
  const float* parts[] = {b.data(), nullptr, b.data() + cols};
  Floats total(cols), weights = {0.5f, 9.0f, -2.0f};
  kernels.light->weighted_sum(parts, weights.data(), 3, cols, total.data());
  for (size_t i = 0; i < total.size(); ++i) {
    expect(total[i] == 0.0f + 0.5f * b[i] + -2.0f * b[i + cols], isa + " weighted sum");
  }
}

// Everything that sums or approximates gives the same bits on every instruction set.
void test_equal(const Kernels& one, const Kernels& other) {
  const std::string names = std::string(one.isa) + " and " + other.isa;
  const Floats x = random_floats(1003, 5.0f, 12), weight = random_floats(1003, 1.0f, 13);
  for (int f = 0; f < kNumUnaryFunctions; ++f) {
    const auto function = static_cast<UnaryFunction>(f);
    Floats positive = x;
    for (float& v : positive) v = std::fabs(v);
    expect(same_bits(unary(*one.light, function, positive), unary(*other.light, function, positive)),
           names + " differ in function " + std::to_string(f));
  }
  const NormArgs args{weight.data(), nullptr, 1, 1003, 1e-6f};
  const auto both = [&](auto run, const char* what) {
    Floats a(x.size()), b(x.size());
    run(*one.light, a.data());
    run(*other.light, b.data());
    expect(same_bits(a, b), names + " differ in " + what);
  };
  both([&](const LightKernels& k, float* y) { k.rms_norm(args, x.data(), y); }, "rms norm");
  both([&](const LightKernels& k, float* y) { k.layer_norm(args, x.data(), y); }, "layer norm");
  both([&](const LightKernels& k, float* y) { k.softmax(x.data(), 1003, y); }, "softmax");
  both([&](const LightKernels& k, float* y) { k.matmul(x.data(), weight.data(), 1, 17, 59, y); }, "matmul");
  both([&](const LightKernels& k, float* y) { k.swiglu_clamped(x.data(), weight.data(), 1003, 1.702f, 7, y); },
       "swiglu");
}

}  // namespace
}  // namespace qeff

int main() {
  const auto& all = qeff::available_kernels();
  for (const qeff::Kernels& kernels : all) {
    qeff::test_accuracy(kernels);
    qeff::test_special_numbers(kernels);
    qeff::test_rounding_of_nan(kernels);
    qeff::test_places(kernels);
    qeff::test_norms(kernels);
    qeff::test_rope(kernels);
    qeff::test_softmax_and_products(kernels);
    qeff::test_likeliest(kernels);
    qeff::test_equal(all.front(), kernels);
    std::printf("%s: done\n", kernels.isa);
  }
  return qeff::num_failures == 0 ? 0 : 1;
}

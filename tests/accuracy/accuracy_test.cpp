// The largest error of every elementwise function of Tensor's surface, in units of the last place,
// against docs/switches.md. KOINE_TEST_EXHAUSTIVE=1 takes every float32 and 100 million float64 and
// KOINE_TEST_FIX=1 writes what it saw into the table; KOINE_TEST_FUNCTION=NAME keeps to one.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "check.hpp"
#include "real.hpp"

namespace koine::test {
namespace {

struct Function {
  const char* name;
  Tensor (*compute)(const Tensor& x, const Tensor& y);
  // The same formula in three widths.
  double (*in_double)(double, double);
  long double (*in_long)(long double, long double);
  Real (*in_real)(const Real&, const Real&);
  double bound32, bound64;
  bool binary;
};

// Before the formulas: in these a name means what is known where they stand.
using std::abs;
using std::ceil;
using std::cos;
using std::erf;
using std::erfc;
using std::exp;
using std::exp2;
using std::expm1;
using std::floor;
using std::fmod;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::log;
using std::log1p;
using std::log2;
using std::pow;
using std::rint;
using std::sin;
using std::sqrt;
using std::tan;
using std::tanh;
using std::trunc;

template <class T>
const T& as_argument(const T& x) {
  return x;
}

// Formulas that do not cancel; T is double, long double or Real.
template <class T>
T sigmoid_of(const T& x) {
  return x < T(0) ? exp(x) / (T(1) + exp(x)) : T(1) / (T(1) + exp(T(0) - x));
}
template <class T>
T silu_of(const T& x) {
  if (x < T(-20000)) return T(-0.0L);
  return x * sigmoid_of(x);
}
template <class T>
T gelu_of(const T& x) {
  if (x < T(-200)) return T(-0.0L);
  if (T(200) < x) return x;
  const T c = sqrt(T(8) * T(1) / T(std::numbers::pi_v<long double>));
  return x * sigmoid_of(c * (x + T(44715) / T(1000000) * x * x * x));
}
// pi to the precision of Real.
template <>
Real gelu_of(const Real& x) {
  if (x < Real(-200)) return -0.0L;
  if (Real(200) < x) return x;
  static const Real pi = [] {
    // atan(1) by the log-free way: 16 atan(1/5) - 4 atan(1/239) (J. Machin).
    auto arctangent = [](int n) {
      Real sum, power = Real(1) / Real(n);
      for (int k = 0; k < 260; ++k) {
        const Real term = power / Real(2 * k + 1);
        sum = k % 2 == 0 ? sum + term : sum - term;
        power = power / Real(n * n);
      }
      return sum;
    };
    return Real(16) * arctangent(5) - Real(4) * arctangent(239);
  }();
  const Real c = sqrt(Real(8) / pi);
  return x * sigmoid_of(c * (x + Real(44715) / Real(1000000) * x * x * x));
}
template <class T>
T relu_of(const T& x) {
  return x < T(0) ? T(0) : x;
}
template <class T>
T sign_of(const T& x) {
  return x < T(0) ? T(-1) : T(0) < x ? T(1) : x;
}
// NaN wins.
template <class T>
T larger_of(const T& x, const T& y) {
  using std::isnan;
  return isnan(x) ? x : isnan(y) || x < y ? y : x;
}
template <class T>
T smaller_of(const T& x, const T& y) {
  using std::isnan;
  return isnan(x) ? x : isnan(y) || y < x ? y : x;
}
template <class T>
T clip_of(const T& x, const T& low, const T& high) {
  return x < low ? low : high < x ? high : x;
}
// The remainder that C has, exact, moved to the divisor's sign.
template <class T>
T mod_of(const T& x, const T& y) {
  const T rest = fmod(x, y);
  return (rest < T(0) && T(0) < y) || (T(0) < rest && y < T(0)) ? rest + y : rest;
}
// x less the remainder is a whole number of times y, which rounding cannot hide.
template <class T>
T floor_quotient_of(const T& x, const T& y) {
  if (!(y < T(0)) && !(T(0) < y)) return x / y;
  const T rest = fmod(x, y), toward_zero = rint((x - rest) / y);
  const bool below = (rest < T(0) && T(0) < y) || (T(0) < rest && y < T(0));
  return below ? toward_zero - T(1) : toward_zero;
}
// Between numbers of one sign, so that nothing cancels; the signs of both choose one of four
// weights.
template <class T>
T lerp_of(const T& x, const T& y) {
  using std::abs;
  const T weight = x < T(0) ? y < T(0) ? T(0.125) : T(0.375) : y < T(0) ? T(0.75) : T(0.5);
  const T start = abs(x), end = abs(y);
  return start + (end - start) * weight;
}
Tensor lerped(const Tensor& x, const Tensor& y) {
  const Tensor weight =
      Tensor::where(x < 0, Tensor::where(y < 0, 0.125, 0.375), Tensor::where(y < 0, 0.75, 0.5));
  return x.abs().lerp(y.abs(), weight.cast(x.dtype()));
}
// x^2 - 2 s^2 for s = x / sqrt(2), which is rounded.
template <class T>
T square_lost(const T& x, const T& s) {
  const T square = x * x;
  return std::fma(x, x, -square) - std::fma(2 * s, s, -square);
}
template <>
Real square_lost(const Real&, const Real&) {
  return 0;
}
// x (1 + erf(x / sqrt(2))) / 2; T is double, long double or Real.
template <class T>
T exact_gelu_of(const T& x) {
  if (x < T(-60)) return T(-0.0L);
  if (T(200) < x) return x;
  const T s = x / sqrt(T(2)), tail = x * erfc(T(0) - s) / T(2);
  return x < T(0) ? tail * (T(1) - square_lost(x, s) / T(2)) : tail;
}
template <class T>
T softplus_of(const T& x) {
  return x < T(0) ? log1p(exp(x)) : x + log1p(exp(T(0) - x));
}

// Whether the text of a formula names y.
constexpr bool uses_second(std::string_view formula) {
  return formula.ends_with("y") || formula.ends_with("y)");
}

#define KOINE_ROW(name, bound32, bound64, tensor, formula)                                      \
  Function {                                                                                    \
    name, [](const Tensor& x, [[maybe_unused]] const Tensor& y) { return tensor; },             \
        [](double x, [[maybe_unused]] double y) -> double { return formula; },                  \
        [](long double x, [[maybe_unused]] long double y) -> long double { return formula; },   \
        [](const Real& x, [[maybe_unused]] const Real& y) -> Real { return formula; }, bound32, \
        bound64, uses_second(#tensor)                                                           \
  }

const std::vector<Function>& functions() {
  static const std::vector<Function> rows = {
      KOINE_ROW("exp", 2, 2, x.exp(), exp(x)),
      KOINE_ROW("exp2", 2, 2, x.exp2(), exp2(x)),
      KOINE_ROW("log", 2, 2, x.log(), log(x)),
      KOINE_ROW("log2", 2, 2, x.log2(), log2(x)),
      KOINE_ROW("sin", 2, 2, x.sin(), sin(x)),
      KOINE_ROW("cos", 2, 2, x.cos(), cos(x)),
      KOINE_ROW("tan", 4, 4, x.tan(), tan(x)),
      KOINE_ROW("tanh", 4, 4, x.tanh(), tanh(x)),
      KOINE_ROW("sigmoid", 4, 4, x.sigmoid(), sigmoid_of(x)),
      KOINE_ROW("silu", 4, 4, x.silu(), silu_of(x)),
      KOINE_ROW("erf", 4, 4, x.erf(), erf(x)),
      KOINE_ROW("erfc", 4, 4, x.erfc(), erfc(x)),
      KOINE_ROW("gelu", 4, 4, x.gelu(), gelu_of(x)),
      KOINE_ROW("gelu(\"none\")", 4, 4, x.gelu("none"), exact_gelu_of(x)),
      KOINE_ROW("softplus", 4, 4, x.softplus(), softplus_of(x)),
      KOINE_ROW("elu", 4, 4, x.elu(), (x < 0 ? expm1(x) : x + 0)),
      KOINE_ROW("leaky_relu", 4, 4, x.leaky_relu(), (x < 0 ? x / 100 : x + 0)),
      KOINE_ROW("pow", 4, 4, x.pow(y), pow(x, y)),
      KOINE_ROW("mod", 1, 1, x.mod(y), mod_of(x, y)),
      KOINE_ROW("idiv", 1, 1, x.idiv(y), floor_quotient_of(x, y)),
      KOINE_ROW("lerp", 4, 4, lerped(x, y), lerp_of(x, y)),
      KOINE_ROW("abs", 0, 0, x.abs(), abs(x)),
      KOINE_ROW("neg", 0, 0, x.neg(), 0 - x),
      KOINE_ROW("sign", 0, 0, x.sign(), sign_of(x)),
      KOINE_ROW("maximum", 0, 0, x.maximum(y), larger_of(x, y)),
      KOINE_ROW("minimum", 0, 0, x.minimum(y), smaller_of(x, y)),
      KOINE_ROW("clip", 0, 0, x.clip(-0.375, 80),
                clip_of(x, decltype(x + x)(-0.375), decltype(x + x)(80))),
      KOINE_ROW("hardtanh", 0, 0, x.hardtanh(),
                clip_of(x, decltype(x + x)(-1), decltype(x + x)(1))),
      KOINE_ROW("trunc", 0, 0, x.trunc(), trunc(x)),
      KOINE_ROW("floor", 0, 0, x.floor(), floor(x)),
      KOINE_ROW("ceil", 0, 0, x.ceil(), ceil(x)),
      KOINE_ROW("round", 0, 0, x.round(), rint(x)),
      KOINE_ROW("relu", 0, 0, x.relu(), relu_of(x)),
      KOINE_ROW("isnan", 0, 0, x.isnan().cast(x.dtype()), isnan(x)),
      KOINE_ROW("isinf", 0, 0, x.isinf().cast(x.dtype()), isinf(x)),
      KOINE_ROW("isfinite", 0, 0, x.isfinite().cast(x.dtype()), isfinite(x)),
      KOINE_ROW("where", 0, 0, Tensor::where(x < 1, x, y), (x < 1 ? x : y)),
      KOINE_ROW("sqrt", 0.5, 0.5, x.sqrt(), sqrt(x)),
      KOINE_ROW("rsqrt", 2, 2, x.rsqrt(), 1 / sqrt(x)),
      KOINE_ROW("reciprocal", 0.5, 0.5, x.reciprocal(), 1 / x),
      KOINE_ROW("square", 0.5, 0.5, x.square(), x * x),
      KOINE_ROW("+", 0.5, 0.5, x + y, x + y),
      KOINE_ROW("-", 0.5, 0.5, x - y, x - y),
      KOINE_ROW("*", 0.5, 0.5, x * y, x * y),
      KOINE_ROW("/", 0.5, 0.5, x / y, x / y),
  };
  return rows;
}

// --- errors --------------------------------------------------------------------------------------

// |got - want| in units of the last place of F at `want`; infinite where one is a NaN.
template <class F, class Wide>
double error_of(F got, Wide want) {
  if (std::isnan(want) || std::isnan(got))
    return std::isnan(want) && std::isnan(got) ? 0 : std::numeric_limits<double>::infinity();
  const auto rounded = static_cast<F>(want);
  if (rounded == got)
    return std::isinf(got) ? 0 : std::min(0.5, [&] {
      const F size = std::fabs(rounded);
      const F step = std::nextafter(size, std::numeric_limits<F>::infinity()) - size;
      return static_cast<double>(std::fabs(static_cast<Wide>(got) - want) / step);
    }());
  using Limits = std::numeric_limits<F>;
  const Wide top = std::ldexp(Wide(1), Limits::max_exponent);  // what infinity is rounded from
  const Wide value =
      std::isinf(got) ? std::copysign(top, static_cast<Wide>(got)) : static_cast<Wide>(got);
  const F size = std::min(std::fabs(rounded), Limits::max());
  const F below = std::nextafter(size, F(0));
  const F step = std::isinf(std::nextafter(size, Limits::infinity()))
                     ? size - below
                     : std::nextafter(size, Limits::infinity()) - size;
  return static_cast<double>(std::fabs(value - want) / step);
}

struct Worst {
  double error = 0, x = 0, y = 0, got = 0;
};

template <class F>
struct Inputs {
  std::vector<F> x, y;
};

template <class F>
void settle(const Function& f, F x, F y, F got, Worst& worst) {
  const auto exact =
      static_cast<long double>(f.in_real(static_cast<long double>(x), static_cast<long double>(y)));
  const double error = error_of<F, long double>(got, exact);
  if (error > worst.error) worst = {error, x, y, got};
}

template <class F>
std::vector<F> elements_of(const Tensor& t) {
  const std::vector<std::byte> bytes = t.bytes();
  std::vector<F> out(bytes.size() / sizeof(F));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// Whether a float32 may be further than `limit` units of its last place from a number: quick, and
// never false where it is.
bool may_be_beyond(float got, double want, double limit) {
  const uint64_t exponent = std::bit_cast<uint64_t>(want) >> 52 & 0x7ff, least = 1023 - 126;
  if (exponent >= 1023 + 127) return true;  // the largest numbers, infinities and NaN
  const auto step = std::bit_cast<double>((std::max(exponent, least) - 23) << 52);
  return !(std::fabs(got - want) <= limit * step);
}
bool may_be_beyond(double, long double, double) { return true; }

// In both modes. The wider type decides all but ties of the first digits: whatever comes near the
// worst so far is taken again in Real.
template <class F>
void measure(const Function& f, const Inputs<F>& in, Worst& worst) {
  constexpr size_t most = size_t{1} << 14;  // stays in the caches
  for (size_t start = 0; start < in.x.size(); start += most) {
    const size_t n = std::min(most, in.x.size() - start);
    auto part = [&](const std::vector<F>& all) {
      const auto from = all.begin() + static_cast<ptrdiff_t>(start);
      return Tensor::from(std::vector<F>(from, from + static_cast<ptrdiff_t>(n)),
                          {static_cast<int64_t>(n)});
    };
    const Tensor x = part(in.x), y = f.binary ? part(in.y) : x;
    const auto by_default = elements_of<F>(f.compute(x, y));
    const OptionScope scope(strict_options());
    const auto strict = elements_of<F>(f.compute(x, y));
    for (size_t i = 0; i < n; ++i) {
      const F a = in.x[start + i], b = in.y[start + i];
      const auto want = [&] {
        if constexpr (sizeof(F) == 4)
          return f.in_double(a, b);
        else
          return f.in_long(a, b);
      }();
      for (const F got : {by_default[i], strict[i]})
        if (may_be_beyond(got, want, worst.error) && error_of(got, want) > worst.error)
          settle(f, a, b, got, worst);
    }
  }
}

// --- inputs --------------------------------------------------------------------------------------

template <class F>
F from_bits(uint64_t bits) {
  if constexpr (sizeof(F) == 4)
    return std::bit_cast<float>(static_cast<uint32_t>(bits >> 32));
  else
    return std::bit_cast<double>(bits);
}

// Second operands: any number; a small whole one; one that goes into x almost a whole number of
// times; or such that x^y stays in the range.
template <class F>
F partner(F x, std::mt19937_64& random) {
  const double limit = sizeof(F) == 4 ? 150 : 1080,
               u = static_cast<double>(random() >> 11) * 0x1p-53;
  switch (random() % 5) {
    case 0:
      return from_bits<F>(random());
    case 1:
      return static_cast<F>(static_cast<int>(random() % 41) - 20);
    case 2: {
      const F times = std::ldexp(static_cast<F>(random() >> 40), -static_cast<int>(random() % 24));
      const F exact = x / std::max(std::trunc(times), F(1));
      return random() % 2 == 0 ? exact : std::nextafter(exact, random() % 2 == 0 ? F(0) : x);
    }
    default:
      return static_cast<F>((2 * u - 1) * limit / std::log2(std::fabs(static_cast<double>(x))));
  }
}

// A third each: any pattern; where exponentials live; small numbers of every size.
template <class F>
Inputs<F> sample(std::mt19937_64& random, size_t n, bool binary) {
  using Limits = std::numeric_limits<F>;
  Inputs<F> in;
  in.x = {0,
          F(-0.0),
          1,
          -1,
          Limits::infinity(),
          -Limits::infinity(),
          Limits::quiet_NaN(),
          Limits::max(),
          -Limits::max(),
          Limits::min(),
          Limits::denorm_min(),
          -Limits::denorm_min()};
  const double range = sizeof(F) == 4 ? 110 : 760;
  while (in.x.size() < n) {
    const double u = 2 * static_cast<double>(random() >> 11) * 0x1p-53 - 1;
    in.x.push_back(from_bits<F>(random()));
    in.x.push_back(static_cast<F>(u * range));
    in.x.push_back(static_cast<F>(std::ldexp(u, static_cast<int>(random() % 12) - 8)));
  }
  in.x.resize(n);
  for (const F x : in.x) in.y.push_back(binary ? partner(x, random) : x);
  return in;
}

// KOINE_TEST_EXHAUSTIVE=1
bool exhaustive() { return std::getenv("KOINE_TEST_EXHAUSTIVE") != nullptr; }
bool chosen(const Function& f) {
  const char* only = std::getenv("KOINE_TEST_FUNCTION");
  return only == nullptr || std::string(only) == f.name;
}

void expect_within(const Function& f, const Worst& worst, double bound) {
  EXPECT_LE(worst.error, bound) << f.name << "("
                                << fmt::format("{}, {}) is not {}", worst.x, worst.y, worst.got);
  if (std::getenv("KOINE_TEST_PRINT") != nullptr)
    fmt::print("{:12} {:8.4f} of {} at {} {}\n", f.name, worst.error, bound, worst.x, worst.y);
}

// Of the functions of one operand all have the same numbers.
template <class F>
void measure_sample(size_t n) {
  constexpr size_t most = 500'000;
  for (const bool binary : {false, true}) {
    std::mt19937_64 random(test_seed());
    std::vector<Worst> worst(functions().size());
    for (size_t done = 0; done < n; done += most) {
      const Inputs<F> in = sample<F>(random, std::min(most, n - done), binary);
      for (size_t k = 0; k < functions().size(); ++k)
        if (const Function& f = functions()[k]; chosen(f) && f.binary == binary)
          measure(f, in, worst[k]);
    }
    for (size_t k = 0; k < functions().size(); ++k)
      if (const Function& f = functions()[k]; chosen(f) && f.binary == binary)
        expect_within(f, worst[k], sizeof(F) == 4 ? f.bound32 : f.bound64);
  }
}

// The inputs whose errors are within a millionth of the largest, of which there may be many equal
// ones: a few are enough.
class Candidates {
 public:
  void add(float x, float got, double want) {
    if (!may_be_beyond(got, want, limit_)) return;
    const double error = error_of<float, double>(got, want);
    if (error <= limit_) return;
    largest_ = std::max(largest_, error);
    limit_ = largest_ - margin();
    if (list_.size() == most)
      std::erase_if(list_, [&](const Candidate& c) { return c.error <= limit_; });
    if (list_.size() == most)
      limit_ = largest_;
    else
      list_.push_back({x, got, error});
  }
  Worst settled(const Function& f) const {
    Worst worst;
    for (const Candidate& c : list_)
      if (c.error > largest_ - margin()) settle<float>(f, c.x, 0, c.got, worst);
    return worst;
  }

 private:
  struct Candidate {
    float x, got;
    double error;
  };
  double margin() const { return std::min(1e-6, largest_ / 1000); }

  static constexpr size_t most = 10'000;
  std::vector<Candidate> list_;
  double largest_ = 0, limit_ = 0;
};

// Every float32, in both modes. The C library's float64 functions, a millionth of a unit off at
// most, find the candidates, Real decides.
Worst measure_all(const Function& f) {
  Candidates candidates;
  constexpr size_t chunk = size_t{1} << 14;  // stays in the caches
  std::vector<float> x(chunk);
  for (uint64_t start = 0; start < uint64_t{1} << 32; start += chunk) {
    for (size_t i = 0; i < chunk; ++i)
      x[i] = std::bit_cast<float>(static_cast<uint32_t>(start + i));
    const Tensor in = Tensor::from(x, {static_cast<int64_t>(chunk)});
    const auto by_default = elements_of<float>(f.compute(in, in));
    const OptionScope scope(strict_options());
    const auto strict = elements_of<float>(f.compute(in, in));
    for (size_t i = 0; i < chunk; ++i) {
      const double want = f.in_double(x[i], 0);
      candidates.add(x[i], by_default[i], want);
      if (std::bit_cast<uint32_t>(strict[i]) != std::bit_cast<uint32_t>(by_default[i]))
        candidates.add(x[i], strict[i], want);
    }
  }
  return candidates.settled(f);
}

template <class F>
Worst measure_100_million(const Function& f) {
  std::mt19937_64 random(test_seed() + 1);
  Worst worst;
  for (int part = 0; part < 100; ++part) measure(f, sample<F>(random, 1'000'000, f.binary), worst);
  return worst;
}

std::string documentation() {
  std::ifstream in("docs/switches.md");
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// KOINE_TEST_FIX=1: a column of the function's row in docs/switches.md.
void write_seen(const Function& f, int column, const Worst& worst) {
  if (std::getenv("KOINE_TEST_FIX") == nullptr) return;
  std::string text = documentation();
  size_t begin = text.find(fmt::format("| `{}` |", f.name));
  for (int k = 1; k < column; ++k) begin = text.find('|', begin + 1);
  const size_t end = text.find('|', begin + 1);
  const bool every = column == 4 && !f.binary;
  text.replace(begin, end - begin,
               fmt::format("| {:.2f} ({}) ", worst.error, every ? "all" : "10^8"));
  std::ofstream("docs/switches.md") << text;
}

// Errors of narrow floats, in units of their last place.
double narrow_error(DType d, Bits got, double want) {
  const double value = bits_to_double(d, got);
  if (std::isnan(want) || std::isnan(value))
    return std::isnan(value) && std::isnan(bits_to_double(d, double_to_bits(d, want)))
               ? 0
               : std::numeric_limits<double>::infinity();
  const Bits rounded = double_to_bits(d, want);
  if (rounded == got) return 0.5;
  const double here = std::fabs(bits_to_double(d, rounded));
  const double next = std::fabs(bits_to_double(d, rounded + 1));
  const double step = std::isfinite(next) && std::isfinite(here) ? next - here : here;
  return std::fabs(value - want) / step;
}

// Bit patterns of narrow floats.
struct NarrowPairs {
  std::vector<uint16_t> x, y;
  Tensor x_tensor(DType d) const { return tensor(x, d); }
  Tensor y_tensor(DType d) const { return tensor(y, d); }
  static Tensor tensor(const std::vector<uint16_t>& bits, DType d) {
    return Tensor::from(bits, {static_cast<int64_t>(bits.size())})
        .cast(storage_uint(d))
        .bitcast(d)
        .contiguous();
  }
};
NarrowPairs patterns(DType d) {
  NarrowPairs out;
  for (uint32_t i = 0; i < uint32_t{1} << (8 * item_size(d)); ++i)
    out.x.push_back(static_cast<uint16_t>(i));
  out.y = out.x;
  return out;
}
NarrowPairs pairs_of(DType d) {
  NarrowPairs out;
  std::mt19937_64 random(test_seed());
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint64_t drawn = random();
    out.x.push_back(static_cast<uint16_t>(item_size(d) == 1 ? i & 255 : drawn));
    // Half of the 16-bit ones of sizes that lie close together.
    out.y.push_back(static_cast<uint16_t>(item_size(d) == 1 ? i >> 8
                                          : i % 2           ? drawn >> 16
                                                            : drawn ^ (drawn >> 20 & 0x83ff)));
  }
  return out;
}

}  // namespace

// A fixed sample for each function, in both modes.
TEST(accuracy, spec_D9_spec_D10_float32) { measure_sample<float>(10'000'000); }
TEST(accuracy, spec_D9_spec_D10_float64) { measure_sample<double>(100'000); }

// Narrow floats are computed in float32 and rounded once: half a unit, and what float32 errs. Every
// pattern; of what has two operands every pair of 8-bit floats and 65,536 pairs of 16-bit ones.
TEST(accuracy, spec_D9_every_narrow_float) {
  in_both_modes([] {
    for (const DType d : {DType::Float16, DType::BFloat16, DType::Float8E4M3, DType::Float8E5M2}) {
      const NarrowPairs every = patterns(d), pairs = pairs_of(d);
      for (const Function& f : functions()) {
        if (!chosen(f)) continue;
        const NarrowPairs& in = f.binary ? pairs : every;
        const auto got =
            f.compute(in.x_tensor(d), in.y_tensor(d)).bitcast(storage_uint(d)).tolist<uint16_t>();
        Worst worst;
        for (size_t i = 0; i < got.size(); ++i) {
          const double x = bits_to_double(d, in.x[i]), y = bits_to_double(d, in.y[i]);
          const double error = narrow_error(d, got[i], f.in_double(x, y));
          if (error > worst.error) worst = {error, x, y, bits_to_double(d, got[i])};
        }
        // lerp rounds each of its operations, and mod is never the divisor.
        const bool as_wide =
            std::string_view(f.name) == "lerp" || std::string_view(f.name) == "mod";
        EXPECT_LE(worst.error, as_wide          ? f.bound32
                               : f.bound32 == 0 ? 0.5
                                                : 0.502)
            << dtype_name(d) << " " << f.name << "(" << worst.x << ", " << worst.y << ") is not "
            << worst.got;
      }
    }
  });
}

// By hand, with KOINE_TEST_EXHAUSTIVE=1. Of what has two operands, 100 million pairs.
TEST(accuracy, by_hand_every_float32) {
  if (!exhaustive()) GTEST_SKIP() << "KOINE_TEST_EXHAUSTIVE=1 runs this";
  for (const Function& f : functions()) {
    if (!chosen(f)) continue;
    const Worst worst = f.binary ? measure_100_million<float>(f) : measure_all(f);
    expect_within(f, worst, f.bound32);
    write_seen(f, 4, worst);
  }
}

TEST(accuracy, by_hand_100_million_float64) {
  if (!exhaustive()) GTEST_SKIP() << "KOINE_TEST_EXHAUSTIVE=1 runs this";
  for (const Function& f : functions()) {
    if (!chosen(f)) continue;
    const Worst worst = measure_100_million<double>(f);
    expect_within(f, worst, f.bound64);
    write_seen(f, 5, worst);
  }
}

// The table of docs/switches.md states these bounds, and that they were measured.
TEST(accuracy, the_table_in_the_documentation) {
  const std::string text = documentation();
  for (const Function& f : functions()) {
    const std::string start = fmt::format("| `{}` | {} | {} |", f.name, f.bound32, f.bound64);
    const size_t at = text.find(start);
    ASSERT_NE(at, std::string::npos) << start;
    const std::string row = text.substr(at, text.find('\n', at) - at);
    EXPECT_NE(row.find(f.binary ? "(10^8) | " : "(all) | "), std::string::npos) << row;
    EXPECT_TRUE(row.ends_with("(10^8) |")) << row;
  }
}

}  // namespace koine::test

// Elementwise methods of Tensor, each against its definition. Methods along axes: axes_test.cpp;
// moves and positions: positions_test.cpp; products, windows and losses: windows_test.cpp; layers:
// layers_test.cpp; constants and random numbers: creation_test.cpp.
#include <algorithm>
#include <numbers>
#include <set>

#include "plain.hpp"

namespace koine::test {
namespace {

constexpr Real nan_value = std::numeric_limits<Real>::quiet_NaN();
using enum DType;

// --- elementwise ---------------------------------------------------------------------------------

struct Unary {
  const char* name;
  Tensor (*method)(const Tensor&);
  Real (*definition)(Real);
  Within within = {};
  DType result = Void;  // Void: the operand's
  bool integers = true;
};

Real logistic(Real x) { return 1 / (1 + std::exp(-x)); }
Real half_to_even(Real x) {
  const Real down = std::floor(x), rest = x - down;
  if (rest != 0.5L) return std::copysign(rest < 0.5L ? down : down + 1, x);
  return std::copysign(std::fmod(down, 2) == 0 ? down : down + 1, x);
}
Real gelu(Real x) {  // the tanh form, whose limit at -infinity is 0
  constexpr Real root = 0.797884560802865355879892119868763737L;  // sqrt(2 / pi)
  if (std::isinf(x)) return std::max<Real>(x, 0);
  return x / (1 + std::exp(-2 * root * (x + 0.044715L * x * x * x)));
}
Real exact_gelu(Real x) {
  if (std::isinf(x)) return std::max<Real>(x, 0);
  return x * std::erfc(-x / std::numbers::sqrt2_v<Real>) / 2;
}

// A float's rounding is the last step of each; what is a function has the bound of
// docs/switches.md.
const std::vector<Unary> unaries = {
    {"neg", [](const Tensor& x) { return x.neg(); }, [](Real x) { return -x; }, {.signs = true}},
    {"operator-", [](const Tensor& x) { return -x; }, [](Real x) { return -x; }, {.signs = true}},
    {"abs",
     [](const Tensor& x) { return x.abs(); },
     [](Real x) { return std::fabs(x); },
     {.signs = true}},
    {"sign", [](const Tensor& x) { return x.sign(); },
     [](Real x) { return std::isnan(x) ? x : Real(x > 0) - Real(x < 0); }},
    {"square", [](const Tensor& x) { return x.square(); }, [](Real x) { return x * x; }},
    {"relu", [](const Tensor& x) { return x.relu(); }, [](Real x) { return x < 0 ? 0 : x; }},
    {"trunc",
     [](const Tensor& x) { return x.trunc(); },
     [](Real x) { return std::trunc(x); },
     {.signs = true}},
    {"floor",
     [](const Tensor& x) { return x.floor(); },
     [](Real x) { return std::floor(x); },
     {.signs = true}},
    {"ceil",
     [](const Tensor& x) { return x.ceil(); },
     [](Real x) { return std::ceil(x); },
     {.signs = true}},
    {"round", [](const Tensor& x) { return x.round(); }, half_to_even, {.signs = true}},
    {"isnan",
     [](const Tensor& x) { return x.isnan(); },
     [](Real x) { return Real(std::isnan(x)); },
     {},
     Bool},
    {"isinf",
     [](const Tensor& x) { return x.isinf(); },
     [](Real x) { return Real(std::isinf(x)); },
     {},
     Bool},
    {"isfinite",
     [](const Tensor& x) { return x.isfinite(); },
     [](Real x) { return Real(std::isfinite(x)); },
     {},
     Bool},
    {"logical_not",
     [](const Tensor& x) { return x.logical_not(); },
     [](Real x) { return Real(x == 0); },
     {},
     Bool},
    {"hardtanh",
     [](const Tensor& x) { return x.hardtanh(-2, 3); },
     [](Real x) { return x < -2  ? -2
                         : x > 3 ? 3
                                 : x; },
     {},
     Void,
     false},
    {"leaky_relu",
     [](const Tensor& x) { return x.leaky_relu(0.25); },
     [](Real x) { return x < 0 ? x / 4 : x; },
     {.signs = true},
     Void,
     false},
    {"sqrt",
     [](const Tensor& x) { return x.sqrt(); },
     [](Real x) { return std::sqrt(x); },
     {0.501},
     Void,
     false},
    {"reciprocal",
     [](const Tensor& x) { return x.reciprocal(); },
     [](Real x) { return 1 / x; },
     {.units = 0.501, .signs = true},
     Void,
     false},
    {"rsqrt",
     [](const Tensor& x) { return x.rsqrt(); },
     [](Real x) { return 1 / std::sqrt(x); },
     {2},
     Void,
     false},
    {"exp",
     [](const Tensor& x) { return x.exp(); },
     [](Real x) { return std::exp(x); },
     {2},
     Void,
     false},
    {"exp2",
     [](const Tensor& x) { return x.exp2(); },
     [](Real x) { return std::exp2(x); },
     {2},
     Void,
     false},
    {"log",
     [](const Tensor& x) { return x.log(); },
     [](Real x) { return std::log(x); },
     {2},
     Void,
     false},
    {"log2",
     [](const Tensor& x) { return x.log2(); },
     [](Real x) { return std::log2(x); },
     {2},
     Void,
     false},
    {"sin",
     [](const Tensor& x) { return x.sin(); },
     [](Real x) { return std::sin(x); },
     {2},
     Void,
     false},
    {"cos",
     [](const Tensor& x) { return x.cos(); },
     [](Real x) { return std::cos(x); },
     {2},
     Void,
     false},
    {"tan",
     [](const Tensor& x) { return x.tan(); },
     [](Real x) { return std::tan(x); },
     {4},
     Void,
     false},
    {"tanh",
     [](const Tensor& x) { return x.tanh(); },
     [](Real x) { return std::tanh(x); },
     {4},
     Void,
     false},
    {"sigmoid", [](const Tensor& x) { return x.sigmoid(); }, logistic, {4}, Void, false},
    {"silu",
     [](const Tensor& x) { return x.silu(); },
     [](Real x) { return std::isinf(x) ? std::max<Real>(x, 0) : x * logistic(x); },
     {4},
     Void,
     false},
    {"erf",
     [](const Tensor& x) { return x.erf(); },
     [](Real x) { return std::erf(x); },
     {.units = 4, .signs = true},
     Void,
     false},
    {"erfc",
     [](const Tensor& x) { return x.erfc(); },
     [](Real x) { return std::erfc(x); },
     {4},
     Void,
     false},
    {"gelu", [](const Tensor& x) { return x.gelu(); }, gelu, {4}, Void, false},
    {"gelu by erf", [](const Tensor& x) { return x.gelu("none"); }, exact_gelu, {4}, Void, false},
    {"softplus",
     [](const Tensor& x) { return x.softplus(); },
     [](Real x) {
       return std::max<Real>(x, 0) + std::log1p(std::exp(-std::fabs(x))) + 0 * (x != x ? x : 0);
     },
     {4},
     Void,
     false},
    {"elu",
     [](const Tensor& x) { return x.elu(); },
     [](Real x) { return x > 0 ? x : std::expm1(x); },
     {4},
     Void,
     false},
    {"elu(0.75)",
     [](const Tensor& x) { return x.elu(0.75); },
     [](Real x) { return x > 0 ? x : 0.75L * std::expm1(x); },
     {4},
     Void,
     false},
    {"to_float",
     [](const Tensor& x) { return x.to_float(); },
     [](Real x) { return x; },
     {.signs = true},
     Float32},
};

// Zeros, halves, limits, numbers where functions leave the range, then any.
Plain curve_points(std::mt19937_64& random, DType dtype) {
  if (!is_float(dtype)) return exact_numbers(random, dtype, {7, 9});
  std::vector<Real> at{
      0,    -0.0L, inf,   -inf,   nan_value, 1,       -1,      0.5L,    -0.5L,
      1.5L, 2.5L,  -2.5L, -1.5L,  1e-40L,    -1e-40L, 1e30L,   -1e30L,  88,
      -103, 709,   -744,  0.625L, -0.625L,   127.5L,  -126.5L, 8388609, -4503599627370497.0L};
  while (at.size() < 160) {
    const Real size = std::exp2(static_cast<Real>(random() % 1500) / 50 - 20);
    at.push_back((random() % 2 ? size : -size) * (1 + static_cast<Real>(random() % 1024) / 1024));
  }
  Plain out = row_of(dtype, at);
  for (Real& v : out.at)  // as the dtype holds it
    v = dtype == Float32 ? static_cast<Real>(static_cast<float>(v))
                         : static_cast<Real>(static_cast<double>(v));
  return out;
}

struct Binary {
  const char* name;
  Tensor (*method)(const Tensor&, const Tensor&);
  Real (*definition)(Real, Real);
  Within within = {};
  DType result = Void;
  bool floats = true, integers = true;
};

template <class Combine>
Real of_bits(Real a, Real b, Combine combine) {
  return static_cast<Real>(combine(static_cast<int64_t>(a), static_cast<int64_t>(b)));
}

const std::vector<Binary> binaries = {
    {"+",
     [](const Tensor& a, const Tensor& b) { return a + b; },
     [](Real a, Real b) { return a + b; },
     {.signs = true}},
    {"-",
     [](const Tensor& a, const Tensor& b) { return a - b; },
     [](Real a, Real b) { return a - b; },
     {.signs = true}},
    {"*",
     [](const Tensor& a, const Tensor& b) { return a * b; },
     [](Real a, Real b) { return a * b; },
     {.signs = true}},
    {"/",
     [](const Tensor& a, const Tensor& b) { return a / b; },
     [](Real a, Real b) { return a / b; },
     {.units = 0.501, .signs = true},
     Void,
     true,
     false},
    {"/ of integers",
     [](const Tensor& a, const Tensor& b) { return a / b; },
     [](Real a, Real b) { return a / b; },
     {},
     Float32,
     false},
    {"<",
     [](const Tensor& a, const Tensor& b) { return a < b; },
     [](Real a, Real b) { return Real(a < b); },
     {},
     Bool},
    {"<=",
     [](const Tensor& a, const Tensor& b) { return a <= b; },
     [](Real a, Real b) { return Real(a <= b); },
     {},
     Bool},
    {">",
     [](const Tensor& a, const Tensor& b) { return a > b; },
     [](Real a, Real b) { return Real(a > b); },
     {},
     Bool},
    {">=",
     [](const Tensor& a, const Tensor& b) { return a >= b; },
     [](Real a, Real b) { return Real(a >= b); },
     {},
     Bool},
    {"==",
     [](const Tensor& a, const Tensor& b) { return a == b; },
     [](Real a, Real b) { return Real(a == b); },
     {},
     Bool},
    {"!=",
     [](const Tensor& a, const Tensor& b) { return a != b; },
     [](Real a, Real b) { return Real(a != b); },
     {},
     Bool},
    {"maximum", [](const Tensor& a, const Tensor& b) { return a.maximum(b); }, larger},
    {"minimum", [](const Tensor& a, const Tensor& b) { return a.minimum(b); }, smaller},
    {"pow",
     [](const Tensor& a, const Tensor& b) { return a.pow(b); },
     [](Real a, Real b) { return std::pow(a, b); },
     {4},
     Void,
     true,
     false},
    {"idiv",
     [](const Tensor& a, const Tensor& b) { return a.idiv(b); },
     [](Real a, Real b) { return b == 0 ? 0 : std::floor(a / b); },
     {},
     Void,
     false},
    {"mod",
     [](const Tensor& a, const Tensor& b) { return a.mod(b); },
     [](Real a, Real b) { return b == 0 ? 0 : a - b * std::floor(a / b); },
     {},
     Void,
     false},
    {"bitwise_and",
     [](const Tensor& a, const Tensor& b) { return a.bitwise_and(b); },
     [](Real a, Real b) { return of_bits(a, b, std::bit_and<>()); },
     {},
     Void,
     false},
    {"bitwise_or",
     [](const Tensor& a, const Tensor& b) { return a.bitwise_or(b); },
     [](Real a, Real b) { return of_bits(a, b, std::bit_or<>()); },
     {},
     Void,
     false},
    {"bitwise_xor",
     [](const Tensor& a, const Tensor& b) { return a.bitwise_xor(b); },
     [](Real a, Real b) { return of_bits(a, b, std::bit_xor<>()); },
     {},
     Void,
     false},
    {"lshift",
     [](const Tensor& a, const Tensor& b) { return a.lshift(b.abs()); },
     [](Real a, Real b) { return a * std::exp2(std::fabs(b)); },
     {},
     Void,
     false},
    {"rshift",
     [](const Tensor& a, const Tensor& b) { return a.rshift(b.abs()); },
     [](Real a, Real b) { return std::floor(a / std::exp2(std::fabs(b))); },
     {},
     Void,
     false},
};

struct Meeting {
  Shape a, b, both;
};
const std::vector<Meeting> meetings = {{{37}, {37}, {37}},
                                       {{}, {5}, {5}},
                                       {{}, {}, {}},
                                       {{3, 1, 5}, {4, 1}, {3, 4, 5}},
                                       {{2, 3}, {1, 2, 1, 1}, {1, 2, 2, 3}},
                                       {{0, 3}, {3}, {0, 3}}};

}  // namespace

TEST(methods, functions_of_one_operand) {
  std::mt19937_64 random(test_seed());
  for (const Unary& row : unaries)
    for (const DType d : {Float32, Float64, Int32}) {
      if (!is_float(d) && !row.integers) continue;
      const Plain x = curve_points(random, d);
      Plain want = plain(row.result == Void ? d : row.result, x.shape,
                         [&](const Place& i) { return row.definition(x(i)); });
      on_both(true, [&] {
        EXPECT_EQ(difference(want, row.method(tensor_of(x)), row.within), "")
            << row.name << " " << dtype_name(d) << ", seed " << test_seed();
      });
    }
}

TEST(methods, functions_of_two_operands) {
  std::mt19937_64 random(test_seed());
  for (const Binary& row : binaries)
    for (const Meeting& shapes : meetings)
      for (const DType d : {Float32, Float64, Int32}) {
        if (is_float(d) ? !row.floats : !row.integers) continue;
        const Plain a = special_numbers(random, d, shapes.a),
                    b = special_numbers(random, d, shapes.b);
        const Plain want =
            plain(row.result == Void ? d : row.result, shapes.both,
                  [&](const Place& i) { return row.definition(broadcast(a, i), broadcast(b, i)); });
        on_both(true, [&] {
          EXPECT_EQ(difference(want, row.method(tensor_of(a), tensor_of(b)), row.within), "")
              << row.name << " " << dtype_name(d) << ", seed " << test_seed();
        });
      }
}

TEST(methods, choices) {
  std::mt19937_64 random(test_seed());
  for (const DType d : {Float32, Float64, Int32, UInt8}) {
    const Plain x = special_numbers(random, d, {3, 4, 5}), y = special_numbers(random, d, {4, 1}),
                z = special_numbers(random, d, {5}), chosen = exact_numbers(random, Bool, {4, 5});
    auto each = [&](const std::function<Real(const Place&)>& f) { return plain(d, x.shape, f); };
    on_both(false, [&] {
      const Tensor t = tensor_of(x), u = tensor_of(y), v = tensor_of(z), c = tensor_of(chosen);
      const std::string seed = fmt::format("{}, seed {}", dtype_name(d), test_seed());
      EXPECT_EQ(difference(each([&](const Place& i) {
                             return broadcast(chosen, i) != 0 ? x(i) : broadcast(y, i);
                           }),
                           Tensor::where(c, t, u), {.signs = true}),
                "")
          << "where " << seed;
      EXPECT_EQ(
          difference(each([&](const Place& i) { return broadcast(chosen, i) != 0 ? 3 : x(i); }),
                     t.masked_fill(c, 3), {.signs = true}),
          "")
          << "masked_fill " << seed;
      EXPECT_EQ(difference(each([&](const Place& i) {
                             return smaller(larger(x(i), broadcast(y, i)), broadcast(z, i));
                           }),
                           t.clip(u, v)),
                "")
          << "clip " << seed;
      EXPECT_EQ(difference(each([&](const Place& i) { return smaller(larger(x(i), 1), 3); }),
                           t.clip(1, 3)),
                "")
          << "clip between literals " << seed;
    });
  }
}

}  // namespace koine::test

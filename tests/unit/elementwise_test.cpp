// Elementwise ops, casts, decompositions, random numbers: rows D and M of the specification.
#include <bit>
#include <cfloat>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numbers>
#include <sstream>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/eval.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/op_table.hpp"
#include "koine/ir/text.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/decompose.hpp"
#include "koine/transform/gradient.hpp"

namespace koine::test {
namespace {

const double nan_value = std::nan("");

// Largest error in units of the last place of float32, against a float64 function.
// The largest error in units of the last place, against a wider type.
template <class F, class Wide>
double worst_ulp(const std::vector<F>& in, const std::vector<F>& got, Wide (*exact)(Wide)) {
  double worst = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const Wide want = exact(in[i]);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got[i])) << in[i];
      continue;
    }
    const auto rounded = static_cast<F>(want);
    if (rounded == got[i]) continue;
    if (std::isinf(rounded) || std::isinf(got[i])) {
      ADD_FAILURE() << "f(" << in[i] << ") = " << got[i] << ", want " << rounded;
      continue;
    }
    const F ulp =
        std::nextafter(std::fabs(rounded), std::numeric_limits<F>::infinity()) - std::fabs(rounded);
    worst = std::max(worst, static_cast<double>(std::fabs(got[i] - want) / ulp));
  }
  return worst;
}

}  // namespace

TEST(elementwise, spec_D1_trunc_and_recip) {
  EXPECT_EQ(values(Tensor::from<float>({1.5f, -1.5f, -0.5f, 1e20f}).trunc()),
            (std::vector<double>{1, -1, 0, static_cast<double>(1e20f)}));
  const std::vector<float> z = Tensor::from<float>({-0.5f}).trunc().tolist<float>();
  EXPECT_TRUE(std::signbit(z[0])) << "trunc(-0.5) is -0";
  for (const DType d : stored_dtypes())
    if (is_float(d)) {
      expect_same_everywhere(unary(Op::Trunc, leaf({64}, d)));
      expect_same_everywhere(unary(Op::Recip, leaf({64}, d)));
    }
}

TEST(elementwise, spec_D1_spec_amend_30_cast_table) {
  for (const DType from : stored_dtypes())
    for (const DType to : stored_dtypes())
      expect_same_everywhere(koine::cast(leaf({96}, from), to));
  auto to_int = [](double v, DType d) {
    return Tensor(constant(DType::Float64, v)).cast(d).item<int64_t>();
  };
  EXPECT_EQ(to_int(300, DType::UInt8), 255);
  EXPECT_EQ(to_int(-5, DType::UInt8), 0);
  EXPECT_EQ(to_int(1e30, DType::Int32), INT32_MAX);
  EXPECT_EQ(to_int(nan_value, DType::Int32), 0);
}

TEST(elementwise, spec_amend_41_narrow_floats_round_once) {
  for (const DType d : {DType::Float16, DType::BFloat16, DType::Float8E4M3, DType::Float8E5M2}) {
    const int bits = dtype_info(d).bits;
    // Every value of the format, or a sample of the 16-bit ones, through decode and encode.
    std::vector<uint16_t> all;
    for (uint32_t b = 0; b < (1u << bits); b += bits == 16 ? 3 : 1)
      all.push_back(static_cast<uint16_t>(b));
    const Tensor raw = Tensor::from(all, {static_cast<int64_t>(all.size())});
    const Tensor x = bits == 16 ? raw.bitcast(d) : raw.cast(DType::UInt8).bitcast(d);
    expect_same_everywhere(koine::cast(x.uop(), DType::Float32));
    expect_same_everywhere(koine::cast(koine::cast(x.uop(), DType::Float64), d));
    expect_same_everywhere(koine::mul(x.uop(), x.uop()));
    expect_same_everywhere(koine::fdiv(leaf({500}, d), leaf({500}, d, 1)));
    expect_same_everywhere(koine::cast(leaf({500}, DType::Float64), d));
  }
}

TEST(elementwise, spec_D2_add_mul_max) {
  for (const DType d : stored_dtypes())
    for (const Op op : {Op::Add, Op::Mul, Op::Max})
      expect_same_everywhere(binary(op, leaf({7, 9}, d), leaf({9}, d, 1)));
  EXPECT_EQ((Tensor::from<int8_t>({127}) + Tensor::from<int8_t>({1})).item(), -128);
}

TEST(elementwise, spec_D3_division_identity_exhaustive) {
  std::vector<int8_t> a, b;
  for (int x = -128; x < 128; ++x)
    for (int y = -128; y < 128; ++y) {
      a.push_back(static_cast<int8_t>(x));
      b.push_back(static_cast<int8_t>(y));
    }
  const Tensor x = Tensor::from(a, {65536}), y = Tensor::from(b, {65536});
  const auto q = x.idiv(y).tolist<int>(), r = x.mod(y).tolist<int>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (b[i] == 0) {
      ASSERT_EQ(q[i], 0);
      ASSERT_EQ(r[i], 0);
      continue;
    }
    ASSERT_EQ(static_cast<int8_t>(q[i] * b[i] + r[i]), a[i]);
    if (a[i] == -128 && b[i] == -1) continue;
    ASSERT_EQ(q[i], static_cast<int>(std::floor(static_cast<double>(a[i]) / b[i])));
  }
  for (const DType d : stored_dtypes())
    if (is_integer(d))
      for (const Op op : {Op::Idiv, Op::Mod}) {
        expect_same_everywhere(binary(op, leaf({200}, d), leaf({200}, d, 1)));
        expect_same_everywhere(binary(op, leaf({200}, d), constant_int(d, 7)));
      }
}

// A CPU divides vectors of integers as floats: where the quotient is nearly whole, or as large as
// it gets, it is still the one of integers.
TEST(elementwise, spec_D3_quotients_beside_a_whole_number) {
  for (const DType d : stored_dtypes()) {
    if (!is_integer(d) || item_size(d) > 4) continue;
    const IntegerRange range = integer_range(d);
    const auto low = static_cast<int64_t>(range.low), high = static_cast<int64_t>(range.high);
    std::vector<int64_t> a, b;
    for (const int64_t divisor :
         std::vector<int64_t>{1, 2, 3, 7, 100, 127, 641, 65535, 65537, high - 1, high, -1, -2, -3,
                              -127, -65537, low + 1, low}) {
      if (divisor == 0 || divisor < low || divisor > high) continue;
      for (const int64_t whole : {low / divisor, high / divisor, high / divisor / 2, int64_t{0},
                                  int64_t{1}, int64_t{-1}, int64_t{12345}})
        for (const int64_t beside : {-1, 0, 1}) {
          const int64_t number = whole * divisor + beside;
          if (number < low || number > high || (number == low && divisor == -1)) continue;
          a.push_back(number);
          b.push_back(divisor);
        }
    }
    const auto n = static_cast<int64_t>(a.size());
    const Tensor x = Tensor::from(a, {n}).cast(d).realize(),
                 y = Tensor::from(b, {n}).cast(d).realize();
    const auto q = x.idiv(y).tolist<int64_t>(), r = x.mod(y).tolist<int64_t>();
    for (size_t i = 0; i < a.size(); ++i) {
      int64_t floored = a[i] / b[i];
      if (a[i] % b[i] != 0 && (a[i] < 0) != (b[i] < 0)) --floored;
      EXPECT_EQ(q[i], floored) << dtype_name(d) << ' ' << a[i] << " // " << b[i];
      EXPECT_EQ(r[i], a[i] - floored * b[i]) << dtype_name(d) << ' ' << a[i] << " % " << b[i];
    }
  }
}

TEST(elementwise, spec_D4_comparisons_and_nan) {
  const Tensor n(nan_value), one(1.0);
  EXPECT_FALSE((n < one).item<bool>());
  EXPECT_TRUE((n != n).item<bool>());
  for (const DType d : stored_dtypes()) {
    expect_same_everywhere(lt(leaf({50}, d), leaf({50}, d, 1)));
    expect_same_everywhere(ne(leaf({50}, d), leaf({50}, d, 1)));
  }
}

TEST(elementwise, spec_D5_bits_and_shifts) {
  for (const DType d : stored_dtypes()) {
    if (is_float(d)) continue;
    for (const Op op : {Op::Xor, Op::Or, Op::And})
      expect_same_everywhere(binary(op, leaf({50}, d), leaf({50}, d, 1)));
    if (d == DType::Bool) continue;
    for (const Op op : {Op::Shl, Op::Shr})
      expect_same_everywhere(binary(op, leaf({90}, d), leaf({90}, d, 1)));
  }
  EXPECT_EQ(Tensor::from<int32_t>({-8}).rshift(Tensor(1)).item(), -4);
  EXPECT_EQ(Tensor::from<int32_t>({-8}).rshift(Tensor(99)).item(), -1);
  EXPECT_EQ(Tensor::from<int32_t>({8}).lshift(Tensor(32)).item(), 0);
}

TEST(elementwise, spec_D6_where) {
  const Tensor p = Tensor::from<bool>({true, false}), a = Tensor::from<double>({1, nan_value}),
               b = Tensor::from<double>({inf, 2});
  EXPECT_EQ(values(Tensor::where(p, a, b)), (std::vector<double>{1, 2}));
  for (const DType d : stored_dtypes())
    expect_same_everywhere(koine::where(leaf({40}, DType::Bool), leaf({40}, d), leaf({40}, d, 1)));
}

TEST(elementwise, spec_D7_spec_D7b_spec_D7c_spec_D7f_spec_D8_spec_amend_1_compositions) {
  EXPECT_TRUE(std::signbit(Tensor::from<float>({0.0f}).neg().tolist<float>()[0]));
  EXPECT_EQ(Tensor::from<uint8_t>({1}).neg().item(), 255);
  EXPECT_TRUE(std::isnan((Tensor(inf) - Tensor(inf)).item()));
  EXPECT_EQ((Tensor::from<float>({5}) / Tensor::from<float>({3})).tolist<float>()[0], 5.0f / 3.0f);
  EXPECT_EQ((Tensor(1.0) / Tensor(0.0)).item(), inf);
  EXPECT_TRUE(std::isnan((Tensor(0.0) / Tensor(0.0)).item()));
  EXPECT_FALSE((Tensor(nan_value) >= Tensor(1.0)).item<bool>()) << "amendment C1";
  EXPECT_FALSE((Tensor(nan_value) <= Tensor(1.0)).item<bool>());
  EXPECT_FALSE((Tensor(nan_value) > Tensor(1.0)).item<bool>());
  EXPECT_TRUE((Tensor(-0.0) == Tensor(0.0)).item<bool>());
  expect_error([] { (void)Tensor::from<bool>({true}).neg(); }, {"Neg", "bool"});
  expect_error([] { (void)logical_not(constant_int(DType::Int32, 1)); }, {"Not", "int32"});
}

TEST(elementwise, spec_D9_transcendentals_are_accurate) {
  std::mt19937_64 random(test_seed());
  std::vector<float> x, positive, angle;
  for (int i = 0; i < 20000; ++i) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    x.push_back(static_cast<float>(-150 + 280 * u));
    positive.push_back(std::bit_cast<float>(static_cast<uint32_t>(random() % 0x7f800000)));
    angle.push_back(static_cast<float>((u - 0.5) * 2e5));
  }
  for (const float s : {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 0.5f, 1e-40f, 127.0f,
                        -126.0f, -149.0f}) {
    x.push_back(s);
    positive.push_back(s);
    angle.push_back(s);
  }
  const auto n = static_cast<int64_t>(x.size()), angles = static_cast<int64_t>(angle.size());
  EXPECT_LE(
      worst_ulp(
          x, Tensor::from(x, {n}).exp2().tolist<float>(), +[](double v) { return std::exp2(v); }),
      2.0);
  EXPECT_LE(worst_ulp(
                positive, Tensor::from(positive, {n}).log2().tolist<float>(),
                +[](double v) { return std::log2(v); }),
            2.0);
  EXPECT_LE(worst_ulp(
                angle, Tensor::from(angle, {angles}).sin().tolist<float>(),
                +[](double v) { return std::sin(v); }),
            1.0);
  // Any size, and what comes closest to a multiple of pi/2 (16367173 2^72, J.-M. Muller, Elementary
  // Functions, 2016).
  std::vector<float> far{std::ldexp(16367173.0f, 72), 1e10f, 1e20f, 1e30f, 3e38f};
  for (int i = 0; i < 20000; ++i)
    far.push_back(std::bit_cast<float>(static_cast<uint32_t>(random() % 0x7f800000)) *
                  (i % 2 ? 1.0f : -1.0f));
  for (int i = 0; i < 20000; ++i)  // float32 neighbours of multiples of pi/2
    far.push_back(
        static_cast<float>(static_cast<double>(random() % 2'000'000) * 1.5707963267948966));
  const Tensor out_there = Tensor::from(far, {static_cast<int64_t>(far.size())});
  EXPECT_LE(
      worst_ulp(far, out_there.sin().tolist<float>(), +[](double v) { return std::sin(v); }), 1.0);
  EXPECT_LE(
      worst_ulp(far, out_there.cos().tolist<float>(), +[](double v) { return std::cos(v); }), 1.0);
  expect_same_everywhere(out_there.shrink({{0, 400}}).sin());
  expect_same_everywhere(out_there.shrink({{0, 400}}).cos());
  for (const DType d : {DType::Float16, DType::Float32, DType::Float64}) {
    for (const Op op : {Op::Exp2, Op::Log2, Op::Sin})
      expect_same_everywhere(unary(op, leaf({333}, d)));
    for (int64_t turns = 1; turns < 4; ++turns) expect_same_everywhere(sine(leaf({333}, d), turns));
  }
  const UOp angles_node = leaf({7});
  EXPECT_EQ(parse(to_text(sine(angles_node, 3))), sine(angles_node, 3));
  EXPECT_EQ(sine(angles_node, 4), unary(Op::Sin, angles_node));
  const double zero = -0.0;
  const Tensor nothing = Tensor::from<double>({zero});
  for (int64_t turns = 0; turns < 4; ++turns)
    EXPECT_EQ(Tensor(sine(nothing.uop(), turns)).item(), turns == 1 ? 1 : turns == 3 ? -1 : 0);
  EXPECT_TRUE(std::signbit(Tensor(sine(nothing.uop())).item()));
}

// The table of docs/switches.md.
TEST(elementwise, spec_D9_accuracy_in_float64_and_of_pow) {
  std::mt19937_64 random(test_seed());
  auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53;
  };
  std::vector<double> x, positive, angle, base, power;
  std::vector<float> base32, power32;
  for (int i = 0; i < 20000; ++i) {
    x.push_back(uniform(-1080, 1030));
    positive.push_back(std::bit_cast<double>(random() % 0x7ff0000000000000));
    angle.push_back(uniform(-1e6, 1e6));
    base.push_back(std::exp2(uniform(-60, 60)));
    power.push_back(uniform(-16, 16));
    base32.push_back(static_cast<float>(std::exp2(uniform(-12, 12))));
    power32.push_back(static_cast<float>(uniform(-10, 10)));
  }
  const int64_t n = 20000;
  EXPECT_LE(worst_ulp(
                x, Tensor::from(x, {n}).exp2().tolist<double>(),
                +[](long double v) { return std::exp2(v); }),
            2.0);
  EXPECT_LE(worst_ulp(
                positive, Tensor::from(positive, {n}).log2().tolist<double>(),
                +[](long double v) { return std::log2(v); }),
            2.0);
  EXPECT_LE(worst_ulp(
                angle, Tensor::from(angle, {n}).sin().tolist<double>(),
                +[](long double v) { return std::sin(v); }),
            2.0);
  // Any magnitude; the last one is the float64 closest to a multiple of pi/2.
  std::vector<double> wide{INFINITY,
                           -INFINITY,
                           NAN,
                           DBL_MAX,
                           0x1p20,
                           -0x1p20,
                           0x1.fffffffffffffp19,
                           0x1p1023,
                           -1e300,
                           1e22,
                           -0.0,
                           std::ldexp(6381956970095103, 797)};
  // Next to a zero of the sine or the cosine all parts of pi count.
  for (int i = 0; i < 4000; ++i)
    wide.push_back(static_cast<double>(std::numbers::pi_v<long double> / 2 *
                                       static_cast<long double>(1 + random() % 600000)));
  while (wide.size() < static_cast<size_t>(n))
    wide.push_back(std::copysign(std::exp2(uniform(-60, 1024)), uniform(-1, 1)));
  const Tensor anywhere = Tensor::from(wide, {n});
  EXPECT_LE(worst_ulp(
                wide, anywhere.sin().tolist<double>(), +[](long double v) { return std::sin(v); }),
            2.0);
  EXPECT_LE(worst_ulp(
                wide, anywhere.cos().tolist<double>(), +[](long double v) { return std::cos(v); }),
            2.0);
  expect_same_everywhere(anywhere.shrink({{0, 400}}).sin());
  auto pow_of = [](const auto& a, const auto& b) {
    return Tensor(binary(Op::Pow, Tensor::from(a, {20000}).uop(), Tensor::from(b, {20000}).uop()));
  };
  // The last ones: results near the ends of the range, bases next to 1, whole powers.
  for (size_t i = 0; i < 3000; ++i) {
    base[i] = i < 1000 ? 1 + uniform(-1e-6, 1e-6) : std::exp2(uniform(-1000, 1000));
    power[i] = i < 1000   ? uniform(-6e8, 6e8)
               : i < 2000 ? uniform(-1020, 1020) / std::log2(base[i])
                          : static_cast<double>(static_cast<int>(uniform(-4, 5)));
  }
  const auto p64 = pow_of(base, power).tolist<double>();
  const auto p32 = pow_of(base32, power32).tolist<float>();
  double worst64 = 0, worst32 = 0;
  for (size_t i = 0; i < p64.size(); ++i) {
    const long double want = std::pow(static_cast<long double>(base[i]), power[i]);
    const auto rounded = static_cast<double>(want);
    if (std::isinf(rounded) || std::fabs(rounded) < DBL_MIN) {
      EXPECT_TRUE(p64[i] == rounded || std::fabs(p64[i] - rounded) < DBL_MIN * 1e-15)
          << base[i] << " " << power[i] << " " << p64[i];
      continue;
    }
    worst64 = std::max(worst64, static_cast<double>(std::fabs(p64[i] / want - 1)) * 0x1p53);
    const double want32 = std::pow(static_cast<double>(base32[i]), power32[i]);
    worst32 = std::max(worst32, std::fabs(p32[i] / want32 - 1));
  }
  EXPECT_LE(worst64, 4.0);
  std::vector<double> bases, exponents;
  const double corners[] = {0.0,    -0.0,   1,          -1,       2,         -2,    0.5,
                            -0.5,   3,      -3,         INFINITY, -INFINITY, NAN,   1e300,
                            -1e300, 0x1p53, 0x1p53 - 1, 5e-324,   DBL_MAX,   -7.25, 0.1};
  for (const double a : corners)
    for (const double b : corners) {
      bases.push_back(a);
      exponents.push_back(b);
    }
  const auto count = static_cast<int64_t>(bases.size());
  const auto at_corners = Tensor(binary(Op::Pow, Tensor::from(bases, {count}).uop(),
                                        Tensor::from(exponents, {count}).uop()))
                              .tolist<double>();
  for (size_t i = 0; i < bases.size(); ++i) {
    const double want = std::pow(bases[i], exponents[i]), got = at_corners[i];
    const bool right = std::isnan(want) ? std::isnan(got)
                                        : std::signbit(got) == std::signbit(want) &&
                                              (got == want || std::fabs(got / want - 1) < 0x1p-51);
    EXPECT_TRUE(right) << bases[i] << " ^ " << exponents[i] << " = " << want << ", not " << got;
  }
  EXPECT_LE(worst32, 6e-8) << "computed in float64, rounded once";
}

// The table of docs/ops.json is what derivation does, what a person would say, and what runs: each
// legal op on each dtype gives that dtype, on interpreter and CPU; each other one is refused.
TEST(elementwise, spec_P1_spec_amend_11_every_op_on_every_dtype) {
  std::ifstream in("docs/ops.json");
  std::stringstream text;
  text << in.rdbuf();
  ASSERT_EQ(text.str(), op_table_json()) << "write it anew: koine ops > docs/ops.json";
  auto stated = [](Op op, DType d) {
    switch (op) {
      case Op::Exp2:
      case Op::Log2:
      case Op::Sin:
      case Op::Sqrt:
      case Op::Pow:
      case Op::Fdiv:
      case Op::Recip:
        return is_float(d);
      case Op::Mod:
        return d != DType::Bool;
      case Op::Idiv:
      case Op::Shl:
      case Op::Shr:
        return is_integer(d);
      case Op::And:
      case Op::Or:
      case Op::Xor:
        return is_integer(d) || d == DType::Bool;
      case Op::Threefry:
        return d == DType::UInt64;
      default:  // Trunc of an integer is the integer
        return true;
    }
  };
  int legal = 0;
  for (const auto& row : nlohmann::json::parse(text.str())) {
    if (!row.contains("dtypes")) continue;
    const Op op = *op_from_name(row["op"].get<std::string>());
    for (const DType d : stored_dtypes()) {
      const std::string name(dtype_name(d));
      EXPECT_EQ(row["dtypes"].contains(name), stated(op, d)) << op_name(op) << " of " << name;
      std::vector<UOp> src;
      for (int i = 0; i < op_info(op).fewest; ++i)
        src.push_back(
            leaf({11}, op == Op::Where && i == 0 ? DType::Bool : d, static_cast<uint64_t>(i)));
      auto make = [&] { return UOp::make(op, src, op == Op::Cast ? Arg(d) : Arg()); };
      if (!row["dtypes"].contains(name)) {
        expect_error([&] { (void)make(); }, {std::string(op_name(op)), name});
        continue;
      }
      ++legal;
      const UOp node = make();
      EXPECT_EQ(dtype_name(node.dtype()), row["dtypes"][name].get<std::string>());
      EXPECT_EQ(interpret(node, bindings_of(node)).dtype, node.dtype());
      expect_same_everywhere(node);
      // Base e, and the quarter turns of a sine.
      if (op == Op::Exp2 || op == Op::Log2 || op == Op::Sin)
        expect_same_everywhere(UOp::make(op, src, int64_t{1}));
    }
  }
  EXPECT_GT(legal, 200);
}

// Division and square root are correctly rounded; their decompositions stand by for targets without
// them, and are close.
TEST(elementwise, spec_amend_3_native_and_decomposed) {
  std::mt19937_64 random(test_seed());
  std::vector<float> a, b;
  for (int i = 0; i < 20000; ++i) {
    a.push_back(std::bit_cast<float>(static_cast<uint32_t>(0x30000000 + random() % 0x20000000)));
    b.push_back(std::bit_cast<float>(static_cast<uint32_t>(0x30000000 + random() % 0x20000000)));
  }
  const Tensor x = Tensor::from(a, {20000}), y = Tensor::from(b, {20000});
  const auto quotient = (x / y).tolist<float>(), root = x.sqrt().tolist<float>();
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(quotient[i], a[i] / b[i]);
    ASSERT_EQ(root[i], std::sqrt(a[i]));
  }
  // Without native Sqrt; Fdiv becomes a product with a reciprocal, here itself native.
  Target machine;
  machine.float_ops = ops({Op::Recip, Op::Trunc});
  DecomposeContext target{machine};
  const UOp graph = stack(std::vector<UOp>{fdiv(x.uop(), y.uop()), unary(Op::Sqrt, x.uop())});
  const UOp plain = rewrite(graph, transcendental_rules() + fallback_rules(), target);
  for (const UOp& u : toposort(plain)) EXPECT_FALSE(u.is(Op::Fdiv) || u.is(Op::Sqrt));
  const Array values = interpret(plain, bindings_of(plain));
  for (size_t i = 0; i < a.size(); ++i) {
    const double q = bits_to_double(DType::Float32, values.data[i]),
                 r = bits_to_double(DType::Float32, values.data[a.size() + i]);
    ASSERT_NEAR(q / (static_cast<double>(a[i]) / b[i]), 1, 2.5e-7);
    ASSERT_NEAR(r / std::sqrt(static_cast<double>(a[i])), 1, 1e-6);
  }
}

TEST(elementwise, spec_D10_sqrt_pow_mulacc) {
  std::vector<float> x;
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 5000; ++i)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random() % 0x7f800000)));
  const auto roots = Tensor::from(x, {5000}).sqrt().tolist<float>();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(roots[i], std::sqrt(x[i]));
  auto power = [](double a, double b) {
    return Tensor(binary(Op::Pow, constant(DType::Float32, a), constant(DType::Float32, b))).item();
  };
  EXPECT_EQ(power(-2, 3), -8);
  EXPECT_EQ(power(0, 0), 1);
  EXPECT_EQ(power(0, -1), inf);
  EXPECT_EQ(power(nan_value, 0), 1);
  EXPECT_EQ(power(1, nan_value), 1);
  EXPECT_EQ(power(-1, inf), 1);
  EXPECT_TRUE(std::isnan(power(-2, 0.5)));
  EXPECT_EQ(power(-inf, 3), -inf);
  for (const DType d : {DType::Float32, DType::Float64}) {
    expect_same_everywhere(binary(Op::Pow, leaf({200}, d), leaf({200}, d, 1)));
    expect_same_everywhere(mulacc(leaf({200}, d), leaf({200}, d, 1), leaf({200}, d, 2)));
  }
}

// Known answers of Random123 for threefry2x32-20 (Salmon et al. 2011).
// Of a negative exponent the power is a fraction, of which a whole number keeps what lies towards
// 0.
TEST(elementwise, spec_D10_whole_powers_of_whole_numbers) {
  const auto expected = [](int64_t base, int64_t exponent) -> int64_t {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 != 0 ? -1 : 1) : 0;
    uint64_t out = 1;
    for (int64_t k = 0; k < exponent; ++k) out *= static_cast<uint64_t>(base);
    return static_cast<int64_t>(out);
  };
  std::vector<int64_t> bases, exponents;
  for (const int64_t b : {-7, -2, -1, 0, 1, 2, 3, 10})
    for (const int64_t e : {-64, -3, -2, -1, 0, 1, 2, 3, 7, 31, 63, 64, 127}) {
      bases.push_back(b);
      exponents.push_back(e);
    }
  const auto count = static_cast<int64_t>(bases.size());
  const Tensor b = Tensor::from(bases, {count}), e = Tensor::from(exponents, {count});
  for (const DType d : {DType::Int8, DType::Int16, DType::Int32, DType::Int64}) {
    const auto wide = b.cast(d).pow(e.cast(d)).cast(DType::Int64).tolist<int64_t>();
    for (size_t i = 0; i < bases.size(); ++i) {
      const Tensor narrowed = Tensor(expected(bases[i], exponents[i])).cast(d).cast(DType::Int64);
      EXPECT_EQ(wide[i], narrowed.item<int64_t>())
          << dtype_name(d) << ": " << bases[i] << " to the power of " << exponents[i];
      if (d != DType::Int64) continue;  // the exponent known as it is described
      const Tensor known = Tensor(bases[i]).pow(Tensor(exponents[i]));
      EXPECT_EQ(known.item<int64_t>(), expected(bases[i], exponents[i]))
          << bases[i] << " " << exponents[i];
    }
  }
  const Tensor natural = Tensor::from<int64_t>({0, 1, 2, 3, 255}).cast(DType::UInt8);
  EXPECT_EQ(natural.pow(natural.flip({0})).tolist<int>(), (std::vector<int>{0, 1, 4, 3, 1}));
  // The highest bit of an exponent that is known is set: each of the others is a choice.
  for (const auto& [exponent, choices] : {std::pair{1, 0}, {6, 2}, {100, 6}})
    EXPECT_EQ(count_ops(natural.cast(DType::Int32).pow(Tensor(exponent)).uop(), Op::Where),
              choices);
}

TEST(elementwise, spec_D11_spec_amend_26_threefry_known_answers) {
  struct Row {
    uint32_t counter[2], key[2], out[2];
  };
  const Row rows[] = {
      {{0, 0}, {0, 0}, {0x6b200159, 0x99ba4efe}},
      {{0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x1cb996fc, 0xbb002be7}},
      {{0x243f6a88, 0x85a308d3}, {0x13198a2e, 0x03707344}, {0xc4923a9c, 0x483df7a0}}};
  for (const Row& r : rows) {
    auto pack = [](const uint32_t* w) { return static_cast<uint64_t>(w[1]) << 32 | w[0]; };
    const UOp t = binary(Op::Threefry, Tensor::from<uint64_t>({pack(r.counter)}).uop(),
                         Tensor::from<uint64_t>({pack(r.key)}).uop());
    EXPECT_EQ(Tensor(t).tolist<uint64_t>()[0], pack(r.out));
    expect_same_everywhere(t);
  }
}

TEST(elementwise, spec_amend_36_random_tensors) {
  Tensor::manual_seed(42);
  const Tensor a = Tensor::rand({10000}), b = Tensor::rand({10000});
  const auto x = a.tolist<float>(), y = b.tolist<float>();
  EXPECT_NE(x, y);
  double mean = 0;
  for (const float v : x) {
    ASSERT_TRUE(v >= 0 && v < 1);
    mean += v / 10000;
  }
  EXPECT_NEAR(mean, 0.5, 0.02);
  Tensor::manual_seed(42);
  EXPECT_EQ(Tensor::rand({10000}).tolist<float>(), x) << "the seed fixes the numbers";
  Tensor::manual_seed(42);
  auto both = x;
  both.insert(both.end(), y.begin(), y.end());
  EXPECT_EQ(Tensor::rand({20000}).tolist<float>(), both) << "draws go on where the last one ended";
  const Tensor n = Tensor::randn({20000});
  EXPECT_NEAR(n.mean().item(), 0, 0.03);
  EXPECT_NEAR(n.std().item(), 1, 0.03);
  auto perm = Tensor::randperm(100).tolist<int>();
  std::sort(perm.begin(), perm.end());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(perm[static_cast<size_t>(i)], i);
  for (const int v : Tensor::randint({1000}, -3, 4).tolist<int>()) ASSERT_TRUE(v >= -3 && v < 4);
  const Tensor d = Tensor::ones({10000}).dropout(0.25);
  EXPECT_NEAR(d.mean().item(), 1, 0.05);
}

TEST(elementwise, spec_M1_markers) {
  const Tensor x(leaf({4, 4}, DType::Float32));
  EXPECT_EQ(kernel_count({(x + Tensor(1.0)).contiguous() * Tensor(2.0)}), 2)
      << "contiguous splits kernels";
  EXPECT_EQ(kernel_count({(x + Tensor(1.0)) * Tensor(2.0)}), 1);
  Tensor w = Tensor::ones({3}).requires_grad();
  EXPECT_EQ((w * w.detach()).sum().gradient({w})[0].tolist<float>(), (std::vector<float>{1, 1, 1}));
  EXPECT_EQ(w.contiguous_backward().sum().gradient({w})[0].tolist<float>(),
            (std::vector<float>{1, 1, 1}));
}

TEST(elementwise, promotion_is_numpys) {
  EXPECT_EQ(promote(DType::Int8, DType::UInt8), DType::Int16);
  EXPECT_EQ(promote(DType::Int16, DType::UInt16), DType::Int32);
  EXPECT_EQ(promote(DType::Int32, DType::UInt32), DType::Int64);
  EXPECT_EQ(promote(DType::Int8, DType::UInt32), DType::Int64);
  EXPECT_EQ(promote(DType::Int64, DType::UInt64), DType::Float64);
  EXPECT_EQ(promote(DType::Int32, DType::Float32), DType::Float64);
  EXPECT_EQ(promote(DType::Float16, DType::BFloat16), DType::Float32);
  EXPECT_EQ((Tensor::ones({2}, DType::Float16) * Tensor(2.0)).dtype(), DType::Float16)
      << "a literal takes its partner's dtype";
  for (const DType a : stored_dtypes())
    for (const DType b : stored_dtypes())
      EXPECT_EQ(promote(a, b), promote(b, a)) << dtype_name(a) << " " << dtype_name(b);
}

}  // namespace koine::test

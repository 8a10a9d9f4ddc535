// Remainders, literals, integers of 64 bits and narrow dtypes at the Tensor's surface.
#include <cfloat>
#include <cmath>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/rules/remainder.hpp"
#include "plain.hpp"

namespace koine::test {
namespace {

// Python's rule over the exact remainder of the C library; never b itself, which a rounded sum
// could be.
template <class F>
F python_remainder(F a, F b) {
  const F part = std::fmod(a, b);
  if (part == 0) return std::copysign(F(0), b);
  if ((part < 0) == (b < 0)) return part;
  const F sum = part + b;
  return sum == b && !std::isinf(b) ? std::nextafter(b, F(0)) : sum;
}

template <class F>
std::vector<F> any_floats(std::mt19937_64& random, size_t n) {
  std::vector<F> out{0,
                     F(-0.0),
                     1,
                     -1,
                     F(inf),
                     F(-inf),
                     F(NAN),
                     std::numeric_limits<F>::max(),
                     std::numeric_limits<F>::denorm_min(),
                     -std::numeric_limits<F>::min()};
  while (out.size() < n) {
    if constexpr (sizeof(F) == 4)
      out.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    else
      out.push_back(std::bit_cast<double>(random()));
    // Numbers close to the last one, and whole ones, too.
    const F last = out.back();
    out.push_back(last * F(static_cast<int>(random() % 999)) / F(31));
    out.push_back(F(static_cast<int>(random() % 2001) - 1000));
  }
  out.resize(n);
  return out;
}

template <class F>
void expect_remainders(const std::vector<F>& a, const std::vector<F>& b) {
  const auto n = static_cast<int64_t>(a.size());
  const auto got = Tensor::from(a, {n}).mod(Tensor::from(b, {n})).template tolist<F>();
  int bad = 0;
  for (size_t i = 0; i < a.size() && bad < 10; ++i) {
    const F want = python_remainder(a[i], b[i]);
    const bool right = std::isnan(want)
                           ? std::isnan(got[i])
                           : got[i] == want && std::signbit(got[i]) == std::signbit(want);
    bad += right ? 0 : 1;
    EXPECT_TRUE(right) << a[i] << " mod " << b[i] << " is " << want << ", not " << got[i];
  }
}

}  // namespace

TEST(numbers, spec_D3_remainders_of_floats_are_exact) {
  auto one = [](double a, double b) {
    return Tensor::full({1}, a, DType::Float64).mod(Tensor::full({1}, b, DType::Float64)).item();
  };
  EXPECT_EQ(Tensor::from<float>({3e38f}).mod(Tensor(7)).item<float>(), std::fmod(3e38f, 7.0f));
  EXPECT_EQ(one(1e17, 3), 1);
  EXPECT_EQ(one(1, 1e-320), std::fmod(1.0, 1e-320));
  EXPECT_EQ(one(DBL_MAX, 5e-324), 0);
  EXPECT_EQ(one(-5e-324, DBL_MAX), std::nextafter(DBL_MAX, 0));
  std::mt19937_64 random(test_seed());
  for (const bool strict : {false, true}) {
    Options options = strict ? strict_options() : koine::options();
    const OptionScope scope(options);
    expect_remainders(any_floats<float>(random, 40000), any_floats<float>(random, 40000));
    expect_remainders(any_floats<double>(random, 20000), any_floats<double>(random, 20000));
  }
  for (const DType d : stored_dtypes())
    if (is_float(d)) expect_same_everywhere(mod(leaf({500}, d), leaf({500}, d, 1)));
}

// Machines without float64 have the same bits by integers of 32 bits: all pairs of far and near,
// subnormal, and not finite.
TEST(numbers, spec_D3_remainders_without_float64) {
  std::mt19937_64 random(test_seed());
  const auto left = any_floats<float>(random, 40000), right = any_floats<float>(random, 40000);
  const Tensor a = Tensor::from(left, {40000}), b = Tensor::from(right, {40000});
  const OptionScope scope(strict_options());
  for (const DType d :
       {DType::Float32, DType::Float16, DType::BFloat16, DType::Float8E4M3, DType::Float8E5M2}) {
    const UOp x = a.cast(d).uop(), y = b.cast(d).uop();
    const UOp single = float_remainder(x, y, false);
    for (const UOp& u : toposort(single)) EXPECT_NE(u.dtype(), DType::Float64);
    const Bindings bindings = bindings_of(single);
    EXPECT_EQ(difference(interpret(mod(x, y), bindings), interpret(single, bindings)), "")
        << dtype_name(d) << " KOINE_TEST_SEED=" << test_seed();
    if (d != DType::Float32) continue;
    EXPECT_EQ(difference(interpret(mod(x, y), bindings), run_on(single, "CPU")), "");
  }
  // So texts of Metal have them; float64 itself, and what is computed in it, are refused.
  const UOp x = leaf({40}), y = leaf({40}, DType::Float32, 1);
  const auto lowered = [](const UOp& value) {
    return lower_kernel(schedule({value})[0].ast, text_target("metal", true)).linear;
  };
  EXPECT_NE(render("metal", "k", lowered(mod(x, y)), false).find("mod_u32("), std::string::npos);
  expect_error([&] { (void)lowered(unary(Op::Sin, x)); },
               {"metal-strict has no type for float64, which ", " needs"});
  const UOp wide = leaf({40}, DType::Float64);
  expect_error([&] { (void)lowered(mod(wide, wide)); }, {"no type for float64"});
}

// A product that is the divisor has one rounding, where it is compared and where it is added.
TEST(numbers, spec_D3_remainders_by_a_product) {
  for (const DType d : {DType::Float32, DType::Float64}) {
    const UOp factor = leaf({500}, d, 1);
    expect_same_everywhere(mod(leaf({500}, d), mul(factor, factor)));
    expect_same_everywhere(mod(neg(leaf({500}, d)), mul(factor, leaf({500}, d, 2))));
  }
}

// Remainders of one unit of the divisor's last place: the quotient is as near above a whole number
// as it can be, so that it may be estimated one too low.
TEST(numbers, spec_D3_remainders_of_one_unit) {
  std::mt19937_64 random(test_seed());
  std::vector<float> a, b;
  for (int i = 0; i < 4000; ++i) {
    const auto n = static_cast<int64_t>((0xfff000 + random() % 0xfff) | 1);
    const int shift = 24 + static_cast<int>(random() % 8);
    // m 2^shift = 1 modulo n, as 2 has the inverse (n + 1) / 2.
    int64_t m = 1;
    for (int k = 0; k < shift; ++k) m = m * ((n + 1) / 2) % n;
    a.push_back(std::ldexp(static_cast<float>(m), shift));
    b.push_back(static_cast<float>(n));
    ASSERT_EQ(std::fmod(a.back(), b.back()), 1);
  }
  in_both_modes([&] {
    expect_remainders(a, b);
    expect_remainders(std::vector<double>(a.begin(), a.end()),
                      std::vector<double>(b.begin(), b.end()));
  });
}

// Every distance of exponents between float64 numbers, with digits at both ends of their range, and
// next to multiples.
TEST(numbers, spec_D3_remainders_at_every_distance) {
  std::mt19937_64 random(test_seed());
  std::vector<double> a, b;
  for (int distance = 0; distance <= 2097; ++distance)
    for (const double step : {1.0, 1 + 0x1p-52, 1.5, 2 - 0x1p-52,
                              1 + std::ldexp(static_cast<double>(random() >> 12), -52)})
      for (const double size :
           {1.0, 2 - 0x1p-52, 1 + std::ldexp(static_cast<double>(random() >> 12), -52)}) {
        const int low = std::max(-1074, 1000 - distance);
        b.push_back(std::ldexp(step, low));
        a.push_back(std::ldexp(size, low + distance));
        // A multiple, where there is one, and its neighbours.
        const double multiple = a.back() - std::fmod(a.back(), b.back());
        for (const double near :
             {multiple, std::nextafter(multiple, 0), std::nextafter(multiple, inf)}) {
          a.push_back(near);
          b.push_back(b.back());
        }
      }
  for (const bool strict : {false, true}) {
    const OptionScope scope(strict ? strict_options() : options());
    expect_remainders(a, b);
  }
  // Long division of 2000 bits without a loop over them.
  const LoweredKernel k = lower_kernel(
      schedule({mod(leaf({64}, DType::Float64), leaf({64}, DType::Float64, 1))})[0].ast,
      generic_target(false));
  double operations = 0;
  for (const UOp& u : k.linear.src()) operations += is_elementwise(u.op()) ? 1 : 0;
  EXPECT_LT(operations, 400) << "for a vector, with what surrounds the remainder";
}

// Every pair of 8-bit floats; float16 by every pattern with some divisors.
TEST(numbers, spec_D3_remainders_of_narrow_floats) {
  in_both_modes([] {
    for (const DType d : {DType::Float8E4M3, DType::Float8E5M2, DType::Float16, DType::BFloat16}) {
      const int64_t n = item_size(d) == 1 ? 256 : 65536;
      std::vector<uint16_t> patterns(static_cast<size_t>(n));
      for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
      const Tensor all = Tensor::from(patterns, {n}).cast(storage_uint(d)).bitcast(d);
      const int64_t divisors = n == 256 ? 256 : 16;
      const Tensor some = all.reshape({divisors, n / divisors}).shrink({{0, divisors}, {0, 1}});
      const auto got = all.reshape({1, n}).mod(some).cast(DType::Float32).tolist<float>();
      const auto x = all.cast(DType::Float32).tolist<float>(),
                 y = some.cast(DType::Float32).tolist<float>();
      int64_t bad = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const float a = x[i % static_cast<size_t>(n)], b = y[i / static_cast<size_t>(n)];
        const float part = std::fmod(a, b);
        const bool other_side = part != 0 && (part < 0) != (b < 0);
        const double sum = static_cast<double>(part) + b;
        float want = python_remainder(a, b);
        if (other_side && std::isfinite(b)) {  // rounds to the dtype, but not to b
          want = static_cast<float>(bits_to_double(d, double_to_bits(d, static_cast<float>(sum))));
          if (want == b) want = static_cast<float>(bits_to_double(d, double_to_bits(d, b) - 1));
        }
        bad += std::isnan(want) ? !std::isnan(got[i]) : got[i] != want;
      }
      EXPECT_EQ(bad, 0) << dtype_name(d);
    }
  });
}

TEST(numbers, spec_D3_floor_division_of_floats) {
  in_both_modes([] {
    // numpy.floor_divide in float64.
    const Tensor a =
        Tensor::from<double>({1e17, 1, 1, -1, 0.3, -0.3, 7, -7, 3, -3, 3, inf, NAN, 1e300, -0.0});
    const Tensor b = Tensor::from<double>(
        {3, 0.1, 1e-320, inf, 0.1, 0.1, -2, -2, inf, -inf, 0, 2, 1, 1e-300, 2});
    expect_exactly(a.idiv(b),
                   {33333333333333333.0, 9, inf, -1, 2, -3, -4, 3, 0, 0, inf, NAN, NAN, inf, -0.0});
    // Against whole-number arithmetic.
    std::mt19937_64 random(test_seed());
    std::vector<double> x, y, wanted;
    for (int i = 0; i < 20000; ++i) {
      const auto p = static_cast<int64_t>(random() >> 11) - (int64_t{1} << 52);
      const auto q = static_cast<int64_t>(random() % (i % 2 ? 1000 : uint64_t{1} << 40)) + 1;
      x.push_back(static_cast<double>(p));
      y.push_back(static_cast<double>(q));
      wanted.push_back(static_cast<double>(p / q - (p % q < 0 ? 1 : 0)));
    }
    EXPECT_EQ(Tensor::from(x, {20000}).idiv(Tensor::from(y, {20000})).tolist<double>(), wanted);
  });
}

namespace {

// Every pattern of the narrow floats; of the wide ones a sample, with each kind of number in it.
std::vector<uint64_t> patterns_of(DType d) {
  std::vector<uint64_t> out;
  if (item_size(d) <= 2) {
    for (uint64_t i = 0; i < uint64_t{1} << (8 * item_size(d)); ++i) out.push_back(i);
    return out;
  }
  const bool single = d == DType::Float32;
  const uint64_t sign = single ? 0x80000000 : uint64_t{1} << 63;
  const uint64_t infinity = single ? 0x7f800000 : 0x7ff0000000000000;
  const uint64_t digit = single ? 0x00800000 : 0x0010000000000000;  // the smallest normal number
  // Zero, subnormals, normals, one below infinity, infinity, NaNs, signaling and quiet.
  for (const uint64_t v :
       {uint64_t{0}, uint64_t{1}, digit / 2, digit - 1, digit, infinity / 2, infinity - 1, infinity,
        infinity + 1, infinity + digit / 2, infinity + digit - 1})
    out.push_back(v), out.push_back(v | sign);
  std::mt19937_64 random(test_seed());
  while (out.size() < 4096) {
    const uint64_t v = random();
    // One in four with all bits of the exponent.
    out.push_back((single ? v >> 32 : v) | (v % 4 == 0 ? infinity : 0));
  }
  return out;
}

enum class Class { Finite, Infinite, Nan };

// By the layout of the format: IEEE 754, or float8_e4m3fn, which has one NaN and no infinity.
Class class_of(DType d, uint64_t bits) {
  const uint64_t size = bits & ((uint64_t{1} << (8 * item_size(d) - 1)) - 1);
  if (d == DType::Float8E4M3) return size == 0x7f ? Class::Nan : Class::Finite;
  const uint64_t infinity = d == DType::Float8E5M2 ? 0x7c
                            : d == DType::Float16  ? 0x7c00
                            : d == DType::BFloat16 ? 0x7f80
                            : d == DType::Float32  ? 0x7f800000
                                                   : 0x7ff0000000000000;
  return size < infinity ? Class::Finite : size == infinity ? Class::Infinite : Class::Nan;
}

}  // namespace

TEST(numbers, isnan_isinf_and_isfinite_of_every_pattern) {
  in_both_modes([] {
    for (const DType d : stored_dtypes()) {
      if (!is_float(d)) continue;
      const std::vector<uint64_t> bits = patterns_of(d);
      const Tensor x = Tensor::from(bits, {static_cast<int64_t>(bits.size())})
                           .cast(storage_uint(d))
                           .bitcast(d)
                           .contiguous();
      const auto is_nan = x.isnan().tolist<int>(), is_inf = x.isinf().tolist<int>(),
                 is_finite = x.isfinite().tolist<int>();
      // Where NaN is made on the way, not read.
      const auto made = (x - x).isnan().tolist<int>();
      int bad = 0;
      for (size_t i = 0; i < bits.size(); ++i) {
        const Class c = class_of(d, bits[i]);
        bad += is_nan[i] != (c == Class::Nan);
        bad += is_inf[i] != (c == Class::Infinite);
        bad += is_finite[i] != (c == Class::Finite);
        bad += made[i] != (c != Class::Finite);
      }
      EXPECT_EQ(bad, 0) << dtype_name(d);
      for (const Tensor& t : {x.isnan(), x.isinf(), x.isfinite()})
        EXPECT_EQ(t.dtype(), DType::Bool);
    }
    for (const DType d : {DType::Bool, DType::Int8, DType::UInt64}) {
      const Tensor x = Tensor::from<int>({0, 1}).cast(d);
      EXPECT_EQ(x.isnan().tolist<int>(), (std::vector<int>{0, 0})) << dtype_name(d);
      EXPECT_EQ(x.isinf().tolist<int>(), (std::vector<int>{0, 0})) << dtype_name(d);
      EXPECT_EQ(x.isfinite().tolist<int>(), (std::vector<int>{1, 1})) << dtype_name(d);
    }
    EXPECT_EQ(Tensor(NAN).isnan().item(), 1);
    EXPECT_EQ(Tensor(-inf).isinf().item(), 1);
    EXPECT_EQ(Tensor::zeros({0}).isfinite().tolist<int>(), std::vector<int>());
  });
}

namespace {

// How many values of a.lerp(b, w) are neither rounded after each operation nor, where the product
// may stay unrounded, after all but that. Float32 rounds what narrow floats are made of.
template <class F>
int wrong_lerps(DType d, const std::vector<F>& a, const std::vector<F>& b,
                const std::vector<F>& w) {
  const auto n = static_cast<int64_t>(a.size());
  auto tensor = [&](const std::vector<F>& v) { return Tensor::from(v, {n}).cast(d).contiguous(); };
  const auto got = tensor(a).lerp(tensor(b), tensor(w)).template tolist<F>();
  auto rounded = [&](F v) {
    return item_size(d) < 4 ? static_cast<F>(bits_to_double(d, double_to_bits(d, v))) : v;
  };
  int bad = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const F way = rounded(b[i] - a[i]), each = rounded(a[i] + rounded(way * w[i])),
            fused = rounded(std::fma(way, w[i], a[i]));
    auto is = [&](F v) {
      return std::isnan(v) ? std::isnan(got[i]) != 0
                           : got[i] == v && std::signbit(got[i]) == std::signbit(v);
    };
    bad += !is(each) && (options().strict || !is(fused));
  }
  return bad;
}

template <class F>
void check_lerps(DType d) {
  std::mt19937_64 random(test_seed());
  auto draw = [&](size_t n) {
    std::vector<F> out = any_floats<F>(random, n);
    std::shuffle(out.begin(), out.end(), random);
    for (F& v : out) v = static_cast<F>(bits_to_double(d, double_to_bits(d, v)));
    return out;
  };
  const std::vector<F> a = draw(20000), b = draw(20000);
  EXPECT_EQ(wrong_lerps(d, a, b, draw(20000)), 0) << dtype_name(d) << ", any numbers";
  // Between the ends and at them, and where b - a or a sum cancels.
  std::vector<F> near, weights;
  for (size_t i = 0; i < a.size(); ++i) {
    const F part = static_cast<F>(static_cast<double>(random() % 257) / 256);
    weights.push_back(static_cast<F>(bits_to_double(d, double_to_bits(d, part))));
    near.push_back(static_cast<F>(
        bits_to_double(d, double_to_bits(d, a[i] * (1 - static_cast<double>(i % 7) / 64)))));
  }
  EXPECT_EQ(wrong_lerps(d, a, b, weights), 0) << dtype_name(d) << ", between";
  EXPECT_EQ(wrong_lerps(d, a, near, weights), 0) << dtype_name(d) << ", close";
}

}  // namespace

// Strict: a + (b - a) * w with each operation rounded. Default: the product may stay unrounded.
TEST(numbers, lerp_rounds_each_operation_or_all_but_the_product) {
  in_both_modes([] {
    check_lerps<float>(DType::Float32);
    check_lerps<double>(DType::Float64);
    for (const DType d : {DType::Float16, DType::BFloat16, DType::Float8E4M3, DType::Float8E5M2})
      check_lerps<float>(d);
    const Tensor a = Tensor::from<float>({1, -2, 3}), b = Tensor::from<float>({5, 6, -1});
    EXPECT_EQ(a.lerp(b, Tensor(0.25)).tolist<float>(), (std::vector<float>{2, 0, 2}));
    EXPECT_EQ(a.lerp(b, Tensor(0.0)).tolist<float>(), a.tolist<float>());
    EXPECT_EQ(a.lerp(b, Tensor(1.0)).tolist<float>(), b.tolist<float>());
  });
}

TEST(numbers, gradient_of_a_remainder) {
  const Tensor a = Tensor::from<double>({7, -7, 6, 0.5, -6}),
               b = Tensor::from<double>({2, 2, 3, 2, 4});
  const auto g = a.mod(b).sum().gradient({a, b});
  EXPECT_EQ(g[0].tolist<double>(), (std::vector<double>{1, 1, 1, 1, 1}));
  EXPECT_EQ(g[1].tolist<double>(), (std::vector<double>{-3, 4, -2, 0, 2}));
  const auto none = a.idiv(b).sum().gradient({a, b});
  EXPECT_EQ(none[0].tolist<double>(), std::vector<double>(5, 0));
  EXPECT_EQ(none[1].tolist<double>(), std::vector<double>(5, 0));
}

// Integers and bool give float32, computed as of the float32 of their value.
TEST(numbers, functions_of_floats_on_integers) {
  struct Named {
    const char* name;
    Tensor (*f)(const Tensor&);
  };
  const Named functions[] = {
      {"exp", [](const Tensor& x) { return x.exp(); }},
      {"sigmoid", [](const Tensor& x) { return x.sigmoid(); }},
      {"softplus", [](const Tensor& x) { return x.softplus(); }},
      {"silu", [](const Tensor& x) { return x.silu(); }},
      {"gelu", [](const Tensor& x) { return x.gelu(); }},
      {"elu", [](const Tensor& x) { return x.elu(0.7); }},
      {"leaky_relu", [](const Tensor& x) { return x.leaky_relu(0.3); }},
      {"tanh", [](const Tensor& x) { return x.tanh(); }},
      {"erf", [](const Tensor& x) { return x.erf(); }},
      {"erfc", [](const Tensor& x) { return x.erfc(); }},
      {"gelu by erf", [](const Tensor& x) { return x.gelu("none"); }},
      {"rsqrt", [](const Tensor& x) { return x.rsqrt(); }},
  };
  for (const DType d : stored_dtypes()) {
    if (is_float(d)) continue;
    const Tensor x = Tensor::from<int32_t>({0, 1, 2, 3, 100, -1, -2, -100}).cast(d);
    for (const Named& named : functions) {
      const Tensor got = named.f(x);
      EXPECT_EQ(got.dtype(), DType::Float32) << named.name << " of " << dtype_name(d);
      const auto values = got.tolist<float>(),
                 wanted = named.f(x.cast(DType::Float32)).tolist<float>();
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_TRUE(values[i] == wanted[i] || (std::isnan(values[i]) && std::isnan(wanted[i])))
            << named.name << " of " << dtype_name(d);
    }
  }
  EXPECT_EQ(Tensor::from<uint8_t>({0, 1}).sigmoid().tolist<float>(),
            (std::vector<float>{0.5f, static_cast<float>(1 / (1 + std::exp(-1.0)))}));
  EXPECT_FLOAT_EQ(Tensor::from<uint8_t>({200}).softplus().item<float>(), 200);
  EXPECT_FLOAT_EQ(Tensor::from<bool>({true}).silu().item<float>(), 0.7310586f);
  EXPECT_FLOAT_EQ(Tensor::from<int32_t>({-1}).elu().item<float>(), -0.63212056f);
}

// Deviations of integers from a mean that is no float32.
TEST(numbers, variances_of_integers) {
  for (const bool strict : {false, true}) {
    Options o = options();
    o.strict = strict;
    const OptionScope scope(o);
    for (const DType d : {DType::Int32, DType::Int64, DType::UInt32, DType::Int8, DType::UInt8}) {
      const int64_t offset = item_size(d) < 4 ? 100 : (int64_t{1} << 30) + 1;
      const Tensor x = Tensor::from<int64_t>({offset, offset + 2, offset + 4}).cast(d);
      for (const Tensor& t : {x.var(), x.std(), x.layernorm()})
        EXPECT_EQ(t.dtype(), DType::Float32) << dtype_name(d);
      EXPECT_EQ(x.var().item(), 4) << dtype_name(d);
      EXPECT_EQ(x.std().item(), 2) << dtype_name(d);
      EXPECT_EQ(x.var({0}, true, 0).tolist<float>(), std::vector<float>{8 / 3.0F});
      const auto normal = x.layernorm(1, 0).tolist<double>();
      EXPECT_NEAR(normal[0], -std::sqrt(1.5), 1e-7) << dtype_name(d);
      EXPECT_EQ(normal[1], 0) << dtype_name(d);
      EXPECT_TRUE(std::isnan(x[Slice{0, 1}].var().item())) << "one of them has no variance";
    }
  }
}

// Squares of float16 leave its range at 256: they are formed and added in float32.
TEST(numbers, float16_norm_var_and_layernorm) {
  in_both_modes([] {
    std::vector<float> data;
    for (int i = 0; i < 512; ++i) data.push_back(static_cast<float>(i % 2 ? 3000 + i : -3000 + i));
    double mean = 0, squares = 0, spread = 0;
    for (const float v : data) mean += v / 512.0;
    for (const float v : data) {
      squares += static_cast<double>(v) * v;
      spread += (v - mean) * (v - mean);
    }
    for (const DType d : {DType::Float16, DType::BFloat16}) {
      const double u = d == DType::Float16 ? 0x1p-11 : 0x1p-8;
      const Tensor x = Tensor::from(data, {512}).cast(d), small = x * Tensor(1 / 32.0);
      auto expect_near = [&](const Tensor& got, double want) {
        EXPECT_EQ(got.dtype(), d);
        EXPECT_NEAR(got.item(), want, 2 * u * want);
      };
      // 68,000 is beyond float16; the norm of the first 256 is not.
      expect_near(small.norm(), std::sqrt(squares) / 32);
      expect_near(small.var(), spread / 511 / 1024);
      expect_near(x.std(), std::sqrt(spread / 511));
      const auto normal = x.layernorm().tolist<double>();
      for (size_t i = 0; i < data.size(); ++i)
        EXPECT_NEAR(normal[i], (data[i] - mean) / std::sqrt(spread / 512), 4 * u) << i;
    }
    EXPECT_DOUBLE_EQ(Tensor::from<int8_t>({100, 100}).norm().item<float>(),
                     static_cast<double>(std::sqrt(20000.0f)));
  });
}

// Products of narrow floats are added as they are and rounded once: 300 * 300 is no float16, and of
// 1.001 * 1.001 one loses a digit.
TEST(numbers, contractions_of_narrow_floats_are_rounded_once) {
  in_both_modes([&] {
    for (const DType d : {DType::Float16, DType::BFloat16}) {
      const Tensor a = Tensor::from<float>({300, 300, 1.1F, 1}, {2, 2}).cast(d),
                   b = Tensor::from<float>({300, -299, 1.1F, 2}, {2, 2}).cast(d);
      // By float64, in which products of narrow floats and sums of two of them are exact.
      const auto once = [&](auto contract) {
        const Tensor narrow = contract(a, b),
                     wide = contract(a.cast(DType::Float64), b.cast(DType::Float64));
        EXPECT_EQ(narrow.dtype(), d);
        EXPECT_EQ(narrow.tolist<double>(), wide.cast(d).tolist<double>());
      };
      const auto turned = [](const Tensor& y) { return y.transpose(); };
      once([&](const Tensor& x, const Tensor& y) { return x.matmul(turned(y)); });
      once([&](const Tensor& x, const Tensor& y) { return x.dot(y[0]); });
      once([&](const Tensor& x, const Tensor& y) { return x.linear(turned(y)); });
      once([&](const Tensor& x, const Tensor& y) { return Tensor::einsum("ik,jk->ij", {x, y}); });
      once([&](const Tensor& x, const Tensor& y) {
        return x.reshape({1, 1, 2, 2}).conv2d(y.reshape({1, 1, 2, 2}));
      });
    }
    // Sums that are in range of products that are not, and their derivatives.
    const Tensor a = Tensor::from<float>({300, 300}, {1, 2}).cast(DType::Float16).requires_grad(),
                 b = Tensor::from<float>({300, -299}, {2, 1}).cast(DType::Float16);
    const Tensor out = a.matmul(b);
    EXPECT_EQ(out.item(), 300);
    const Tensor slope = out.sum().gradient({a})[0];
    EXPECT_EQ(slope.dtype(), DType::Float16);
    EXPECT_EQ(slope.tolist<double>(), (std::vector<double>{300, -299}));
  });
}

// What squares or multiplies on the way, in float16 and in integers.
TEST(numbers, narrow_losses_norms_and_scores) {
  for (const bool strict : {false, true}) {
    Options o = options();
    o.strict = strict;
    const OptionScope scope(o);
    auto half = [](std::vector<float> v) {
      return Tensor::from<float>(v, {static_cast<int64_t>(v.size())}).cast(DType::Float16);
    };
    // (-400)^2 / 4 is a float16, (-400)^2 is none.
    const Tensor loss = half({-300, 100, 100, 100}).mse_loss(half({100, 100, 100, 100}));
    EXPECT_EQ(loss.dtype(), DType::Float16);
    EXPECT_EQ(loss.item(), 40000);
    EXPECT_EQ(half({-300, 100, 100, 100}).mse_loss(100.0).item(), 40000);
    // 0 - 20 wraps in uint8, and so does its square.
    EXPECT_EQ(Tensor::from<uint8_t>({0, 5}).mse_loss(Tensor::from<uint8_t>({20, 5})).item(), 200);
    EXPECT_EQ(Tensor::from<int8_t>({-100}).mse_loss(Tensor::from<int8_t>({100})).item(), 40000);
    // 2 * 200 * 200 / sqrt(2) is a float16, 2 * 200 * 200 is none.
    const Tensor q = half({200, 200, 200, 200}).reshape({2, 2}), k = half({1, -1, 1, -1});
    const Tensor mixed = q.scaled_dot_product_attention(q, k.reshape({2, 2}));
    EXPECT_EQ(mixed.dtype(), DType::Float16);
    for (const double v : mixed.tolist<double>()) EXPECT_NEAR(std::fabs(v), 1, 0.01);
    // Statistics of a batch in which (x - mean)^2 is 10^6.
    nn::BatchNorm norm(1);
    const Tensor out = norm(half({-1000, 1000}).reshape({2, 1}), true);
    EXPECT_EQ(out.dtype(), DType::Float16);
    EXPECT_EQ(out.tolist<double>(), (std::vector<double>{-1, 1}));
    EXPECT_EQ(norm.running_var.item(), static_cast<double>(0.9F + 2e6F * 0.1F));
    // A joint norm of 500 whose squares leave float16.
    Tensor p = half({1, 1}).requires_grad();
    p.set_grad(half({300, 400}));
    nn::SGD sgd({p}, 0.1);
    sgd.clip_grad_norm(5);
    EXPECT_EQ(p.grad().dtype(), DType::Float16);
    EXPECT_EQ(p.grad().tolist<double>(), (std::vector<double>{3, 4}));
    // Beyond the edge there is less than every integer.
    const Tensor image = Tensor::from<int>({-1, -2, -3, -4}, {1, 1, 2, 2});
    EXPECT_EQ(image.max_pool2d(2, 2, 1).tolist<int>(), (std::vector<int>{-1, -2, -3, -4}));
    EXPECT_EQ(image.cast(DType::Int8).max_pool2d(2, 2, 1).tolist<int>(),
              (std::vector<int>{-1, -2, -3, -4}));
  }
}

// What a literal means does not depend on whether its partner's dtype holds it.
TEST(numbers, comparisons_with_literals_beyond_the_dtype) {
  auto is = [](const Tensor& got, const std::vector<int>& wanted) {
    EXPECT_EQ(got.dtype(), DType::Bool);
    EXPECT_EQ(got.tolist<int>(), wanted);
  };
  const Tensor u8 = Tensor::from<uint8_t>({0, 200, 255}), i8 = Tensor::from<int8_t>({-128, 0, 127});
  is(u8 > -1, {1, 1, 1});
  is(u8 < -1, {0, 0, 0});
  is(u8 == -56, {0, 0, 0});  // 200 as int8
  is(-1 <= u8, {1, 1, 1});
  is(u8 <= 255, {1, 1, 1});
  is(u8 < 256, {1, 1, 1});
  is(u8 >= 256, {0, 0, 0});
  is(i8 != 256, {1, 1, 1});
  is(i8 == 256, {0, 0, 0});
  is(i8 > -129, {1, 1, 1});
  is(i8 < 0.5, {1, 1, 0});
  is(i8 >= -0.5, {0, 1, 1});
  is(i8 == 0.5, {0, 0, 0});
  is(i8 != 0.5, {1, 1, 1});
  is(i8 <= 127.5, {1, 1, 1});
  is(i8 > -128.5, {1, 1, 1});
  is(i8 < inf, {1, 1, 1});
  is(i8 < -inf, {0, 0, 0});
  is(i8 < NAN, {0, 0, 0});
  is(i8 != NAN, {1, 1, 1});
  const Tensor wide = Tensor::from<int64_t>({INT64_MIN, 9007199254740993, INT64_MAX});
  is(wide == 9007199254740992.0, {0, 0, 0});
  is(wide > 9007199254740992.0, {0, 1, 1});
  is(wide < 0x1p63, {1, 1, 1});
  is(wide < UINT64_MAX, {1, 1, 1});
  is(Tensor::from<uint64_t>({0, UINT64_MAX}) > int64_t{-1}, {1, 1});
  is(Tensor::from<uint64_t>({0, UINT64_MAX}) == UINT64_MAX, {0, 1});
  is(Tensor::from<int32_t>({16777217}) > 16777216.0, {1});
  const Tensor half = Tensor::from<float>({65504, INFINITY, -INFINITY, NAN}).cast(DType::Float16);
  is(half < 1e6, {1, 0, 1, 0});
  is(half == 1e6, {0, 0, 0, 0});
  is(half > -1e6, {1, 1, 0, 0});
  is(Tensor::from<float>({INFINITY, 1}) == 1e300, {0, 0});
}

TEST(numbers, arithmetic_with_literals_beyond_the_dtype) {
  const Tensor u8 = Tensor::from<uint8_t>({0, 200}), i32 = Tensor::from<int32_t>({1, 2});
  expect_error([&] { (void)(u8 + 300); }, {"+", "300", "uint8", "0 to 255"});
  expect_error([&] { (void)(u8 - -1); }, {"-", "-1", "uint8"});
  expect_error([&] { (void)(i32 + (int64_t{1} << 40)); }, {"1099511627776", "int32"});
  expect_error([&] { (void)((int64_t{1} << 40) * i32); }, {"*", "1099511627776", "int32"});
  expect_error([&] { (void)u8.maximum(256); }, {"maximum", "256", "uint8"});
  expect_error([&] { (void)Tensor::where(u8 > 3, u8, -1); }, {"where", "-1", "uint8"});
  EXPECT_EQ((u8 + 255).tolist<int>(), (std::vector<int>{255, 199})) << "integers wrap";
  EXPECT_EQ((i32.cast(DType::Int64) + (int64_t{1} << 40)).tolist<int64_t>(),
            (std::vector<int64_t>{1099511627777, 1099511627778}));
  EXPECT_EQ((Tensor::from<bool>({true}) + 300).item<int>(), 301);
}

// The divisor times the quotient may be beyond the largest number, where neither of them is.
TEST(numbers, floor_division_of_the_largest_numbers) {
  const Tensor a = Tensor::from<double>({1.7591415975967055e+308, 1.7e308, -1.7e308, 1.7e308}),
               b = Tensor::from<double>({-6.315035506450854e+307, -1.2e308, 1.2e308, 1e308});
  EXPECT_EQ(a.idiv(b).tolist<double>(), (std::vector<double>{-3, -2, -2, 1}));
}

// Infinities and NaN are meant; a number that would become one is not.
TEST(numbers, float_literals_beyond_the_dtype) {
  const Tensor half = Tensor::from<float>({1, -2}).cast(DType::Float16),
               single = Tensor::from<float>({1, -2});
  expect_error([&] { (void)(half + 1e6); }, {"+", "1000000", "float16", "-65504 to 65504"});
  expect_error([&] { (void)(65520 - half); }, {"-", "65520", "float16"});
  expect_error([&] { (void)(half * (int64_t{1} << 40)); }, {"*", "1099511627776", "float16"});
  expect_error([&] { (void)(single * 1e300); },
               {"*", "1e+300", "float32", "3.4028234663852886e+38"});
  expect_error([&] { (void)half.pow(1e6); }, {"pow", "float16"});
  expect_error([&] { (void)half.lerp(1e6, 0.5); }, {"lerp", "float16"});
  expect_error([&] { (void)Tensor::where(half > 0, half, -1e6); }, {"where", "-1000000"});
  expect_error([&] { (void)(Tensor::from<int32_t>({1}) + 1e39); }, {"+", "1e+39", "float32"});
  expect_error([&] { (void)(Tensor(1e39) / 2); }, {"/", "1e+39", "float32"});
  expect_error([&] { (void)(half.cast(DType::BFloat16) + 1e39); }, {"+", "bfloat16"});
  expect_error([&] { (void)(half.cast(DType::Float8E4M3) + 500); }, {"+", "500", "448"});
  expect_error([&] { (void)(half.cast(DType::Float8E5M2) + 1e5); }, {"+", "100000", "57344"});
  expect_error([&] { (void)Tensor::full({2}, 1e39, DType::Float32); },
               {"full", "1e+39", "float32"});
  expect_error([&] { (void)Tensor::full({2}, 1e39); }, {"full", "1e+39", "float32"});
  expect_error([&] { (void)half.full_like(1e6); }, {"full_like", "float16"});
  expect_error([&] { (void)half.pad({{1, 0}}, 1e6); }, {"pad", "1000000", "float16"});
  expect_error([&] { (void)half.masked_fill(half > 0, -1e9); }, {"masked_fill", "float16"});
  expect_error([&] { (void)half.maximum(1e6); }, {"maximum", "1000000", "float16"});
  EXPECT_EQ((half + 65519).tolist<double>(), (std::vector<double>{65504, 65504})) << "rounded";
  EXPECT_EQ((half + HUGE_VAL).tolist<double>(), (std::vector<double>{HUGE_VAL, HUGE_VAL}));
  EXPECT_EQ((half.cast(DType::Float64) * 1e300).tolist<double>(),
            (std::vector<double>{1e300, -2e300}));
  EXPECT_TRUE(std::isnan((half * static_cast<double>(NAN))[0].item()));
  EXPECT_EQ(half.masked_fill(half > 0, -HUGE_VAL).tolist<double>(),
            (std::vector<double>{-HUGE_VAL, -2}));
}

// A bound beyond all numbers bounds nothing: float8e4m3, which has no infinity, had NaN for it.
TEST(numbers, bounds_beyond_the_dtype) {
  for (const DType d : {DType::Float16, DType::Float8E4M3, DType::Float32}) {
    const Tensor x = Tensor::from<float>({3, -2, NAN}).cast(d);
    auto first_two = [](const Tensor& t) {
      EXPECT_TRUE(std::isnan(t[2].item()));
      return t[{Slice{0, 2}}].tolist<double>();
    };
    const std::vector<double> same{3, -2};
    for (const double far : {1e40, HUGE_VAL}) {
      EXPECT_EQ(first_two(x.clip(-far, far)), same) << dtype_name(d);
      EXPECT_EQ(first_two(x.minimum(far)), same) << dtype_name(d);
      EXPECT_EQ(first_two(x.maximum(-far)), same) << dtype_name(d);
      EXPECT_EQ(first_two(x.clip(0, far)), (std::vector<double>{3, 0})) << dtype_name(d);
    }
    EXPECT_EQ(x.clip(-1e40, 1e40).dtype(), d);
    expect_error([&] { (void)x.clip(1e40, 2e40); },
                 {"maximum", "1e+40", std::string(dtype_name(d))});
  }
  Tensor x = Tensor::from<float>({1, 2});
  const Tensor bounded = x.minimum(1e300);
  x.assign(5);
  EXPECT_EQ(bounded.tolist<double>(), (std::vector<double>{1, 2})) << "a value, and no view of x";
}

// As in a fill: what the dtype of the tensor does not hold is refused, a fraction loses its rest.
TEST(numbers, assigned_literals_beyond_the_dtype) {
  Tensor i8 = Tensor::from<int8_t>({1, 2, 3}), u8 = Tensor::from<uint8_t>({1, 2}),
         i32 = Tensor::from<int32_t>({1, 2});
  const Tensor places = Tensor::from<int32_t>({0, 2});
  expect_error([&] { i8.assign(300); }, {"assign", "300", "int8", "-128 to 127"});
  expect_error([&] { i8[0].assign(-129); }, {"assign", "-129", "int8"});
  expect_error([&] { i8.setitem({0}, 300); }, {"setitem", "300", "int8", "-128 to 127"});
  expect_error([&] { i8.setitem({places}, 128); }, {"setitem", "128", "int8"});
  expect_error([&] { u8.assign(-1); }, {"assign", "-1", "uint8", "0 to 255"});
  expect_error([&] { u8.setitem({0}, 256); }, {"setitem", "256", "uint8"});
  expect_error([&] { i32.setitem({0}, int64_t{1} << 31); }, {"2147483648", "int32"});
  for (const double v : {static_cast<double>(NAN), HUGE_VAL, -HUGE_VAL, 3e9}) {
    expect_error([&] { i32.assign(v); }, {"assign", "int32", "-2147483648 to 2147483647"});
    expect_error([&] { i32.setitem({places}, v); }, {"setitem", "int32"});
  }
  expect_error([&] { Tensor::assign_all({i8, u8}, {Tensor(1), Tensor(-1)}); },
               {"assign_all", "-1", "uint8"});
  EXPECT_EQ(i8.tolist<int>(), (std::vector<int>{1, 2, 3})) << "nothing was assigned";
  EXPECT_EQ(u8.tolist<int>(), (std::vector<int>{1, 2}));
  i8.setitem({places}, -128);
  i8[1].assign(127);
  EXPECT_EQ(i8.tolist<int>(), (std::vector<int>{-128, 127, -128}));
  i32.setitem({0}, -2.75);
  i32[1].assign(2147483647.5);
  EXPECT_EQ(i32.tolist<int>(), (std::vector<int>{-2, INT32_MAX}));
  Tensor odd = Tensor::from<int64_t>({0, 0}),
         half = Tensor::from<float>({0, 0}).cast(DType::Float16);
  odd.setitem({1}, (int64_t{1} << 53) + 1);
  EXPECT_EQ(odd.tolist<int64_t>(), (std::vector<int64_t>{0, (int64_t{1} << 53) + 1}));
  expect_error([&] { half.setitem({0}, 1e6); }, {"setitem", "1000000", "float16", "65504"});
  expect_error([&] { half.assign(65520); }, {"assign", "65520", "float16", "-65504 to 65504"});
  half.setitem({0}, HUGE_VAL);
  half.setitem({1}, static_cast<double>(NAN));
  EXPECT_EQ(half[0].item<double>(), HUGE_VAL);
  EXPECT_TRUE(std::isnan(half[1].item<double>()));
  // What is no literal is cast, and wraps.
  i8.assign(Tensor::from<int32_t>({300, 2, 3}));
  EXPECT_EQ(i8.tolist<int>(), (std::vector<int>{44, 2, 3}));
}

TEST(numbers, fills_keep_64_bit_integers) {
  const int64_t odd = (int64_t{1} << 53) + 1;
  for (const int64_t v : {INT64_MIN, odd, -odd, INT64_MAX, int64_t{0}}) {
    EXPECT_EQ(Tensor::full({2}, v, DType::Int64).tolist<int64_t>(), (std::vector<int64_t>{v, v}));
    const Tensor x = Tensor::from<int64_t>({INT64_MIN, 5, INT64_MAX});
    EXPECT_EQ(x.full_like(v).tolist<int64_t>(), (std::vector<int64_t>{v, v, v}));
    EXPECT_EQ(x.pad({{1, 1}}, v).tolist<int64_t>(),
              (std::vector<int64_t>{v, INT64_MIN, 5, INT64_MAX, v}));
    EXPECT_EQ(x.masked_fill(x == 5, v).tolist<int64_t>(),
              (std::vector<int64_t>{INT64_MIN, v, INT64_MAX}));
    EXPECT_EQ(x.clip(v, INT64_MAX).tolist<int64_t>(),
              (std::vector<int64_t>{v, std::max<int64_t>(v, 5), INT64_MAX}));
    EXPECT_EQ(x.clip(INT64_MIN, v).tolist<int64_t>(),
              (std::vector<int64_t>{INT64_MIN, std::min<int64_t>(v, 5), v}));
  }
  EXPECT_EQ(Tensor::full({1}, UINT64_MAX, DType::UInt64).item<uint64_t>(), UINT64_MAX);
  const Tensor u = Tensor::from<uint64_t>({0, UINT64_MAX - 1});
  EXPECT_EQ(u.pad({{0, 1}}, UINT64_MAX).tolist<uint64_t>(),
            (std::vector<uint64_t>{0, UINT64_MAX - 1, UINT64_MAX}));
  EXPECT_EQ(u.clip(1u, UINT64_MAX).tolist<uint64_t>(), (std::vector<uint64_t>{1, UINT64_MAX - 1}));
  EXPECT_EQ(u.masked_fill(u == 0, UINT64_MAX).tolist<uint64_t>(),
            (std::vector<uint64_t>{UINT64_MAX, UINT64_MAX - 1}));
}

TEST(numbers, fills_that_do_not_fit_are_refused) {
  const Tensor u8 = Tensor::from<uint8_t>({0, 200});
  expect_error([&] { (void)Tensor::full({2}, 256, DType::UInt8); }, {"full", "256", "uint8"});
  expect_error([&] { (void)Tensor::full({2}, INFINITY, DType::Int32); }, {"full", "inf", "int32"});
  expect_error([&] { (void)Tensor::full({2}, NAN, DType::Int32); }, {"full", "nan", "int32"});
  expect_error([&] { (void)u8.full_like(-1); }, {"full_like", "-1", "uint8"});
  expect_error([&] { (void)u8.pad({{1, 0}}, -1); }, {"pad", "-1", "uint8"});
  expect_error([&] { (void)u8.masked_fill(u8 > 3, 1e9); }, {"masked_fill", "1000000000", "uint8"});
  expect_error([&] { (void)u8.clip(-1, 3); }, {"maximum", "-1", "uint8"});
  expect_error([&] { (void)u8.clip(3, 1); }, {"clip", "3", "1"});
  expect_error([&] { (void)Tensor::full({2}, u8, DType::UInt8); }, {"full", "scalar", "(2,)"});
  EXPECT_EQ(Tensor::full({1}, -2.7, DType::Int32).item<int>(), -2) << "cut, as by a cast";
  EXPECT_EQ(Tensor::full({1}, 3, DType::Bool).item<int>(), 1);
  EXPECT_EQ(Tensor::full({2}, u8.max(), DType::Int32).tolist<int>(), (std::vector<int>{200, 200}));
  const Tensor promoted = Tensor::from<int32_t>({1, 2, 5}).clip(1.5, 3.5);
  EXPECT_EQ(promoted.dtype(), DType::Float32);
  EXPECT_EQ(promoted.tolist<float>(), (std::vector<float>{1.5f, 2, 3.5f}));
}

// Found by random programs: the last product of an exponential was taken unrounded into a sum, and
// infinity - infinity was -infinity.
TEST(numbers, an_exponential_that_overflows_is_infinite_in_a_sum_too) {
  const Tensor x = Tensor::from<float>({200, inf, 1e9f, 1e30f, 127.5f, -inf, 200, 89}),
               y = Tensor::from<float>({-inf, -inf, -inf, -inf, -inf, -inf, inf, -inf});
  in_both_modes([&] {
    for (const Tensor& grown : {x.exp2(), Tensor(2.0f).pow(x), (x * 0.6931471805599453).exp()}) {
      const auto got = (grown + y).tolist<float>();
      for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(got[i])) << i << " " << got[i];
      EXPECT_EQ(got[4], -inf);
      EXPECT_EQ(got[5], -inf);
      EXPECT_EQ(got[6], inf);
    }
    const auto natural = (x.exp() + y).tolist<float>();
    EXPECT_TRUE(std::isnan(natural[7])) << "e^89 overflows";
    EXPECT_TRUE(std::isnan(
        ((x.cast(DType::Float64) * 8.0).exp2() + y.cast(DType::Float64)).tolist<double>()[0]));
  });
}

}  // namespace koine::test

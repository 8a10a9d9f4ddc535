// The oracle of default mode: what it lets pass, and what it does not.
#include "koine/interp/bounded.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "check.hpp"
#include "graphs.hpp"
#include "koine/interp/deviation.hpp"
#include "koine/interp/liberties.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "koine/tensor/custom.hpp"

namespace koine::test {
namespace {

BoundedArray bounded(const UOp& value) { return interpret_bounded(value, bindings_of(value)); }
double error_at(const BoundedArray& a, size_t i) { return a.error.empty() ? 0 : a.error[i]; }
bool within(const UOp& value, const std::vector<float>& got) {
  Array a{DType::Float32, value.sizes(), {}, {}};
  for (const float v : got) a.data.push_back(double_to_bits(DType::Float32, v));
  return difference(bounded(value), a).empty();
}

}  // namespace

TEST(bounded, a_product_in_a_sum_may_stay_unrounded_and_nothing_else) {
  const float a = 1 + 0x1p-12f, b = 1 + 0x1p-13f, c = -1, product = a * b;
  const UOp x = floats({a}), y = floats({b}), z = floats({c});
  const UOp sum = add(mul(x, y), z);
  EXPECT_TRUE(within(sum, {product + c}));
  EXPECT_TRUE(within(sum, {std::fma(a, b, c)}));
  EXPECT_NE(product + c, std::fma(a, b, c));
  EXPECT_FALSE(within(sum, {(product + c) * (1 + 0x1p-8f)}));
  EXPECT_TRUE(within(mulacc(x, y, z), {std::fma(a, b, c)}));
  EXPECT_FALSE(within(mul(x, y), {std::nextafter(product, 2.0f)})) << "a product alone is rounded";
  EXPECT_TRUE(may_contract(DType::Float32) && may_contract(DType::Float64));
  EXPECT_FALSE(may_contract(DType::Float16) || may_contract(DType::BFloat16)) << "rounded each";
  // Differences and products with powers of two lose nothing.
  EXPECT_TRUE(bounded(sub(x, y)).error.empty());
  EXPECT_TRUE(bounded(add(mul(x, constant(DType::Float32, 4)), y)).error.empty());
  // Through movement, a choice and a longer sum.
  const UOp far = add(where(lt(x, y), z, flip(mul(x, y), {1})), z);
  EXPECT_TRUE(within(far, {std::fma(a, b, c)}));
}

// A value that is no memory yet is computed again where it is read.
TEST(bounded, a_product_that_is_given_may_stay_unrounded_in_a_sum_as_well) {
  const float a = 1 + 0x1p-12f, b = 1 + 0x1p-13f, c = -1;
  const UOp x = floats({a}), y = floats({b}), z = floats({c}), product = mul(x, y);
  const UOp place = param(0, product.shape(), DType::Float32);
  const auto sum_of = [&](const BoundedArray& given) {
    return interpret_bounded(add(place, z), {{place, given}, {z, {array_of(z), {}}}});
  };
  const BoundedArray given = bounded(product);
  EXPECT_TRUE(given.error.empty());
  EXPECT_EQ(sum_of(given).error, bounded(add(product, z)).error);
  EXPECT_GT(error_at(sum_of(given), 0), 0);
  EXPECT_TRUE(sum_of({given.value, {}}).error.empty()) << "in memory it is rounded";
}

// n u / (1 - n u), as long as that is a bound (Higham, Accuracy and Stability, section 3.1).
TEST(bounded, a_product_of_many_factors_in_another_order) {
  EXPECT_EQ(reorder_bound(Op::Mul, DType::Float32, 1, false), 0);
  EXPECT_EQ(reorder_bound(Op::Mul, DType::Float32, 4, false), 4 * 0x1p-24 / (1 - 4 * 0x1p-24));
  EXPECT_EQ(reorder_bound(Op::Mul, DType::BFloat16, 64, false), 64 * 0x1p-8 / (1 - 64 * 0x1p-8));
  EXPECT_EQ(reorder_bound(Op::Mul, DType::BFloat16, 256, false), INFINITY);
}

// Each element by itself: those that are exact keep their bits, whatever the others are.
TEST(bounded, bits_are_unknown_where_the_number_is) {
  const UOp x = floats({3, 5, 7, 2}),
            some = where(lt(x, constant(DType::Float32, 4)), x, unary(Op::Log2, x));
  for (const DType d : {DType::UInt32, DType::Int16}) {
    const BoundedArray bits = bounded(UOp::make(Op::Bitcast, {some}, d));
    const size_t parts = d == DType::Int16 ? 2 : 1;
    ASSERT_EQ(bits.error.size(), 4 * parts);
    for (size_t i = 0; i < bits.error.size(); ++i)
      EXPECT_EQ(bits.error[i], i / parts == 1 || i / parts == 2 ? INFINITY : 0) << i;
  }
}

// Bounds move as values do: to positions that lie in memory, and within sizes that are Variables.
TEST(bounded, errors_follow_positions_in_memory_and_variables) {
  const UOp x = floats({3, 5, 7}), inexact = unary(Op::Log2, x);
  const double error = bounded(inexact).error.at(2);
  ASSERT_GT(error, 0);
  const std::vector<int32_t> at{2, 9, 0};
  const UOp places = buffer_from_host(shape_of({3}), DType::Int32, "CPU", at.data());
  const BoundedArray picked = bounded(index(inexact, {places}));
  EXPECT_EQ(picked.error.at(0), error);
  EXPECT_EQ(picked.error.at(1), 0) << "out of range: 0";
  const UOp none = buffer_from_host(shape_of({0}), DType::Int32, "CPU", nullptr);
  EXPECT_TRUE(bounded(index(inexact, {none})).error.empty());
  const UOp n = variable("n", 1, 3);
  const UOp part = shrink(inexact, shape_of({0}), stack(std::vector<UOp>{n})),
            wide = pad(part, shape_of({1}), shape_of({5}), constant(DType::Float32, 0));
  Bindings bindings = bindings_of(wide);
  bindings.emplace(n, Array{DType::Index, {}, {int_to_bits(DType::Index, 3)}, {}});
  const BoundedArray padded = interpret_bounded(wide, bindings);
  EXPECT_EQ(padded.error.at(3), error);
  EXPECT_EQ(padded.error.at(4), 0);
  const UOp turned =
      permute(mul(reshape(part, stack(std::vector<UOp>{n, index_const(1)})), x), {1, 0});
  EXPECT_FALSE(interpret_bounded(reduce(Op::Max, turned, {1}), bindings).error.empty());
}

TEST(bounded, sums_in_any_order_and_no_further) {
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i)
    values.push_back(std::ldexp(0.1f + static_cast<float>(i % 7), i % 20));
  float up = 0, down = 0;
  double size = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    up += values[i];
    down += values[values.size() - 1 - i];
    size += values[i];
  }
  ASSERT_NE(up, down);
  const UOp sum = reduce(Op::Add, floats(values), {0});
  EXPECT_TRUE(within(sum, {up}));
  EXPECT_TRUE(within(sum, {down}));
  EXPECT_FALSE(within(sum, {up * (1 + 1e-3f)}));
  EXPECT_LE(
      error_at(bounded(sum), 0),
      1.1 * (reorder_bound(Op::Add, DType::Float32, 1000, false) * size + std::abs(up - size)));
  // Integers wrap in any order to the same; infinities stay.
  EXPECT_FALSE(has_liberties(reduce(Op::Add, leaf({50}, DType::Int8), {0})));
  EXPECT_FALSE(within(reduce(Op::Add, floats({1, inf, 2}), {0}), {5}));
}

// 0 or -0, by the order of the sum: also what is made of it, however small the factor.
TEST(bounded, the_sign_of_a_zero_sum_stays_open) {
  const UOp zeros = Tensor::full({4}, -0.0, DType::Float64).clone().realize().uop();
  const UOp sum = reduce(Op::Add, zeros, {0});
  for (const double by : {1.0, 1e-5, -1e-300, 0.0}) {
    const UOp scaled = mul(sum, constant(DType::Float64, by));
    EXPECT_GT(error_at(bounded(scaled), 0), 0) << by;
    EXPECT_LT(error_at(bounded(scaled), 0), 1e-300) << by;
    const UOp quotient = fdiv(sum, constant(DType::Float64, by == 0 ? 1 : 1 / by));
    EXPECT_GT(error_at(bounded(quotient), 0), 0) << by;
  }
  expect_same_everywhere(mul(sum, leaf({}, DType::Float64)));
}

// A difference of what is nearly equal may be of either sign, and so is 0 times it.
TEST(bounded, the_sign_of_a_zero_product_stays_open) {
  const UOp product =
      mul(param(0, shape_of({}), DType::Float64), param(1, shape_of({}), DType::Float64));
  auto deviation = [&](double value, double off) {
    const Deviating zero{double_to_bits(DType::Float64, 0), 0, 0},
        other{double_to_bits(DType::Float64, value), off, 0};
    const Bits result = double_to_bits(DType::Float64, 0 * value);
    return deviate(product, result, std::vector{zero, other}, {true, true}).deviation;
  };
  EXPECT_GT(deviation(1e-17, 1e-16), 0);
  EXPECT_LT(deviation(1e-17, 1e-16), 1e-300);
  EXPECT_EQ(deviation(5, 0.1), 0);
  EXPECT_EQ(deviation(-1e-17, 0), 0);
}

// What an op makes of operands that are off by a given amount, against the ends of what it may be
// off by: no less, and not much more.
TEST(bounded, errors_pass_through_each_op_as_calculus_says) {
  using Of = std::function<double(const std::vector<double>&)>;
  struct Row {
    const char* name;
    size_t operands;
    std::function<UOp(const std::vector<UOp>&)> build;
    Of of;
  };
  auto natural = [](Op op) {
    return [op](const std::vector<UOp>& x) { return UOp::make(op, {x[0]}, int64_t{1}); };
  };
  auto of = [](Op op) { return [op](const std::vector<UOp>& x) { return UOp::make(op, x); }; };
  const std::vector<Row> rows{
      {"exp2", 1, of(Op::Exp2), [](auto& x) { return std::exp2(x[0]); }},
      {"exp", 1, natural(Op::Exp2), [](auto& x) { return std::exp(x[0]); }},
      {"log2", 1, of(Op::Log2), [](auto& x) { return std::log2(x[0]); }},
      {"log", 1, natural(Op::Log2), [](auto& x) { return std::log(x[0]); }},
      {"sqrt", 1, of(Op::Sqrt), [](auto& x) { return std::sqrt(x[0]); }},
      {"recip", 1, of(Op::Recip), [](auto& x) { return 1 / x[0]; }},
      {"add", 2, of(Op::Add), [](auto& x) { return x[0] + x[1]; }},
      {"mul", 2, of(Op::Mul), [](auto& x) { return x[0] * x[1]; }},
      {"div", 2, of(Op::Fdiv), [](auto& x) { return x[0] / x[1]; }},
      {"max", 2, of(Op::Max), [](auto& x) { return std::max(x[0], x[1]); }},
      {"pow", 2, of(Op::Pow), [](auto& x) { return std::pow(x[0], x[1]); }},
      {"mulacc", 3, of(Op::Mulacc), [](auto& x) { return x[0] * x[1] + x[2]; }},
      {"where", 2, [](auto& x) { return where(lt(x[0], x[1]), x[0], x[1]); },
       [](auto& x) { return std::min(x[0], x[1]); }},
      {"half", 1, [](auto& x) { return cast(cast(x[0], DType::Float16), DType::Float32); },
       [](auto& x) { return x[0]; }},
      {"double", 1, [](auto& x) { return cast(cast(x[0], DType::Float64), DType::Float32); },
       [](auto& x) { return x[0]; }},
  };
  std::mt19937_64 random(test_seed());
  auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  for (const Row& row : rows)
    for (int round = 0; round < 200; ++round) {
      std::vector<UOp> operands;
      std::vector<double> x, e;
      BoundedBindings given;
      for (size_t k = 0; k < row.operands; ++k) {
        operands.push_back(param(static_cast<int64_t>(k), shape_of({}), DType::Float32));
        const auto value = static_cast<float>(uniform(0.5, 6));
        x.push_back(value);
        e.push_back(value * std::ldexp(uniform(0.5, 1), -5 - static_cast<int>(random() % 4)));
        const Bits bits = double_to_bits(DType::Float32, value);
        given.emplace(operands.back(), BoundedArray{{DType::Float32, {}, {bits}, {}}, {e.back()}});
      }
      const UOp value = row.build(operands);
      const BoundedArray got = interpret_bounded(value, given);
      const double middle = row.of(x);
      double spread = 0;
      for (size_t corner = 0; corner < (size_t{1} << row.operands); ++corner) {
        std::vector<double> at;
        for (size_t k = 0; k < row.operands; ++k)
          at.push_back(x[k] + ((corner >> k & 1) != 0 ? e[k] : -e[k]));
        spread = std::max(spread, std::abs(row.of(at) - middle));
      }
      const double error = error_at(got, 0);
      EXPECT_GE(error, spread * (1 - 1e-5)) << row.name << " at " << x[0] << " +- " << e[0];
      // The same of one op in a kernel.
      if (std::ranges::equal(value.src(), operands)) {
        std::vector<Deviating> in;
        for (size_t k = 0; k < row.operands; ++k)
          in.push_back({double_to_bits(DType::Float32, x[k]), e[k], 0});
        const double deviation = deviate(value, got.value.data[0], in, {true, true}).deviation;
        EXPECT_GE(deviation, spread * (1 - 1e-5)) << row.name << " at " << x[0] << " +- " << e[0];
        const double most = row.name == std::string("max") ? *std::ranges::max_element(e) : spread;
        EXPECT_LE(deviation, 1.5 * most + 2e-3 * std::abs(middle)) << row.name << " at " << x[0];
      }
      const bool chooses = row.name == std::string("where") || row.name == std::string("max");
      if (!chooses) {
        EXPECT_LE(error, spread * 1.5 + 2e-3 * std::abs(middle)) << row.name << " at " << x[0];
      }
    }
}

// A value that lost nothing hands on nothing.
TEST(bounded, what_is_exact_stays_exact) {
  std::vector<float> values;
  for (int i = 1; i <= 50; ++i) values.push_back(0.1f * static_cast<float>(i));
  const UOp x = leaf({50}, DType::Float64, 3), y = floats(values), column = shape_of({50, 1});
  EXPECT_TRUE(bounded(add(cast(x, DType::Float32), y)).error.empty());
  const UOp logarithm = unary(Op::Log2, cast(y, DType::Float64));
  const UOp some = stack(std::vector<UOp>{x, logarithm});  // of two, one is exact
  const BoundedArray mixed = bounded(add(cast(some, DType::Float32), y));
  EXPECT_EQ(error_at(mixed, 0), 0);
  EXPECT_GT(error_at(mixed, 50), 0);
  // The sum of one product is a product, which a sum may take unrounded.
  const UOp product = mul(y, y);
  EXPECT_TRUE(bounded(reduce(Op::Add, reshape(product, column), {1})).error.empty());
  const BoundedArray plain = bounded(add(product, y)),
                     summed = bounded(
                         add(reduce(Op::Add, reshape(product, column), {1}), reshape(y, column)));
  EXPECT_FALSE(plain.error.empty());
  for (size_t i = 0; i < 50; ++i) EXPECT_EQ(error_at(plain, i), error_at(summed, i)) << i;
  // A product with infinity is infinite, rounded or not; one that overflows is finite until it is
  // rounded.
  const UOp large = floats({inf, 3, -inf, 3e38f}), factor = floats({3, -inf, -inf, 3});
  const BoundedArray infinite = bounded(add(mul(large, factor), floats({1, 1, 1, 1})));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(error_at(infinite, i), 0) << i;
  EXPECT_TRUE(std::isinf(error_at(infinite, 3)));
}

TEST(bounded, digits_are_those_of_the_dtype) {
  for (const DType d : stored_dtypes()) {
    if (!is_float(d)) continue;
    const Bits one = double_to_bits(d, 1);
    EXPECT_EQ(bits_to_double(d, one + 1) - 1, 2 * precision_of(d).unit()) << dtype_name(d);
    EXPECT_EQ(bits_to_double(d, 1), precision_of(d).tiny) << dtype_name(d);
  }
}

TEST(bounded, a_trunc_of_what_is_exact_is_exact) {
  EXPECT_TRUE(bounded(unary(Op::Trunc, floats({0.3f, -0.3f, 2.5f}))).error.empty());
  const BoundedArray near = bounded(unary(Op::Trunc, unary(Op::Log2, floats({1.5f, 8}))));
  EXPECT_GT(error_at(near, 0), 0) << "0 or -0";
  EXPECT_EQ(error_at(near, 1), 1) << "3 or 2";
  const UOp twice = unary(Op::Trunc, unary(Op::Trunc, unary(Op::Log2, floats({8}))));
  EXPECT_GE(error_at(bounded(twice), 0), 1);
}

// A kernel made by hand has the liberties of any, and what its arguments may differ by.
TEST(bounded, kernels_made_by_hand) {
  const auto sum_of_product = [](const UOp& x, const UOp& y, const UOp& z) {
    return custom_kernel("test.sum_of_product", CallResult{Tensor(x).shape()},
                         {Tensor(x), Tensor(y), Tensor(z)},
                         [](const std::vector<UOp>& p) {
                           const UOp i = range(0, p[0].dim(0), AxisType::Loop);
                           const auto at = [&](size_t k) { return index(p[k], {i}); };
                           return sink({end(store(at(0), add(mul(at(1), at(2)), at(3))), {i})});
                         })
        .uop();
  };
  const UOp large = floats({inf, 3, -inf, 3e38f}), factor = floats({3, -inf, -inf, 3}),
            ones = floats({1, 1, 1, 1});
  const BoundedArray infinite = bounded(sum_of_product(large, factor, ones));
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(error_at(infinite, i), 0) << i;
  EXPECT_TRUE(std::isinf(error_at(infinite, 3)));
  // Of each argument.
  const UOp inexact = unary(Op::Log2, floats({3, 5, 7, 11})), exact = floats({2, 2, 2, 2});
  const BoundedArray given = bounded(inexact);
  for (const size_t place : {size_t{0}, size_t{1}, size_t{2}}) {
    std::vector<UOp> arguments(3, exact);
    arguments[place] = inexact;
    const BoundedArray got = bounded(sum_of_product(arguments[0], arguments[1], arguments[2]));
    for (size_t i = 0; i < 4; ++i)
      EXPECT_GE(error_at(got, i), error_at(given, i)) << "argument " << place;
  }
}

TEST(bounded, what_liberties_decide_is_unknown) {
  const UOp x = floats({0.1f, 0.2f, 0.3f}), y = floats({0.7f, 0.9f, -0.3f});
  const UOp sum = add(mul(x, y), y), strict = floats({0.1f * 0.7f + 0.7f, 5, -0.4f});
  const BoundedArray less = bounded(lt(sum, strict));
  EXPECT_TRUE(std::isinf(error_at(less, 0))) << "as near as rounding";
  EXPECT_EQ(error_at(less, 1), 0) << "far apart";
  const BoundedArray chosen = bounded(where(lt(sum, strict), x, y));
  EXPECT_NEAR(error_at(chosen, 0), 0.6, 1e-6) << "either side";
  EXPECT_EQ(error_at(chosen, 1), 0);
  EXPECT_FALSE(std::isinf(error_at(bounded(ne(sum, sum)), 0)));
  // Whether a product of halves meets its 0 before it overflows, or after, and is NaN.
  const UOp halves = cast(floats({300, 300, 0}), DType::Float16);
  const UOp product = reduce(Op::Mul, contiguous(halves), {0});
  EXPECT_TRUE(std::isinf(error_at(bounded(ne(product, product)), 0)));
  EXPECT_EQ(error_at(bounded(lt(product, product)), 0), 0);
  const BoundedArray whole =
      bounded(cast(mul(sum, constant(DType::Float32, 101.37)), DType::Int32));
  EXPECT_EQ(error_at(whole, 1), 0);
}

TEST(bounded, random_graphs_are_mostly_exact_and_seldom_unknown) {
  double all = 0, exact = 0, unknown = 0;
  for (uint64_t i = 0; i < 600; ++i) {
    std::mt19937_64 random(test_seed() + i);
    const UOp graph = random_graph(random);
    const BoundedArray b = bounded(graph);
    const Array strict = interpret(graph, bindings_of(graph));
    ASSERT_EQ(difference(b, strict), "") << to_text(graph);
    for (size_t k = 0; k < strict.data.size(); ++k) {
      all += 1;
      exact += error_at(b, k) == 0 ? 1 : 0;
      unknown += std::isinf(error_at(b, k)) ? 1 : 0;
    }
  }
  EXPECT_GT(exact / all, 0.6);
  EXPECT_LT(exact / all, 0.99) << "the graphs take no liberties";
  EXPECT_LT(unknown / all, 0.1);
  RecordProperty("exact", std::to_string(exact / all));
  RecordProperty("unknown", std::to_string(unknown / all));
}

// Equal graphs over other buffers run under the same settings.
TEST(bounded, settings_are_drawn_from_the_seed_and_the_graph) {
  const UOp a = add(leaf({4}), leaf({4}, DType::Float32, 1)),
            b = add(leaf({4}), leaf({4}, DType::Float32, 1));
  std::mt19937_64 one = settings_random(a), two = settings_random(b),
                  other = settings_random(mul(a, a));
  EXPECT_EQ(text_of(draw_settings(one, "CPU", true)), text_of(draw_settings(two, "CPU", true)));
  EXPECT_NE(one(), other());
}

// Everything that can be drawn is drawn, and nothing that this host cannot run.
TEST(bounded, every_setting_is_drawn) {
  std::set<std::string> wanted{"threads 1", "threads 2", "threads 8", "noopt",   "opt",
                               "warm",      "cold",      "verify 1",  "verify 2"};
  wanted.insert("cpu " + options().cpu);
#ifdef __x86_64__
  if (options().cpu.empty())
    for (const std::string_view level : cpu_levels())
      if (host_runs(level)) wanted.insert(fmt::format("cpu {}", level));
#endif
  for (const bool strict : {true, false}) {
    std::set<std::string> drawn;
    std::mt19937_64 random(test_seed());
    for (int i = 0; i < 200; ++i) {
      const Settings s = draw_settings(random, "CPU", strict);
      EXPECT_EQ(s.device, "CPU");
      EXPECT_EQ(s.strict, strict);
      drawn.insert({fmt::format("threads {}", s.threads), s.noopt ? "noopt" : "opt",
                    s.warm ? "warm" : "cold", fmt::format("verify {}", s.verify), "cpu " + s.cpu});
    }
    EXPECT_EQ(drawn, wanted);
  }
}

// Settings are what the compiler sees.
TEST(bounded, settings_become_options) {
  const Settings s{"INTERP", true, "x86-64-v2", true, 8, false, 2};
  const Options o = options_of(s);
  EXPECT_EQ(o.device, "INTERP");
  EXPECT_TRUE(o.strict);
  EXPECT_EQ(o.cpu, "x86-64-v2");
  EXPECT_TRUE(o.noopt);
  EXPECT_EQ(o.threads, 8);
  EXPECT_GE(o.verify, 2);
  const Options plain = options_of({"CPU", false, "", false, 1, false, 1});
  EXPECT_EQ(plain.device, "CPU");
  EXPECT_FALSE(plain.strict);
  EXPECT_FALSE(plain.noopt);
  EXPECT_EQ(plain.threads, 1);
}

// A value that default mode may change runs on both devices in both modes; one that it may not, in
// strict mode on both and in default mode on either. What is wrong in one of them is noticed.
TEST(bounded, a_difference_in_any_mode_on_any_device_is_found) {
  const UOp x = leaf({300}, DType::Float32), exact = add(x, x),
            free = reduce(Op::Add, mul(x, x), {0});
  int simt = 0;  // interpreted as well
  const auto mode_of = [&](const Settings& s) {
    simt += s.device == "SIMT" ? 1 : 0;
    return fmt::format("{} {}", s.device == "CPU" ? "CPU" : "INTERP",
                       s.strict ? "strict" : "default");
  };
  const std::vector<std::string> all{"INTERP strict", "CPU strict", "INTERP default",
                                     "CPU default"};
  std::set<std::vector<std::string>> seen;
  for (uint64_t i = 0; i < 20; ++i) {
    std::mt19937_64 random(test_seed() + i);
    std::vector<std::string> runs;
    const Execute plain = [&](const UOp& value, const Settings& s) {
      runs.push_back(mode_of(s));
      return run_with(value, s);
    };
    ASSERT_EQ(difference_anywhere(i == 0 ? free : exact, random, plain), "");
    if (i == 0)
      EXPECT_EQ(runs, all);
    else
      seen.insert(runs);
  }
  EXPECT_EQ(seen,
            (std::set<std::vector<std::string>>{{"INTERP strict", "CPU strict", "INTERP default"},
                                                {"INTERP strict", "CPU strict", "CPU default"}}));
  EXPECT_GT(simt, 0);
  for (const std::string& broken : all) {
    std::mt19937_64 random(test_seed());
    const Execute wrong = [&](const UOp& value, const Settings& s) {
      Array out = run_with(value, s);
      if (mode_of(s) == broken) out.data[0] = double_to_bits(DType::Float32, 12345);
      return out;
    };
    const std::string said = difference_anywhere(free, random, wrong);
    const bool strict = broken.ends_with("strict");
    EXPECT_TRUE(said.starts_with(fmt::format("KOINE_DEVICE={} KOINE_FP={} ",
                                             broken.substr(0, broken.find(' ')),
                                             strict ? "strict" : "default")))
        << said;
    const Execute thrown = [&](const UOp& value, const Settings& s) {
      if (mode_of(s) == broken) throw std::runtime_error("planted");
      return run_with(value, s);
    };
    EXPECT_NE(difference_anywhere(free, random, thrown).find("exception: planted"),
              std::string::npos);
  }
}

// The first element that differs, both with their bits, and the bound where there is one.
TEST(bounded, a_difference_says_how_far_off_the_value_may_be) {
  const auto array = [](std::vector<Bits> bits) {
    return Array{DType::Float32, {static_cast<int64_t>(bits.size())}, std::move(bits), {}};
  };
  const Array meant = array({0x40800000, 0x3f800000}), got = array({0x40800000, 0x40000000});
  const std::string said = "element 1: 2 (0x40000000) instead of 1 (0x3f800000)";
  EXPECT_EQ(difference(BoundedArray{meant, {}}, got), said);
  EXPECT_EQ(difference(BoundedArray{meant, {0, 0.25}}, got), said + ", more than 0.25 away");
  EXPECT_EQ(difference(BoundedArray{meant, {0, 1}}, got), "");
}

// n u reaches 1: nothing is promised, which is not the same as nothing allowed.
TEST(bounded, long_products_of_narrow_floats_have_no_bound) {
  const UOp x = leaf({8}, DType::Float8E5M2);
  const BoundedArray b = bounded(
      reduce(Op::Mul, cast(add(x, constant(DType::Float8E5M2, 9)), DType::Float8E5M2), {0}));
  EXPECT_EQ(reorder_bound(Op::Mul, DType::Float8E5M2, 8, false), undetermined);
  EXPECT_EQ(error_at(b, 0), undetermined);
}

}  // namespace koine::test

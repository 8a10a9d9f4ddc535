// Gradients: rules of single ops, and values captured by functions.
#include <cmath>
#include <numbers>

#include "check.hpp"
#include "gradient_check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/tensor/transforms.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/gradient.hpp"
#include "koine/transform/table.hpp"

namespace koine::test {
namespace {

std::vector<double> slopes(const Tensor& value, const Tensor& x) {
  return value.sum().gradient({x})[0].tolist<double>();
}

UOp derivative(const UOp& of, const UOp& by) {
  const UOp scalar = Tensor(of).sum().uop();
  const std::vector<UOp> outputs{scalar}, seeds{constant(scalar.dtype(), 1)}, targets{by};
  const UOp g = gradient(outputs, seeds, targets)[0];
  return g ? g : Tensor(by).zeros_like().uop();
}

}  // namespace

// A pad's fill has the sum of what lies around the value.
TEST(gradients, spec_B5_spec_amend_40_of_a_fill) {
  const Tensor x = doubles({2, 3}, 1), fill = doubles({}, 2), weights = doubles({4, 3}, 3);
  auto padded = [&](const Tensor& by) {
    return Tensor(pad(x.uop(), shape_of({1, 0}), shape_of({4, 3}), by.uop()));
  };
  const auto w = weights.tolist<double>();
  const double around = w[0] + w[1] + w[2] + w[9] + w[10] + w[11];
  EXPECT_NEAR(slopes(padded(fill) * weights, fill)[0], around, 1e-12);
  EXPECT_EQ(slopes(padded(fill) * weights, x), std::vector<double>(w.begin() + 3, w.begin() + 9));
  check_gradient([&](const Tensor& f) { return padded(f * f) * weights; }, fill);
  check_gradient(
      [&](const Tensor& f) { return Tensor(pad(f.uop(), shape_of({}), shape_of({}), f.uop())); },
      fill);
}

TEST(gradients, every_op_of_values_has_its_cells) {
  for (int i = 0; i < op_count; ++i) {
    const Op op = static_cast<Op>(i);
    const GroupOp group = op_info(op).group;
    const bool of_values = group == GroupOp::Unary || group == GroupOp::Binary ||
                           group == GroupOp::Ternary || group == GroupOp::Movement ||
                           group == GroupOp::Reduce || group == GroupOp::Marker || op == Op::Load ||
                           op == Op::After || op == Op::Store;
    if (!of_values) continue;
    EXPECT_FALSE(vjp_cell(op).is_refused()) << op_name(op);
    EXPECT_FALSE(jvp_cell(op).is_refused()) << op_name(op);
    EXPECT_NE(batch_cell(op).rule(), nullptr) << op_name(op);
    // What is proven to be nothing, or refused, says why.
    EXPECT_EQ(vjp_cell(op).rule() == nullptr, !vjp_cell(op).words().empty()) << op_name(op);
  }
}

// What is invalid around a Pad without fill counts for nothing, so nothing there has a slope.
TEST(gradients, spec_amend_27_of_invalid_elements) {
  const UOp x = doubles({2}, 4).uop(), y = doubles({4}, 5).uop();
  const auto at = Tensor(x).tolist<double>(), low = Tensor(y).tolist<double>();
  const UOp p = pad(x, shape_of({1}), shape_of({4})), least = constant(DType::Float64, -99);
  using List = std::vector<double>;
  auto of = [&](const UOp& value, const UOp& by) {
    // Whoever computes with a gradient finds every element of it valid.
    return (Tensor(derivative(value, by)) + Tensor(1.0) - Tensor(1.0)).tolist<double>();
  };
  auto near = [](const List& got, const List& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-12) << i;
  };
  near(of(add(p, y), y), {0, 1, 1, 0});
  near(of(mul(p, y), y), {0, at[0], at[1], 0});
  near(of(mul(p, y), x), {low[1], low[2]});
  near(of(UOp::make(Op::Max, {p, mul(y, least)}), y),
       {0, low[1] * -99 > at[0] ? -99.0 : 0, low[2] * -99 > at[1] ? -99.0 : 0, 0});
  near(of(where(lt(p, least), y, mul(y, y)), y), {0, 2 * low[1], 2 * low[2], 0});
  near(of(contiguous(add(p, y)), y), {0, 1, 1, 0});
  const List largest = at[0] > at[1] ? List{1, 0} : List{0, 1};
  near(of(reduce(Op::Max, p, {0}), x), largest);
  near(of(reduce(Op::Mul, p, {0}), x), {at[1], at[0]});
  near(of(reshape(add(p, y), shape_of({2, 2})), y), {0, 1, 1, 0});
}

TEST(gradients, spec_amend_40_of_a_product_with_zeros) {
  const std::vector<std::vector<double>> rows = {
      {2, 3, 5}, {0, 3, 5},         {0, 0, 5}, {0, 0, 0}, {-0.0, 2, -1.5, 4, 0.25},
      {7},       {1, 0, 2, 0, 3, 4}};
  for (const auto& row : rows) {
    const Tensor x = Tensor::from(row, {static_cast<int64_t>(row.size())});
    auto prod = [](const Tensor& t) { return t.prod(); };
    check_gradient(prod, x);
    check_second_gradient(prod, x);
    check_second_gradient([](const Tensor& t) { return (t * t).prod() * t.sum(); }, x);
  }
  // Exactly, by the formula: d2/dx0dx1 of x0 x1 x2 is x2, and the third derivative is 1.
  const Tensor x = Tensor::from<double>({0, 0, 5});
  const Tensor first = x.prod().gradient({x})[0];
  const Tensor second = first[0].gradient({x})[0], third = second[1].gradient({x})[0];
  EXPECT_EQ(first.tolist<double>(), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(second.tolist<double>(), (std::vector<double>{0, 5, 0}));
  EXPECT_EQ(third.tolist<double>(), (std::vector<double>{0, 0, 1}));
  // Several axes, none in order, and a size that is known only at the run.
  check_second_gradient([](const Tensor& t) { return t.prod({0, 2}); }, doubles({2, 3, 3}, 4));
  check_gradient([](const Tensor& t) { return t.prod({1}, true); }, doubles({2, 0, 3}, 5));
  // Where the whole product leaves the range of numbers, that of the others need not.
  const Tensor large = Tensor::from<float>({1e30f, 1e30f, 1e-30f});
  EXPECT_FLOAT_EQ(static_cast<float>(slopes(large.prod(), large)[0]), 1.0f);
}

TEST(gradients, spec_amend_40_norm_and_deviation_at_zero) {
  for (const DType d : {DType::Float32, DType::Float64, DType::Float16}) {
    const Tensor zero = Tensor::zeros({3}, d).clone().realize();
    EXPECT_EQ(slopes(zero.norm(), zero), (std::vector<double>{0, 0, 0}));
    const Tensor same = Tensor::full({3}, 2, d).clone().realize();
    EXPECT_EQ(slopes(same.std(), same), (std::vector<double>{0, 0, 0}));
  }
  const Tensor x = doubles({4, 3}, 6);
  check_second_gradient([](const Tensor& t) { return t.norm({1}) + t.std({1}); }, x);
  EXPECT_EQ(Tensor::zeros({3}).norm().item(), 0);
  EXPECT_TRUE(std::isnan(Tensor::from<double>({1, std::nan("")}).norm().item()));
  EXPECT_EQ(kernel_count({Tensor(leaf({64})).norm()}), 1);
}

// 2 exp(-x^2) / sqrt(pi), and not the slope of what approximates erf; of the exact gelu what
// follows from that.
TEST(gradients, the_slope_of_the_error_function_is_its_closed_form) {
  std::vector<double> at{0, -0.0, 0.8125, -0.8124, inf, -inf, 1e30, 1e-30};
  for (int i = -160; i <= 160; ++i) at.push_back(i / 16.0);
  for (const DType d : {DType::Float32, DType::Float64}) {
    const double unit = d == DType::Float32 ? 0x1p-23 : 0x1p-52;
    const double least = d == DType::Float32 ? 0x1p-149 : 0x1p-1074;
    const Tensor x =
        Tensor::from<double>(at, {static_cast<int64_t>(at.size())}).cast(d).clone().realize();
    const auto of_erf = slopes(x.erf(), x), of_erfc = slopes(x.erfc(), x),
               of_gelu = slopes(x.gelu("none"), x);
    const std::vector<double> points = x.tolist<double>();
    for (size_t i = 0; i < points.size(); ++i) {
      const long double v = points[i], decay = std::exp(-v * v);
      const auto slope = static_cast<double>(2 * decay * std::numbers::inv_sqrtpi_v<long double>);
      EXPECT_NEAR(of_erf[i], slope, 4 * unit * slope + 2 * least) << dtype_name(d) << " at " << v;
      EXPECT_EQ(of_erfc[i], -of_erf[i]) << dtype_name(d) << " at " << v;
      const long double part = std::erfc(-v / std::numbers::sqrt2_v<long double>) / 2,
                        bell = std::isinf(v) ? 0
                                             : v * std::exp(-v * v / 2) / 2 *
                                                   std::numbers::sqrt2_v<long double> *
                                                   std::numbers::inv_sqrtpi_v<long double>;
      const long double size = part + std::fabs(bell);  // on the left they cancel
      EXPECT_NEAR(of_gelu[i], static_cast<double>(part + bell),
                  static_cast<double>(8 * unit * size + 4 * least))
          << dtype_name(d) << " at " << v;
    }
  }
  const Tensor x = doubles({3, 4}, 7);
  check_second_gradient([](const Tensor& t) { return t.erf() * t; }, x);
  check_second_gradient([](const Tensor& t) { return t.erfc() + t.gelu("none") * t; }, x);
  const Tensor ends = Tensor::from<double>({inf, -inf}).clone().realize();
  const Tensor slope = ends.erf().sum().gradient({ends})[0];
  EXPECT_EQ(slopes(slope, ends), (std::vector<double>{0, 0})) << "limits, as of the first one";
}

// x s(y) with s(y) = 1 / (1 + exp(-y)) has the slope s(y) (1 + x y' s(-y)): of a gelu by tanh
// y = 2 sqrt(2/pi) (x + 0.044715 x^3), of silu y = x.
TEST(gradients, slopes_of_gates_are_their_closed_forms) {
  const std::vector<double> at{0,  -0.0, 0.3, -0.3, 1,  -1,  -2.5, 2.5,
                               -6, 6,    20,  -20,  80, -80, 300,  -300};
  for (const DType d : {DType::Float64, DType::Float32}) {
    const double within = d == DType::Float64 ? 1e-13 : 3e-6;
    const Tensor x =
        Tensor::from<double>(at, {static_cast<int64_t>(at.size())}).cast(d).clone().realize();
    const std::vector<double> of_gelu = slopes(x.gelu(), x), of_silu = slopes(x.silu(), x);
    const std::vector<double> points = x.tolist<double>();
    for (size_t i = 0; i < at.size(); ++i) {
      const long double v = points[i];
      const auto slope = [&](long double y, long double dy) {
        const long double s = 1 / (1 + std::exp(-y)), rest = 1 / (1 + std::exp(y));
        return static_cast<double>(s * (1 + v * dy * rest));
      };
      const long double c = 2 * std::sqrt(2 / std::numbers::pi_v<long double>), k = 0.044715L;
      EXPECT_NEAR(of_gelu[i], slope(c * (v + k * v * v * v), c * (1 + 3 * k * v * v)), within)
          << at[i];
      EXPECT_NEAR(of_silu[i], slope(v, 1), within) << at[i];
    }
    const Tensor ends = Tensor::from<double>({inf, -inf}).cast(d).clone().realize();
    EXPECT_EQ(slopes(ends.gelu(), ends), (std::vector<double>{1, 0}));
    EXPECT_EQ(slopes(ends.silu(), ends), (std::vector<double>{1, 0}));
  }
  const Tensor x = doubles({3, 4}, 7);
  check_second_gradient([](const Tensor& t) { return t.gelu() * t + t.silu(); }, x);
}

// 1 - y y and y (1 - y): exactly what the value y says, 0 where it is an end.
TEST(gradients, slopes_of_tanh_and_sigmoid_are_formulas_of_their_values) {
  std::vector<double> at{inf, -inf, 1e30, -1e30, 1e-30, 0, -0.0, 0.625, -0.625};
  for (int i = -160; i <= 160; ++i) at.push_back(i / 8.0);
  const auto tanh = [](const Tensor& t) { return t.tanh(); };
  const auto sigmoid = [](const Tensor& t) { return t.sigmoid(); };
  for (const DType d : {DType::Float64, DType::Float32, DType::Float16, DType::BFloat16}) {
    SCOPED_TRACE(dtype_name(d));
    const double unit = d == DType::Float64    ? 0x1p-52
                        : d == DType::Float32  ? 0x1p-23
                        : d == DType::BFloat16 ? 0x1p-7
                                               : 0x1p-10;
    const Tensor x =
        Tensor::from<double>(at, {static_cast<int64_t>(at.size())}).cast(d).clone().realize();
    const Tensor ones = x.ones_like();
    const std::vector<double> points = x.tolist<double>();
    const auto check = [&](const auto& f, const auto& slope) {
      const std::vector<double> back = slopes(f(x), x);
      EXPECT_EQ(jvp(f, x, ones).second.template tolist<double>(), back);
      const auto by_slope = [&](const Tensor& t) {
        return grad([&](const Tensor& v) { return f(v).sum(); })(t);
      };
      const std::vector<double> again = slopes(by_slope(x), x),
                                forward = values(jvp(by_slope, x, ones).second);
      for (size_t i = 0; i < points.size(); ++i) {
        const auto [first, second] = slope(static_cast<long double>(points[i]));
        EXPECT_NEAR(back[i], static_cast<double>(first), 2 * unit) << points[i];
        EXPECT_NEAR(again[i], static_cast<double>(second), 4 * unit) << points[i];
        EXPECT_NEAR(forward[i], static_cast<double>(second), 4 * unit) << points[i];
      }
      for (size_t i = 0; i < 4; ++i) EXPECT_EQ(back[i] + again[i] + forward[i], 0) << points[i];
    };
    check(tanh, [](long double v) {
      const long double y = std::tanh(v), first = 1 / (std::cosh(v) * std::cosh(v));
      return std::pair(first, -2 * y * first);
    });
    check(sigmoid, [](long double v) {
      const long double y = 1 / (1 + std::exp(-v)), rest = 1 / (1 + std::exp(v));
      return std::pair(y * rest, y * rest * (rest - y));
    });
  }
  const Tensor x = doubles({3, 4}, 7);
  check_second_gradient([](const Tensor& t) { return t.tanh() * t + t.sigmoid(); }, x);
}

// A backward pass computes the gate again, of its input: what came between is in no memory.
TEST(gradients, of_gates_keep_their_inputs_alone) {
  const Tensor x = doubles({16, 24}, 1).cast(DType::Float32).realize();
  const Tensor a = doubles({24, 32}, 2).cast(DType::Float32).realize();
  const Tensor b = doubles({32, 8}, 3).cast(DType::Float32).realize();
  for (const bool gelu : {true, false}) {
    const Tensor h = x.matmul(a), loss = (gelu ? h.gelu() : h.silu()).matmul(b).square().sum();
    std::vector<UOp> values;
    for (const Tensor& g : loss.gradient({x, a, b})) values.push_back(g.uop());
    for (const Kernel& k : schedule(values)) EXPECT_LE(k.buffers.size(), 4U) << k.reason;
  }
}

// What bounds its argument first does not hide NaN from the slope; a maximum hands on what it is
// given there. Both are PyTorch's.
TEST(gradients, spec_amend_40_of_nan_are_not_hidden_by_a_bound) {
  using One = Tensor (*)(const Tensor&);
  for (const DType d : {DType::Float32, DType::Float64, DType::Float16}) {
    const Tensor x = Tensor::from<double>({std::nan(""), 0.5}).cast(d).clone().realize();
    for (const One f : {One([](const Tensor& t) { return t.silu(); }),
                        One([](const Tensor& t) { return t.gelu(); }),
                        One([](const Tensor& t) { return t.gelu("none"); }),
                        One([](const Tensor& t) { return t.erf(); }),
                        One([](const Tensor& t) { return t.erfc(); }),
                        One([](const Tensor& t) { return t.sigmoid(); }),
                        One([](const Tensor& t) { return t.tanh(); }),
                        One([](const Tensor& t) { return t.softplus(); })}) {
      const std::vector<double> got = slopes(f(x), x);
      EXPECT_TRUE(std::isnan(got[0])) << dtype_name(d);
      EXPECT_FALSE(std::isnan(got[1])) << dtype_name(d);
    }
    for (const One f : {One([](const Tensor& t) { return t.maximum(0.0); }),
                        One([](const Tensor& t) { return t.minimum(1.0); }),
                        One([](const Tensor& t) { return t.hardtanh(-1, 1); })})
      EXPECT_EQ(slopes(f(x), x), (std::vector<double>{1, 1})) << dtype_name(d);
  }
}

// Found with PyTorch (tests/torch): what is smooth has its second derivative where its formula has
// sides, and x to the 0 has one at 0.
TEST(gradients, spec_amend_40_second_derivatives_at_the_corners_of_formulas) {
  using Curve = std::function<Tensor(const Tensor&)>;
  auto second = [](const Curve& f, double at) {
    const Tensor x = Tensor::from<double>({at});
    return grad([&](const Tensor& t) {
             return grad([&](const Tensor& s) { return f(s).sum(); })(t).sum();
           })(x)
        .item();
  };
  for (const double zero : {0.0, -0.0}) {
    EXPECT_DOUBLE_EQ(second([](const Tensor& x) { return x.softplus(); }, zero), 0.25);
    EXPECT_DOUBLE_EQ(
        second([](const Tensor& x) { return x.binary_crossentropy_logits(0.25); }, zero), 0.25);
    EXPECT_DOUBLE_EQ(second([](const Tensor& x) { return x.silu(); }, zero), 0.5);
    for (const double exponent : {0.0, 1.0})
      EXPECT_EQ(second([&](const Tensor& x) { return x.pow(exponent); }, zero), 0) << exponent;
  }
  // d/da a^b log a = 1/a at b = 0, also where the logarithm is no number.
  const Tensor a = Tensor::from<double>({-2}), b = Tensor::from<double>({0});
  const std::vector<Tensor> first = a.pow(b).sum().gradient({a, b});
  EXPECT_EQ(slopes(first[0] + first[1], a), (std::vector<double>{-0.5}));
}

// A body may use the values around it: each is an argument, whatever it is made of (C33).
TEST(functions, spec_F3_spec_amend_33_bodies_use_what_is_around_them) {
  in_both_modes([] {
    const Tensor x = Tensor::from<float>({1, 2, 3}), y = Tensor::from<float>({10, 20, 30});
    for (const Resolve how : {Resolve::Substitute, Resolve::Precompile}) {
      const auto outer = koine::function(
          [&](const Tensor& a, const Tensor& b) {
            const auto inner = koine::function([&](const Tensor& c) { return a + c; }, how);
            return inner(b);
          },
          how);
      const Tensor sum = outer(x, y);
      EXPECT_EQ(slopes(sum, x), (std::vector<double>{1, 1, 1}));
      EXPECT_EQ(slopes(sum, y), (std::vector<double>{1, 1, 1}));
      EXPECT_EQ(sum.tolist<int>(), (std::vector<int>{11, 22, 33}));
      expect_same_everywhere(outer(x, y));
      // A constant for the inner one: the outer parameter keeps its gradient.
      const auto scaled = koine::function(
          [&](const Tensor& a) {
            const auto inner = koine::function([&](const Tensor& c) { return a * c; }, how);
            return inner(Tensor(2.0)) + a;
          },
          how);
      EXPECT_EQ(slopes(scaled(x), x), (std::vector<double>{3, 3, 3}));
      // Three deep, each using all that is outside of it.
      const auto deep = koine::function(
          [&](const Tensor& a) {
            const auto middle = koine::function(
                [&](const Tensor& b) {
                  const auto inner =
                      koine::function([&](const Tensor& c) { return a * b * c * y; }, how);
                  return inner(a + b);
                },
                how);
            return middle(a * Tensor(2.0));
          },
          how);
      EXPECT_EQ(deep(x).tolist<int>(), (std::vector<int>{60, 960, 4860})) << "6 a^3 y";
      EXPECT_EQ(slopes(deep(x), x), (std::vector<double>{180, 1440, 4860}));
    }
  });
}

// grad(x -> x grad(y -> x + y)(2))(1) is 1: what is differentiated inside is another variable.
TEST(functions, spec_amend_33_gradients_nest) {
  const UOp one = Tensor(1.0).clone().realize().uop(), two = Tensor(2.0).clone().realize().uop();
  auto outer = [&](const std::vector<UOp>& in) {
    const UOp x = in[0];
    const UOp inner = get_tuple(
        make_function([&](const std::vector<UOp>& of) { return std::vector<UOp>{add(x, of[0])}; },
                      {two}),
        0);
    return std::vector<UOp>{mul(x, derivative(inner, two))};
  };
  const UOp value = get_tuple(make_function(outer, {one}), 0);
  EXPECT_EQ(Tensor(derivative(value, one)).item(), 1);
}

TEST(functions, spec_F3_a_captured_lazy_value_has_a_gradient) {
  const Tensor a = Tensor::from<float>({1, 2, 3}), t = Tensor::from<float>({2, 2, 2});
  const Tensor lazy = a * Tensor(3.0), part = lazy.shrink({{0, 1}}).expand({3});
  for (const Resolve how : {Resolve::Substitute, Resolve::Precompile}) {
    const auto f = koine::function([&](const Tensor& x) { return x * lazy; }, how);
    EXPECT_EQ(f(t).tolist<int>(), (std::vector<int>{6, 12, 18}));
    EXPECT_EQ(slopes(f(t), lazy), (std::vector<double>{2, 2, 2}));
    EXPECT_EQ(slopes(f(t), a), (std::vector<double>{6, 6, 6}));
    const auto g = koine::function([&](const Tensor& x) { return x * part; }, how);
    EXPECT_EQ(slopes(g(t), part), (std::vector<double>{2, 2, 2}));
    EXPECT_EQ(slopes(g(t), a), (std::vector<double>{18, 0, 0}));
  }
  // What is made of constants alone is part of the body; that is said, and no zero is given.
  const Tensor numbers = Tensor::arange(3).to_float();
  const auto h = koine::function([&](const Tensor& x) { return x * numbers; });
  expect_error([&] { (void)h(t).sum().gradient({numbers}); },
               {"gradient", "target 0", "(3,)", "argument", "clone()"});
  // A value beside a call that no slope comes through is none of that.
  const Tensor steps = (h(t) + a.floor()).sum();
  EXPECT_EQ(steps.gradient({a})[0].tolist<double>(), (std::vector<double>{0, 0, 0}));
}

TEST(functions, spec_F3_only_a_tuple_is_a_body) {
  const UOp x = leaf({2});
  expect_error([&] { (void)UOp::make(Op::Function, {add(x, x), x}); },
               {"Function", "Tuple", "Add"});
  expect_error([&] { (void)UOp::make(Op::Function, {tuple(std::vector<UOp>{x}), x}, int64_t{1}); },
               {"Function", "precompile"});
  expect_error([&] { (void)get_tuple(x, 0); }, {"GetTuple", "Tuple", "Buffer"});
}

// A Param of a nested body is another one, even where both have the same slot, shape and dtype.
TEST(functions, spec_F4_spec_amend_33_substitution_stays_out_of_nested_bodies) {
  const UOp p = param(0, shape_of({2}), DType::Float32), x = leaf({2}),
            y = leaf({2}, DType::Float32, 1);
  const UOp inner = function(tuple(std::vector<UOp>{mul(p, p)}), std::vector<UOp>{add(p, y)});
  const UOp outer = add(get_tuple(inner, 0), p);
  const UOp got = substitute(outer, {{p, x}});
  EXPECT_EQ(got.src(0).src(0).src(0), inner.src(0)) << "the nested body stays the same node";
  EXPECT_EQ(got.src(0).src(0).src(1), add(x, y));
  EXPECT_EQ(inline_functions(got), add(mul(add(x, y), add(x, y)), x));
  // A nested body with more slots than the one around it has arguments.
  const UOp q = param(2, shape_of({2}), DType::Float32);
  const UOp three = function(tuple(std::vector<UOp>{sub(q, p)}), std::vector<UOp>{p, p, mul(p, p)});
  const UOp call =
      get_tuple(function(tuple(std::vector<UOp>{get_tuple(three, 0)}), std::vector<UOp>{x}), 0);
  const OptionScope scope(strict_options());
  EXPECT_EQ(inline_functions(call), sub(mul(x, x), x));
  EXPECT_EQ(
      difference(interpret(sub(mul(x, x), x), bindings_of(x)), interpret(call, bindings_of(call))),
      "");
  const Tensor z = Tensor::from<float>({3, 4});
  const UOp of_z = get_tuple(function(call.src(0).src(0), std::vector<UOp>{z.uop()}), 0);
  EXPECT_EQ(Tensor(derivative(of_z, z.uop())).tolist<int>(), (std::vector<int>{5, 7}));
}

// What a precompiled function gives is memory: the kernels around do not reach into it.
TEST(functions, spec_F4_a_precompiled_result_is_memory) {
  const Tensor x = Tensor::from<float>({1, 2, 3});
  auto kernels = [&](Resolve how) {
    const auto f = koine::function([](const Tensor& t) { return t * t; }, how);
    return kernel_count({f(x) + Tensor(1.0)});
  };
  EXPECT_EQ(kernels(Resolve::Substitute), 1);
  EXPECT_EQ(kernels(Resolve::Precompile), 2);
}

// Memory cannot hold an invalid element, so what has some goes into a precompiled body as it is,
// and comes out of it: a maximum skips them, also through two calls.
TEST(functions, spec_F4_spec_amend_27_invalid_elements_pass_a_precompiled_body) {
  const Tensor x = Tensor::from<int32_t>({-3, -2}), y = Tensor::from<int32_t>({5, 6, 7, 8});
  const auto largest = [](const UOp& v) { return reduce(Op::Max, v, {0}); };
  const UOp padded = pad(x.uop(), shape_of({1}), shape_of({4}));
  for (const Resolve outer : {Resolve::Substitute, Resolve::Precompile})
    for (const Resolve inner : {Resolve::Substitute, Resolve::Precompile}) {
      const UOp in = make_function(
          [&](const std::vector<UOp>& p) {
            const UOp call = make_function(
                [&](const std::vector<UOp>& q) {
                  return std::vector<UOp>{largest(q[0]), mulacc(q[0], q[1], q[1])};
                },
                p, inner);
            return std::vector<UOp>{get_tuple(call, 0), get_tuple(call, 1)};
          },
          {padded, y.uop()}, outer);
      const OptionScope scope(strict_options());
      EXPECT_EQ(Tensor(get_tuple(in, 0)).tolist<int>(), (std::vector<int>{-2}));
      EXPECT_EQ(Tensor(contiguous(get_tuple(in, 1))).tolist<int>(),
                (std::vector<int>{0, -3 * 6 + 6, -2 * 7 + 7, 0}));
      EXPECT_EQ(Tensor(largest(get_tuple(in, 1))).tolist<int>(), (std::vector<int>{-7}));
      expect_same_everywhere(largest(get_tuple(in, 1)));
    }
}

// Sizes of the arguments replace the Variables in the shapes of Params, in results and bodies.
TEST(functions, spec_P2_variables_in_shapes_of_params) {
  const OptionScope scope(strict_options());
  const UOp n = variable("n", 1, 8), two_n = mul(n, index_const(2));
  const UOp p = param(0, stack(std::vector<UOp>{n, index_const(2)}), DType::Float32),
            q = param(1, stack(std::vector<UOp>{n, index_const(1)}), DType::Float32);
  const UOp flat = reshape(add(p, q), stack(std::vector<UOp>{two_n}));
  const UOp body = tuple(std::vector<UOp>{flat, reduce(Op::Add, p, {0}), mul(flat, flat)});
  for (const int64_t rows : {1, 3, 8}) {
    const UOp a = leaf({rows, 2}), b = leaf({rows, 1}, DType::Float32, 1);
    const UOp call = function(body, std::vector<UOp>{a, b});
    EXPECT_EQ(get_tuple(call, 0).sizes(), (std::vector<int64_t>{2 * rows}));
    EXPECT_EQ(get_tuple(call, 1).sizes(), (std::vector<int64_t>{1, 2}));
    expect_same_everywhere(get_tuple(call, 0));
    expect_same_everywhere(get_tuple(call, 1));
    EXPECT_EQ(inline_functions(get_tuple(call, 0)), reshape(add(a, b), shape_of({2 * rows})));
    const Tensor x = Tensor::ones({rows, 2}).clone().realize(),
                 y = Tensor::ones({rows, 1}).clone().realize();
    const Tensor z(get_tuple(function(body, std::vector<UOp>{x.uop(), y.uop()}), 2));
    EXPECT_EQ(slopes(z, y), std::vector<double>(static_cast<size_t>(rows), 8))
        << "2 columns of 2 * 2";
  }
  auto call = [&](const Shape& a, const Shape& b) {
    return [=] { (void)get_tuple(function(body, std::vector<UOp>{leaf(a), leaf(b)}), 0); };
  };
  expect_error(call({9, 2}, {9, 1}), {"slot 0", "n", "1..8", "9"});
  expect_error(call({3, 2}, {4, 1}), {"slot 1", "n is 4", "says 3"});
  expect_error(call({3, 4}, {3, 1}), {"slot 0", "(n, 2)", "(3, 4)"});
  expect_error(call({6}, {3, 1}), {"slot 0", "(n, 2)", "(6,)"});
}

// The gradient below is computed once and stored, instead of again for each reader.
TEST(gradients, spec_M1_contiguous_backward_stores_the_gradient) {
  const Tensor x = Tensor::from<float>({1, 2, 3});
  auto kernels = [&](bool marked) {
    const Tensor y = marked ? x.contiguous_backward() : x;
    return kernel_count(((y * y * y).sum()).gradient({x}));
  };
  EXPECT_EQ(kernels(false), 1);
  auto through = [&](bool marked) {
    const Tensor h = x * Tensor(2.0), y = marked ? h.contiguous_backward() : h;
    return (y * y).sum().gradient({x})[0];
  };
  EXPECT_EQ(kernel_count({through(false)}), 1);
  EXPECT_EQ(kernel_count({through(true)}), 2) << "the gradient at the marker is memory";
  EXPECT_EQ(through(true).tolist<int>(), (std::vector<int>{8, 16, 24}));
  EXPECT_EQ(kernel_count({(x * Tensor(2.0)).contiguous_backward() + Tensor(1.0)}), 1)
      << "forwards it is nothing";
}

// --- single rows of the table
// ---------------------------------------------------------------------

namespace {

UOp numbers(const std::vector<double>& v) {
  return Tensor::from(v, {static_cast<int64_t>(v.size())}).uop();
}
std::vector<double> list(const UOp& value) { return Tensor(value).tolist<double>(); }

}  // namespace

TEST(gradients, rows_of_unary_ops) {
  const std::vector<double> at{-2, -0.5, 0.25, 3};
  const UOp x = numbers(at);
  auto expect = [&](const UOp& y, const std::function<double(double)>& slope, const char* name) {
    const auto got = list(derivative(y, x));
    for (size_t i = 0; i < at.size(); ++i)
      EXPECT_NEAR(got[i], slope(at[i]), 1e-12 * std::max(1.0, std::fabs(got[i]))) << name << at[i];
  };
  expect(unary(Op::Recip, x), [](double v) { return -1 / (v * v); }, "1/x ");
  expect(unary(Op::Exp2, x), [](double v) { return std::exp2(v) * std::log(2); }, "2^x ");
  for (int turns = 0; turns < 4; ++turns)
    expect(
        sine(x, turns), [&](double v) { return std::cos(v + turns * std::acos(-1) / 2); }, "sin ");
  expect(unary(Op::Trunc, x), [](double) { return 0.0; }, "trunc ");
  // Whole numbers and bits have no slope: the factor beside them has one.
  for (const DType whole : {DType::Int64, DType::Int8, DType::Bool})
    expect(
        mul(cast(cast(x, whole), DType::Float64), x),
        [&](double v) { return whole == DType::Bool ? 1.0 : std::trunc(v); }, "cast ");
  expect(
      mul(bitcast(bitcast(x, DType::UInt64), DType::Float64), x), [](double v) { return v; },
      "bits ");
  expect(
      cast(cast(mul(x, x), DType::Float32), DType::Float64), [](double v) { return 2 * v; },
      "float32 ");
  const UOp positive = mul(x, x);
  expect(unary(Op::Sqrt, positive), [](double v) { return v < 0 ? -1 : 1; }, "sqrt x^2 ");
  expect(unary(Op::Log2, positive), [](double v) { return 2 / v / std::log(2); }, "log2 x^2 ");
}

TEST(gradients, rows_of_ops_with_several_operands) {
  const UOp a = numbers({2, 3}), b = numbers({5, -7}), c = numbers({1, 4}), w = numbers({10, 100});
  const UOp fused = mul(mulacc(a, b, c), w);
  EXPECT_EQ(list(derivative(fused, a)), (std::vector<double>{50, -700}));
  EXPECT_EQ(list(derivative(fused, b)), (std::vector<double>{20, 300}));
  EXPECT_EQ(list(derivative(fused, c)), (std::vector<double>{10, 100}));
  const UOp quotient = fdiv(a, b);
  EXPECT_EQ(list(derivative(quotient, a)), (std::vector<double>{1.0 / 5, -1.0 / 7}));
  EXPECT_EQ(list(derivative(quotient, b)), (std::vector<double>{-(2.0 / 5) / 5, (3.0 / -7) / 7}));
  // Broadcast operands take the sum.
  const UOp row = Tensor::from<double>({1, 2, 3, 4, 5, 6}, {3, 2}).uop();
  EXPECT_EQ(list(derivative(mulacc(row, a, c), a)), (std::vector<double>{9, 12}));
  EXPECT_EQ(list(derivative(mulacc(row, a, c), c)), (std::vector<double>{3, 3}));
  // Powers at 0, by base and by exponent; the exponent's slope at base 0 is 0 by convention.
  const UOp base = numbers({0, 0, 0, 0, 2, 2}), exponent = numbers({0, 1, 2, 3, 0, 3});
  const UOp power = binary(Op::Pow, base, exponent);
  EXPECT_EQ(list(derivative(power, base)), (std::vector<double>{0, 1, 0, 0, 0, 12}));
  const auto by_exponent = list(derivative(power, exponent));
  const std::vector<double> wanted{0, 0, 0, 0, std::log(2), 8 * std::log(2)};
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(by_exponent[i], wanted[i], 1e-12) << i;
  EXPECT_TRUE(
      std::isinf(list(derivative(binary(Op::Pow, base, numbers({0.5, 1, 1, 1, 1, 1})), base))[0]));
  // A tie is shared.
  const UOp m = koine::maximum(numbers({1, 2, 3}), numbers({3, 2, 1}));
  EXPECT_EQ(list(derivative(m, m.src(0))), (std::vector<double>{0, 0.5, 1}));
  EXPECT_EQ(list(derivative(m, m.src(1))), (std::vector<double>{1, 0.5, 0}));
}

// Remainders: 1 by the dividend and -floor(a/b) by the divisor, at exact multiples too.
TEST(gradients, spec_D3_of_remainders) {
  const std::vector<double> at{6, -6, 6, -6, 7, -7, 7, -7, 0, 0.25, 1e9},
      by{3, 3, -3, -3, 2, 2, -2, -2, 5, 8, 3};
  for (const DType d : {DType::Float64, DType::Float32}) {
    const Tensor a = Tensor::from(at, {11}).cast(d), b = Tensor::from(by, {11}).cast(d);
    const Tensor rest = a.mod(b).sum(), whole = a.idiv(b).sum();
    EXPECT_EQ(rest.gradient({a})[0].tolist<double>(), std::vector<double>(11, 1));
    const auto slopes_by = rest.gradient({b})[0].tolist<double>();
    for (size_t i = 0; i < at.size(); ++i)
      EXPECT_NEAR(slopes_by[i], -std::floor(at[i] / by[i]), 64) << at[i] << " % " << by[i];
    for (size_t i = 0; i + 1 < at.size(); ++i)
      EXPECT_EQ(slopes_by[i], -std::floor(at[i] / by[i])) << at[i] << " % " << by[i];
    EXPECT_EQ(whole.gradient({a})[0].tolist<double>(), std::vector<double>(11, 0));
    EXPECT_EQ(whole.gradient({b})[0].tolist<double>(), std::vector<double>(11, 0));
  }
  check_gradient([](const Tensor& t) { return t.mod(Tensor(0.7)) + Tensor(2.3).mod(t); },
                 doubles({4, 3}, 20));
}

// The divisor times the quotient may be beyond the largest number, where neither of them is.
TEST(gradients, spec_D3_of_remainders_of_the_largest_numbers) {
  in_both_modes([] {
    auto slopes = [](DType d, const std::vector<double>& at, const std::vector<double>& by) {
      const auto n = static_cast<int64_t>(at.size());
      const Tensor a = Tensor::from(at, {n}).cast(d), b = Tensor::from(by, {n}).cast(d);
      return a.mod(b).sum().gradient({b})[0].tolist<double>();
    };
    for (const auto& [d, largest, least] :
         {std::tuple{DType::Float64, 1.7e308, 4.9406564584124654e-324},
          {DType::Float32, 3.4e38, 1.401298464324817e-45},
          {DType::Float16, 65504.0, 5.9604644775390625e-08},
          {DType::BFloat16, 3.3e38, 9.183549615799121e-41},
          {DType::Float8E4M3, 448.0, 0.001953125}}) {
      SCOPED_TRACE(dtype_name(d));
      EXPECT_EQ(slopes(d, {-largest, largest, -largest, largest, largest, -largest, largest},
                       {largest * 0.875, -largest * 0.875, largest * 0.625, largest * 0.625,
                        largest, largest, -largest}),
                (std::vector<double>{2, 2, 2, -1, -1, 1, 1}));
      EXPECT_EQ(slopes(d, {7 * least, -7 * least, 6 * least, -least, 0, least},
                       {2 * least, 2 * least, 3 * least, 3 * least, least, largest}),
                (std::vector<double>{-3, 4, -2, 1, 0, 0}));
    }
    std::mt19937_64 random(test_seed());
    std::vector<double> at, by, right;
    for (int i = 0; i < 1000; ++i)
      for (auto* out : {&at, &by})
        out->push_back(std::ldexp(static_cast<double>(0x100000 + random() % 0xf00000),
                                  100 + static_cast<int>(random() % 5)) *
                       (random() % 2 == 0 ? 1 : -1));
    for (size_t i = 0; i < at.size(); ++i)
      right.push_back(-static_cast<double>(std::floor(static_cast<long double>(at[i]) / by[i])));
    EXPECT_EQ(slopes(DType::Float32, at, by), right) << "seed " << test_seed();
  });
}

// relu reads its condition from its result; what only looks like it does not.
TEST(gradients, spec_amend_40_what_looks_like_relu) {
  auto slope = [](double at, const std::function<UOp(const UOp&)>& f) {
    const UOp x = numbers({at});
    return list(derivative(f(x), x))[0];
  };
  auto number = [](double v) { return constant(DType::Float64, v); };
  auto relu = [&](double corner) {
    return [=](const UOp& x) {
      return where(lt(number(corner), x), x, koine::maximum(detach(x), number(corner)));
    };
  };
  EXPECT_EQ(slope(0, relu(0)), 0);
  EXPECT_EQ(slope(1e-300, relu(0)), 1);
  EXPECT_EQ(slope(-1, relu(0)), 0);
  EXPECT_EQ(slope(2, relu(2)), 0);
  EXPECT_EQ(slope(2.5, relu(2)), 1);
  const UOp zero = number(0), other = numbers({5}), below = numbers({-1});
  EXPECT_EQ(slope(-1,
                  [&](const UOp& x) {
                    return where(lt(zero, x), x, koine::maximum(detach(other), zero));
                  }),
            0)
      << "the maximum of another value";
  EXPECT_EQ(slope(-1,
                  [&](const UOp& x) {
                    return where(lt(zero, x), x, koine::maximum(detach(x), number(2)));
                  }),
            0)
      << "another corner";
  EXPECT_EQ(slope(5,
                  [&](const UOp& x) {
                    return where(lt(zero, below), x, koine::maximum(detach(x), zero));
                  }),
            0)
      << "the condition of another value";
  EXPECT_EQ(
      slope(-3,
            [&](const UOp& x) { return where(lt(number(-2), x), x, mul(detach(x), number(-2))); }),
      0)
      << "a product";
  EXPECT_EQ(
      slope(-1,
            [&](const UOp& x) { return where(ne(zero, x), x, koine::maximum(detach(x), zero)); }),
      1)
      << "another comparison";
  EXPECT_EQ(
      slope(-1, [&](const UOp& x) { return where(lt(zero, x), x, koine::maximum(x, number(-4))); }),
      1)
      << "no detach";
}

TEST(gradients, a_copy_to_another_device_comes_back) {
  const UOp x = Tensor::from_bytes(nullptr, {3}, DType::Float32, "CPU").uop();
  const UOp there = copy_to(x, Device("CPU:1"));
  const UOp back = derivative(mul(there, there), x);
  EXPECT_EQ(back.device().name(), "CPU");
  const UOp gated =
      load(x, expand(reshape(constant(DType::Float32, 0), shape_of({1})), shape_of({3})),
           constant_bool(true));
  expect_error([&] { (void)derivative(gated, x); }, {"gradient", "Load"});
}

TEST(gradients, spec_B12_of_a_call_is_a_call_of_the_same_kind) {
  const Tensor x = Tensor::from<float>({1, 2, 3});
  for (const Resolve how : {Resolve::Substitute, Resolve::Precompile}) {
    const auto f = koine::function([](const Tensor& t) { return t * t * t; }, how);
    const UOp g = f(x).sum().gradient({x})[0].uop();
    size_t calls = 0;
    for (const UOp& u : toposort(g))
      if (u.is(Op::Function)) {
        ++calls;
        EXPECT_EQ(resolve_of(u), how);
      }
    EXPECT_GE(calls, 1u);
    EXPECT_EQ(list(g), (std::vector<double>{3, 12, 27}));
    // Results that nobody differentiates, arguments that a result does not read.
    const auto pair = koine::function(
        [](const Tensor& a, const Tensor& b) { return std::make_pair(a * a, a * b); }, how);
    const Tensor y = Tensor::from<float>({4, 5, 6});
    const auto [square, product] = pair(x, y);
    EXPECT_EQ(slopes(square, x), (std::vector<double>{2, 4, 6}));
    EXPECT_EQ(slopes(square, y), (std::vector<double>{0, 0, 0}));
    EXPECT_EQ(slopes(square + product, x), (std::vector<double>{6, 9, 12}));
    EXPECT_EQ(slopes(product, y), (std::vector<double>{1, 2, 3}));
  }
}

// A tensor made like another is one of its own, as by full(): no other has its gradient.
TEST(gradients, targets_made_like_another_tensor) {
  const Tensor x = Tensor::from<double>({1, 2, 3});
  const Tensor a = x.zeros_like(), b = x.zeros_like(), c = x.ones_like(), d = x.full_like(2);
  const std::vector<Tensor> g =
      ((x * a) + b.exp() + c * c * x + d * d).sum().gradient({a, b, c, d, x});
  EXPECT_EQ(g[0].tolist<double>(), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(g[1].tolist<double>(), (std::vector<double>{1, 1, 1})) << "of exp at 0";
  EXPECT_EQ(g[2].tolist<double>(), (std::vector<double>{2, 4, 6}));
  EXPECT_EQ(g[3].tolist<double>(), (std::vector<double>{4, 4, 4}));
  EXPECT_EQ(g[4].tolist<double>(), (std::vector<double>{1, 1, 1})) << "a is 0, c is 1";
  // Integers have no gradient and need no node of their own.
  const Tensor i = Tensor::from<int32_t>({1, 2});
  EXPECT_TRUE(i.zeros_like().uop() == i.zeros_like().uop());
  const Tensor number(3.0);
  expect_error([&] { (void)(x * number).sum().gradient({number}); },
               {"target 0", "the number 3", "shares"});
}

// What is kept so that a gradient can be asked is seen, and ends with realize().
TEST(gradients, what_a_history_holds_is_visible) {
  const int64_t row = 256 * 4;
  const Tensor x = Tensor::arange(256).cast(DType::Float32).realize();
  EXPECT_EQ(x.history_bytes(), 0) << "data holds itself alone";
  EXPECT_EQ((x * 2).history_bytes(), row) << "a lazy value what it is computed from";
  const Tensor h = x * 2;
  const auto looked = h.tolist<float>();
  EXPECT_EQ(h.history_bytes(), row);
  const Tensor y = h * h;
  (void)y.tolist<float>();
  EXPECT_EQ(y.history_bytes(), 2 * row) << "x and h";
  EXPECT_EQ(y.reshape({16, 16}).history_bytes(), 2 * row) << "a view what its base holds";
  y.realize();
  EXPECT_EQ(y.history_bytes(), 0);
  EXPECT_EQ(h.history_bytes(), row);
  // What depends on a leaf keeps its history; a long chain of data does not.
  Tensor w = Tensor::ones({256}).requires_grad();
  const Tensor kept = w * x;
  kept.realize();
  EXPECT_EQ(kept.history_bytes(), 2 * row);
  EXPECT_EQ(w.history_bytes(), 0);
  Tensor state = x * 1;
  for (int k = 0; k < 10; ++k) state = (state * 0.5).realize();
  EXPECT_EQ(state.history_bytes(), 0);
  EXPECT_EQ(looked.size(), 256u);
}

// A value between that was looked at, or computed, is no end of the way to a target: a gradient is
// right, or refused.
TEST(gradients, looks_and_runs_between_lose_nothing) {
  const std::vector<double> numbers{1, 2, 3};
  struct Step {
    const char* name;
    std::function<void(const Tensor&)> look;
    bool is_data;  // afterwards
  };
  const std::vector<Step> steps{
      {"nothing", [](const Tensor&) {}, false},
      {"a look", [](const Tensor& t) { (void)t.tolist<double>(); }, false},
      {"a look at a view", [](const Tensor& t) { (void)t.flatten()[0].item(); }, false},
      {"print", [](const Tensor& t) { (void)t.repr(); }, false},
      {"realize", [](const Tensor& t) { t.realize(); }, true},
  };
  const std::vector<std::pair<const char*, std::function<Tensor(const Tensor&)>>> squares{
      {"plain", [](const Tensor& t) { return t * t; }},
      {"a function", koine::function([](const Tensor& t) { return t * t; })},
      {"a precompiled one",
       koine::function([](const Tensor& t) { return t * t; }, Resolve::Precompile)},
      {"a checkpoint", checkpoint([](const Tensor& t) { return t * t; })},
      {"a named value", [](const Tensor& t) { return save_as("square", t * t); }},
  };
  for (const bool leaf : {false, true})
    for (const auto& [name, square] : squares)
      for (const Step& first : steps)
        for (const Step& second : steps) {
          SCOPED_TRACE(fmt::format("{}, {}, {}, {}", leaf, name, first.name, second.name));
          Tensor x = Tensor::from(numbers, {3});
          if (leaf) x.requires_grad();
          const Tensor h = square(x);
          first.look(h);
          const Tensor y = square(h).sum();  // of fourth powers
          second.look(y);
          if (!leaf && (first.is_data || second.is_data)) {
            expect_error([&] { (void)y.gradient({x}); }, {"target 0", "let go"});
            continue;
          }
          const Tensor slope = y.gradient({x})[0];
          second.look(slope);
          EXPECT_EQ(values(slope), (std::vector<double>{4, 32, 108}));
          if (!leaf && second.is_data) continue;
          EXPECT_EQ(values(slope.sum().gradient({x})[0]), (std::vector<double>{12, 48, 108}));
          if (!leaf) continue;
          y.backward();
          EXPECT_EQ(values(x.grad()), (std::vector<double>{4, 32, 108}));
        }
}

TEST(gradients, of_what_has_none_are_refused) {
  const UOp i = leaf({2}, DType::Int32), x = leaf({2});
  const std::vector<UOp> outputs{i}, seeds{i}, targets{x};
  expect_error([&] { (void)gradient(outputs, seeds, targets); }, {"gradient", "int32"});
  // A plain Store into the memory that an After holds has a rule; one under a gate has none.
  const UOp gate = expand(reshape(constant_bool(true), shape_of({1})), shape_of({2}));
  expect_error([&] { (void)derivative(after(x, {store(x, mul(x, x), gate)}), x); },
               {"gradient", "After", "plain Stores"});
}

// A step of training has thousands of nodes, each of which costs time in every walk.
TEST(gradient, no_value_is_given_the_shape_that_it_has) {
  const Tensor x = Tensor::randn({8, 16}).realize();
  std::vector<Tensor> weights;
  for (const Shape& shape : {Shape{16}, {16, 16}, {16, 16}, {16, 16}, {16}}) {
    Tensor w = Tensor::randn(shape).realize();
    weights.push_back(w.requires_grad());
  }
  const Tensor y = x.layernorm() * weights[0], q = y.matmul(weights[1]), k = y.matmul(weights[2]);
  const Tensor loss = (q.scaled_dot_product_attention(k, y).matmul(weights[3]) + weights[4])
                          .gelu()
                          .log_softmax(-1)
                          .square()
                          .mean();
  std::vector<UOp> values{loss.uop()};
  for (const Tensor& slope : loss.gradient(weights)) values.push_back(slope.uop());
  size_t reshaped = 0;
  for (const UOp& u : toposort(sink(values))) {
    if (!u.is(Op::Reshape)) continue;
    ++reshaped;
    EXPECT_FALSE(u.shape() == u.src(0).shape()) << op_name(u.src(0).op());
  }
  EXPECT_GT(reshaped, 20U);
}

}  // namespace koine::test

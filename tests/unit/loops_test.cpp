// Loops and branches (amendment C43): what they give is compared with the same steps written out.
#include "koine/tensor/loops.hpp"

#include <array>
#include <cmath>
#include <set>

#include "check.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/text.hpp"
#include "remote_device.hpp"

namespace koine::test {
namespace {

using Pair = std::pair<Tensor, Tensor>;

// A step of a recurrent net, and the same steps one behind the other.
struct Cell {
  Tensor w, u;
  template <class V>
  void tensors(V&& visit) {
    visit(w);
    visit(u);
  }
  Pair operator()(const Tensor& h, const Tensor& x) const {
    const Tensor next = (h.matmul(w) + x.matmul(u)).tanh();
    return {next, next * 2 - x.sum()};
  }
};
struct Carry {
  Tensor sum;
  std::vector<Tensor> counts;
  template <class V>
  void tensors(V&& visit) {
    visit(sum);
    visit(counts);
  }
};
Cell random_cell(int64_t n, int64_t m, uint64_t salt = 0, DType dtype = DType::Float64) {
  return {(small({n, n}, salt + 1) * 0.3).cast(dtype).realize(),
          (small({m, n}, salt + 2) * 0.3).cast(dtype).realize()};
}
Tensor random64(const Shape& shape, uint64_t salt) {
  return small(shape, salt).cast(DType::Float64).realize();
}

template <class Step>
Pair written_out(const Step& step, Tensor carry, const Tensor& xs, bool reversed = false) {
  const int64_t n = xs.size(0);
  std::vector<Tensor> all(static_cast<size_t>(n));
  for (int64_t k = 0; k < n; ++k) {
    const int64_t at = reversed ? n - 1 - k : k;
    auto [next, y] = step(carry, xs[at]);
    carry = next;
    all[static_cast<size_t>(at)] = y;
  }
  return {carry, Tensor::stack(all)};
}

void expect_near(const Tensor& got, const Tensor& expected, double tolerance = 1e-12) {
  ASSERT_EQ(got.shape(), expected.shape());
  const auto a = got.cast(DType::Float64).tolist<double>(),
             b = expected.cast(DType::Float64).tolist<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(b[i])) {
      EXPECT_TRUE(std::isnan(a[i])) << i;
      continue;
    }
    EXPECT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << "element " << i;
  }
}
void expect_equal(const Tensor& got, const Tensor& expected) { expect_near(got, expected, 0); }

}  // namespace

TEST(loops, spec_amend_43_a_scan_gives_what_its_steps_give) {
  for (const int64_t n : {1, 2, 3, 8})
    for (const bool reversed : {false, true}) {
      SCOPED_TRACE(fmt::format("{} steps{}", n, reversed ? ", reversed" : ""));
      const Cell cell = random_cell(4, 3);
      const Tensor xs = random64({n, 3}, 5), h = random64({4}, 6);
      const auto [last, all] = scan(cell, h, xs, {.reversed = reversed});
      const auto [last2, all2] = written_out(cell, h, xs, reversed);
      expect_near(last, last2);
      expect_near(all, all2);
      expect_same_everywhere(last);
      expect_same_everywhere(all);
    }
}

TEST(loops, a_scan_takes_and_gives_any_structure) {
  const Tensor xs = Tensor::arange(6).cast(DType::Float32).reshape({3, 2}),
               ys = Tensor::arange(3).cast(DType::Float32);
  const auto [last, all] = scan(
      [](const Carry& c, const std::pair<Tensor, Tensor>& row) {
        const Carry next{c.sum + row.first.sum() * row.second, {c.counts[0] + 1, c.counts[0]}};
        return std::pair(next, std::tuple(next.sum, row.first > 2));
      },
      Carry{Tensor(0.f), {Tensor(0), Tensor(-1)}}, std::pair(xs, ys));
  EXPECT_EQ(last.sum.item(), 0 * 1 + 1 * 5 + 2 * 9);
  EXPECT_EQ(last.counts[0].item<int>(), 3);
  EXPECT_EQ(last.counts[1].item<int>(), 2);
  EXPECT_EQ(std::get<0>(all).tolist<float>(), (std::vector<float>{0, 5, 23}));
  EXPECT_EQ(std::get<1>(all).tolist<bool>(),
            (std::vector<bool>{false, false, false, true, true, true}));
}

TEST(loops, a_scan_has_no_carry_no_rows_or_no_results) {
  const Tensor xs = Tensor::arange(5).cast(DType::Float32);
  // Nothing is carried: a map.
  const auto squares =
      scan([](std::tuple<> none, const Tensor& x) { return std::pair(none, x * x); },
           std::tuple<>(), xs);
  EXPECT_EQ(squares.second.tolist<float>(), (std::vector<float>{0, 1, 4, 9, 16}));
  // Nothing is collected.
  const auto last =
      scan([](const Tensor& s, const Tensor& x) { return std::pair(s + x, std::tuple<>()); },
           Tensor(0.f), xs);
  EXPECT_EQ(last.first.item(), 10);
  // No rows.
  const auto powers = scan([](const Tensor& p, std::tuple<>) { return std::pair(p * 2, p); },
                           Tensor(1), std::tuple<>(), {.length = 5});
  EXPECT_EQ(powers.first.item<int>(), 32);
  EXPECT_EQ(powers.second.tolist<int>(), (std::vector<int>{1, 2, 4, 8, 16}));
}

TEST(loops, a_scan_of_no_steps_gives_its_first_carry_and_nothing) {
  const auto [last, all] = scan(random_cell(4, 3), random64({4}, 1), random64({0, 3}, 2));
  expect_equal(last, random64({4}, 1));
  EXPECT_EQ(all.shape(), (Shape{0, 4}));
  EXPECT_EQ(fori_loop(
                3, 3, [](const Tensor&, const Tensor& x) { return x + 1; }, Tensor(7))
                .item<int>(),
            7);
  EXPECT_EQ(fori_loop(
                3, 1, [](const Tensor&, const Tensor& x) { return x + 1; }, Tensor(7))
                .item<int>(),
            7);
}

TEST(loops, odd_numbers_stay_odd) {
  const float nan = NAN;
  const Tensor xs = Tensor::from<float>({-0.f, nan, inf, -inf, 0.f, 1.f}).reshape({3, 2});
  const auto [last, all] = scan([](const Tensor& c, const Tensor& x) { return std::pair(x, c); },
                                Tensor::from<float>({-0.f, nan}), xs);
  expect_same_everywhere(last);
  expect_same_everywhere(all);
  EXPECT_TRUE(std::signbit(all.tolist<float>()[0]));
  // Nothing is 0-sized in a way that matters: rows of no elements.
  const auto empty = scan([](const Tensor& c, const Tensor& x) { return std::pair(c + 1, x); },
                          Tensor(0), Tensor::zeros({4, 0, 2}));
  EXPECT_EQ(empty.first.item<int>(), 4);
  EXPECT_EQ(empty.second.shape(), (Shape{4, 0, 2}));
}

TEST(loops, every_dtype_is_carried) {
  for (const DType d : stored_dtypes()) {
    const UOp rows = leaf({3, 2}, d, 17), first = leaf({2}, d, 18);
    const auto [last, all] = scan([](const Tensor& c, const Tensor& x) { return std::pair(x, c); },
                                  Tensor(first), Tensor(rows));
    expect_same_everywhere(last);
    expect_same_everywhere(all);
  }
}

TEST(loops, spec_amend_43_a_step_is_compiled_once_however_often_it_runs) {
  const Cell cell = random_cell(4, 3, 0, DType::Float32);
  std::vector<int64_t> compiled, walked;
  for (const int64_t n : {300, 10000}) {
    const Tensor xs = Tensor::full({n, 3}, 0.01).realize();
    clear_compile_cache();
    reset_counters();
    const auto before = walked_nodes();
    const auto [last, all] = scan(cell, Tensor::zeros({4}), xs);
    Tensor::realize({last, all});
    compiled.push_back(counters().compiled);
    walked.push_back(walked_nodes() - before);
    EXPECT_GE(counters().kernels, n);
  }
  EXPECT_EQ(compiled[0], compiled[1]);
  // Of 33 times the steps; kernels that other threads compile are not in the count.
  EXPECT_LE(walked[1], walked[0] * 3 / 2);
}

TEST(loops, carries_alternate_between_their_results_and_as_much_memory_beside) {
  const Tensor xs = Tensor::full({6}, 2.f).realize();
  const Pair first(Tensor::zeros({3}).realize(), Tensor::ones({40}).realize());
  const auto step = [](const Pair& c, const Tensor& x) {
    return std::pair(Pair(c.first + x, c.second * x), std::tuple<>());
  };
  const auto [a, b] = scan(step, first, xs).first;
  reset_counters();
  Tensor::realize({a, b});
  // 12 and 160 bytes, each from a multiple of 64 on.
  EXPECT_EQ(counters().temporary_bytes, 64 + 192);
  EXPECT_EQ(a.tolist<float>(), std::vector<float>(3, 12));
  EXPECT_EQ(b.tolist<float>(), std::vector<float>(40, 64));
}

TEST(loops, while_loop_runs_as_long_as_its_condition_holds) {
  const auto collatz = [](int first) {
    const auto [n, steps] = while_loop(
        [](const Pair& s) { return s.first != 1; },
        [](const Pair& s) {
          const Tensor odd = s.first.mod(2) != 0;
          return Pair(Tensor::where(odd, s.first * 3 + 1, s.first.idiv(2)), s.second + 1);
        },
        Pair(Tensor(first), Tensor(0)));
    EXPECT_EQ(n.item<int>(), 1);
    return steps.item<int>();
  };
  EXPECT_EQ(collatz(1), 0);
  EXPECT_EQ(collatz(2), 1);
  EXPECT_EQ(collatz(27), 111);
  const Tensor root =
      while_loop([](const Tensor& x) { return (x * x - 2).abs() > 1e-6f; },
                 [](const Tensor& x) { return x - (x * x - 2) / (2 * x); }, Tensor(1.f));
  expect_near(root, Tensor(std::sqrt(2.f)), 1e-6);
  expect_same_everywhere(while_loop([](const Tensor& x) { return x.sum() < 100; },
                                    [](const Tensor& x) { return x * 2 + 1; }, Tensor::arange(3)));
}

TEST(loops, while_loops_with_one_condition_run_once_and_others_each_for_itself) {
  const Tensor x = Tensor::from<float>({2, 3}).realize(), v = Tensor::ones({2}).realize();
  const auto below = [](float most) {
    return [=](const Tensor& first) {
      return while_loop([=](const Tensor& y) { return y.sum() < most; },
                        [](const Tensor& y) { return y * y + 1; }, first);
    };
  };
  const Tensor a = below(10)(x), b = below(1000)(x);
  Tensor::realize({a, b});
  EXPECT_EQ(a.tolist<float>(), (std::vector<float>{5, 10}));
  EXPECT_EQ(b.tolist<float>(), (std::vector<float>{677, 10202}));

  const auto kernels_of_both = [&](float most, bool apart) {
    const auto [value, slope] = jvp(below(most), x, v);
    const Tensor alone = below(most)(x);
    reset_counters();
    Tensor::realize({apart ? alone : value, slope});
    return counters().kernels;
  };
  EXPECT_EQ(kernels_of_both(100, true), kernels_of_both(101, false));
}

TEST(loops, scans_of_one_carry_that_collect_other_values_run_once) {
  const Tensor xs = random64({5, 3}, 1), first = random64({3}, 2);
  const auto next = [](const Tensor& c, const Tensor& x) { return (c * x).sin() + x; };
  const auto kernels_of = [](const std::vector<Tensor>& values) {
    reset_counters();
    Tensor::realize(values);
    return counters().kernels;
  };
  const auto both =
      scan([&](const Tensor& c,
               const Tensor& x) { return std::pair(next(c, x), std::pair(c * 2, c.exp())); },
           first, xs);
  const int64_t of_one = kernels_of({both.second.first, both.second.second});
  const auto twice = scan(
      [&](const Tensor& c, const Tensor& x) { return std::pair(next(c, x), c * 3); }, first, xs);
  const auto power = scan(
      [&](const Tensor& c, const Tensor& x) { return std::pair(next(c, x), c.exp2()); }, first, xs);
  EXPECT_EQ(kernels_of({twice.second, power.second}), of_one);
  expect_near(twice.second, both.second.first * 1.5);
}

TEST(loops, fori_loop_counts) {
  const auto f = [](const Tensor& i, const Tensor& x) { return x * 3 + i; };
  EXPECT_EQ(fori_loop(-2, 3, f, Tensor(1)).item<int>(),
            ((((1 * 3 - 2) * 3 - 1) * 3 + 0) * 3 + 1) * 3 + 2);
  const Tensor far = fori_loop(
      int64_t{1} << 40, (int64_t{1} << 40) + 2,
      [](const Tensor& i, const Tensor& x) { return x + i; }, Tensor(int64_t{0}));
  EXPECT_EQ(far.item<int64_t>(), (int64_t{1} << 41) + 1);
}

TEST(loops, fori_loop_counts_from_and_to_what_is_computed) {
  const auto f = [](const Tensor& i, const Tensor& x) { return x * 3 + i; };
  const Tensor low = Tensor(-2).clone(), high = Tensor(3).clone();
  const Tensor wanted = fori_loop(-2, 3, f, Tensor(1));
  expect_equal(fori_loop(low, high, f, Tensor(1)), wanted);
  expect_equal(fori_loop(-2, high, f, Tensor(1)), wanted);
  expect_equal(fori_loop(low, 3, f, Tensor(1)), wanted);
  expect_equal(fori_loop(high, low, f, Tensor(1)), Tensor(1));
  const auto power = [](const Tensor& n) {
    return fori_loop(0, n, [](const Tensor&, const Tensor& x) { return x * 2; }, Tensor(1));
  };
  EXPECT_EQ(vmap(power)(Tensor::from<int>({0, 3, 1})).tolist<int>(), (std::vector<int>{1, 8, 2}));
  expect_same_everywhere(power(Tensor(3).clone()));
  expect_error([&] { power(Tensor(1.5f)); }, {"fori_loop", "to an integer", "float32"});
  expect_error([&] { power(Tensor::arange(2)); }, {"fori_loop", "to an integer", "(2,)"});
  expect_error([&] { fori_loop(Tensor(int64_t{0}), Tensor(uint64_t{3}), f, Tensor(1)); },
               {"fori_loop", "int64", "uint64", "cast()"});
}

TEST(loops, one_branch_runs) {
  const Tensor a = random64({40, 40}, 1), b = random64({40, 40}, 2);
  for (const bool holds : {false, true}) {
    const Tensor condition = Tensor(holds) != Tensor::zeros({}, DType::Bool);
    reset_counters();
    const Tensor c = cond(
        condition, [](const Tensor& x, const Tensor& y) { return x.matmul(y).sum(); },
        [](const Tensor& x, const Tensor&) { return x.sum(); }, a, b);
    expect_near(c, holds ? a.matmul(b).sum() : a.sum());
    reset_counters();
    cond(
        condition, [](const Tensor& x, const Tensor& y) { return x.matmul(y).sum() + 1; },
        [](const Tensor& x, const Tensor&) { return x.sum() + 1; }, a, b)
        .realize();
    const double product = 2 * 40 * 40 * 40;
    EXPECT_EQ(counters().operations >= product, holds);
    EXPECT_EQ(counters().operations <= product / 10, !holds);
  }
  using F = std::function<Tensor(const Tensor&)>;
  const std::vector<F> branches{[](const Tensor& x) { return x + 1; },
                                [](const Tensor& x) { return x * 2; },
                                [](const Tensor& x) { return -x; }};
  const std::vector<std::pair<int, int>> expected{{-5, 11}, {0, 11}, {1, 20}, {2, -10}, {7, -10}};
  for (const auto& [which, value] : expected) {
    const Tensor out =
        switch_case(Tensor(which) + Tensor::zeros({}, DType::Int32), branches, Tensor(10));
    EXPECT_EQ(out.item<int>(), value) << which;
    expect_same_everywhere(out);
  }
}

TEST(loops, branches_of_one_number_that_agree_in_some_are_all_kept) {
  const Tensor x = Tensor::from<float>({2, 3}).realize();
  const auto plus = [](const Tensor& y) { return y + 1; };
  const auto twice = [](const Tensor& y) { return y * 2; };
  const auto thrice = [](const Tensor& y) { return y * 3; };
  for (const bool holds : {false, true}) {
    const Tensor which = Tensor(holds) != Tensor::zeros({}, DType::Bool);
    const Tensor a = cond(which, plus, twice, x), b = cond(which, plus, thrice, x),
                 c = cond(which, thrice, twice, x);
    Tensor::realize({a, b, c});
    EXPECT_EQ(a.tolist<float>(), (holds ? plus(x) : twice(x)).tolist<float>());
    EXPECT_EQ(b.tolist<float>(), (holds ? plus(x) : thrice(x)).tolist<float>());
    EXPECT_EQ(c.tolist<float>(), (holds ? thrice(x) : twice(x)).tolist<float>());
  }
}

// --- derivatives
// -----------------------------------------------------------------------------------

TEST(loops, spec_amend_43_a_scan_has_the_gradient_of_its_steps) {
  for (const int64_t n : {1, 2, 5})
    for (const bool reversed : {false, true}) {
      SCOPED_TRACE(fmt::format("{} steps{}", n, reversed ? ", reversed" : ""));
      const Cell cell = random_cell(4, 3);
      const Tensor xs = random64({n, 3}, 5), h = random64({4}, 6);
      const auto loss = [&](bool loop) {
        return [=](const Cell& c, const Tensor& first, const Tensor& rows) {
          const auto [last, all] = loop ? scan(c, first, rows, {.reversed = reversed})
                                        : written_out(c, first, rows, reversed);
          return last.square().sum() + (all * all.sin()).sum();
        };
      };
      const auto [a, ga] = value_and_grad<0, 1, 2>(loss(true))(cell, h, xs);
      const auto [b, gb] = value_and_grad<0, 1, 2>(loss(false))(cell, h, xs);
      expect_near(a, b);
      expect_near(std::get<0>(ga).w, std::get<0>(gb).w);
      expect_near(std::get<0>(ga).u, std::get<0>(gb).u);
      expect_near(std::get<1>(ga), std::get<1>(gb));
      expect_near(std::get<2>(ga), std::get<2>(gb));
      expect_same_everywhere(std::get<0>(ga).w);
    }
}

TEST(loops, backward_goes_through_what_a_step_captures) {
  const Cell plain = random_cell(3, 2);
  const Tensor xs = random64({4, 2}, 1), h = random64({3}, 2);
  std::array<Tensor, 2> grads;
  for (const bool loop : {false, true}) {
    const Cell cell{plain.w.clone().requires_grad(), plain.u.clone().requires_grad()};
    const auto step = [&](const Tensor& c, const Tensor& x) { return cell(c, x); };
    const auto [last, all] = loop ? scan(step, h, xs) : written_out(step, h, xs);
    (last.sum() + all.square().mean()).backward();
    grads[loop ? 1 : 0] = Tensor::cat({cell.w.grad().reshape({-1}), cell.u.grad().reshape({-1})});
  }
  expect_near(grads[1], grads[0]);
}

TEST(loops, a_loop_runs_once_for_its_value_and_its_gradient) {
  const Cell cell = random_cell(32, 32, 0, DType::Float32);
  const Tensor xs = random64({16, 32}, 1).cast(DType::Float32).realize(), h = Tensor::zeros({32});
  const auto loss = [&](const Cell& c) { return scan(c, h, xs).first.sum(); };
  reset_counters();
  const auto [value, gradient] = value_and_grad(loss)(cell);
  Tensor::realize({value, gradient.w, gradient.u});
  // Two products forward; backward one for each operand but the rows' own, whose gradient nobody
  // asks for. The products of a step are kept, not computed again.
  const double products = 16 * (2 + 2 + 1) * 2.0 * 32 * 32;
  EXPECT_LE(counters().operations, products * 1.35);
  EXPECT_GE(counters().operations, products);
}

TEST(loops, spec_amend_43_derivatives_of_all_orders_and_directions) {
  const Cell cell = random_cell(3, 2);
  const Tensor xs = random64({4, 2}, 1), h = random64({3}, 2), v = random64({3}, 3);
  const auto f = [&](bool loop) {
    return [=](const Tensor& first) {
      return (loop ? scan(cell, first, xs) : written_out(cell, first, xs)).second.square().sum();
    };
  };
  expect_near(grad(f(true))(h), grad(f(false))(h));
  expect_near(jvp(f(true), h, v).second, jvp(f(false), h, v).second);
  expect_near(hvp(f(true), h, v), hvp(f(false), h, v));
  expect_near(hessian(f(true))(h), hessian(f(false))(h));
  const auto along = [&](bool loop) {
    return [=](const Tensor& x) { return jvp(f(loop), x, v).second; };
  };
  expect_near(grad(along(true))(h), grad(along(false))(h));
  const auto twice = [&](bool loop) {
    return [=](const Tensor& x) { return (grad(f(loop))(x) * v).sum(); };
  };
  expect_near(grad(twice(true))(h), grad(twice(false))(h));
}

TEST(loops, spec_amend_43_branches_and_while_have_derivatives) {
  const Tensor x = random64({3}, 1), v = random64({3}, 2);
  const auto f = [](const Tensor& which) {
    return [=](const Tensor& at) {
      return cond(
          which, [](const Tensor& y) { return y.sin().sum(); },
          [](const Tensor& y) { return (y * y * y).sum(); }, at);
    };
  };
  for (const bool holds : {false, true}) {
    const auto g = f(Tensor(holds) != Tensor::zeros({}, DType::Bool));
    expect_near(grad(g)(x), holds ? x.cos() : 3 * x * x);
    expect_near(jvp(g, x, v).second, ((holds ? x.cos() : 3 * x * x) * v).sum());
    expect_near(hvp(g, x, v), (holds ? -x.sin() : 6 * x) * v);
  }
  // Each branch reads one of two arguments, and captures another value: the others have slopes of
  // 0.
  const Tensor w = random64({3}, 3), none = Tensor::zeros({3}, DType::Float64);
  for (const bool holds : {false, true}) {
    const Tensor which = Tensor(holds) != Tensor::zeros({}, DType::Bool);
    const Tensor sum = cond(
        which, [](const Tensor& a, const Tensor&) { return a.sin().sum(); },
        [&](const Tensor&, const Tensor& b) { return (b * b * v).sum(); }, x, w);
    const std::vector<Tensor> slopes = sum.gradient({x, w, v});
    expect_near(slopes[0], holds ? x.cos() : none);
    expect_near(slopes[1], holds ? none : 2 * w * v);
    expect_near(slopes[2], holds ? none : w * w);
  }
  // The branch that is not taken has no part in the gradient, whatever it would be.
  const Tensor zero = Tensor::zeros({3}, DType::Float64);
  const auto safe = [](const Tensor& y) {
    return cond(
        y.sum() > 0, [](const Tensor& z) { return z.log().sum(); },
        [](const Tensor& z) { return z.sum(); }, y);
  };
  expect_equal(grad(safe)(zero), Tensor::ones({3}, DType::Float64));

  const auto doubled = [](const Tensor& y) {
    return while_loop([](const Tensor& z) { return z.sum() < 50; },
                      [](const Tensor& z) { return z * z + 1; }, y);
  };
  const Tensor two = Tensor::full({1}, 2.0, DType::Float64).realize();
  const auto [value, slope] = jvp(doubled, two, Tensor::ones({1}, DType::Float64));
  expect_equal(value, Tensor::full({1}, 677.0, DType::Float64));
  expect_equal(slope, Tensor::full({1}, 2 * 26 * 2 * 5 * 2 * 2.0, DType::Float64));
  expect_error([&] { grad([&](const Tensor& y) { return doubled(y).sum(); })(two); },
               {"gradient", "while_loop has no gradient", "scan() or fori_loop()", "jvp()"});
}

TEST(loops, every_result_of_a_branch_has_its_part_in_the_gradient) {
  const Tensor x = random64({3}, 1), v = random64({3}, 2);
  using Three = std::tuple<Tensor, Tensor, Tensor>;
  for (const bool holds : {false, true}) {
    const Tensor which = Tensor(holds) != Tensor::zeros({}, DType::Bool);
    const auto f = [&](const Tensor& at) {
      const auto [a, number, b] = cond(
          which, [](const Tensor& y) { return Three(y.sin().sum(), (y > 0).sum(), y * y); },
          [](const Tensor& y) { return Three(y.sum(), Tensor(7), y.exp()); }, at);
      return a + 3 * (b * v).sum() + number.cast(DType::Float64);
    };
    const Tensor expected = holds ? x.cos() + 6 * x * v : 1 + 3 * x.exp() * v;
    expect_near(grad(f)(x), expected);
    expect_near(jvp(f, x, v).second, (expected * v).sum());
  }
}

// --- many examples
// ---------------------------------------------------------------------------------

namespace {

Tensor each(const std::function<Tensor(int64_t)>& f, int64_t n) {
  std::vector<Tensor> all;
  for (int64_t i = 0; i < n; ++i) all.push_back(f(i));
  return Tensor::stack(all);
}

}  // namespace

TEST(loops, spec_amend_43_vmap_of_scan) {
  const Cell cell = random_cell(3, 2);
  const Tensor xs = random64({4, 5, 2}, 1), h = random64({4, 3}, 2);
  const auto last = [&](const Tensor& first, const Tensor& rows) {
    return scan(cell, first, rows).first;
  };
  const auto all = [&](const Tensor& first, const Tensor& rows) {
    return scan(cell, first, rows).second;
  };
  expect_near(vmap(last)(h, xs), each([&](int64_t i) { return last(h[i], xs[i]); }, 4));
  expect_near(vmap(all)(h, xs), each([&](int64_t i) { return all(h[i], xs[i]); }, 4));
  // The carries alone, or the rows alone, differ.
  expect_near(vmap(all, {0, std::nullopt})(h, xs[0]),
              each([&](int64_t i) { return all(h[i], xs[0]); }, 4));
  expect_near(vmap(all, {std::nullopt, 0})(h[0], xs),
              each([&](int64_t i) { return all(h[0], xs[i]); }, 4));
  // Weights of each example.
  const Tensor ws = random64({4, 3, 3}, 4);
  const auto by_weight = [&](const Tensor& w) { return scan(Cell{w, cell.u}, h[0], xs[0]).second; };
  expect_near(vmap(by_weight)(ws), each([&](int64_t i) { return by_weight(ws[i]); }, 4));
  // Gradients for each example, and gradients of all.
  const auto loss = [&](const Tensor& w, const Tensor& rows) {
    return scan(Cell{w, cell.u}, h[0], rows).second.square().sum();
  };
  expect_near(vmap(grad(loss), {std::nullopt, 0})(cell.w, xs),
              each([&](int64_t i) { return grad(loss)(cell.w, xs[i]); }, 4));
  const auto total = [&](const Tensor& w) { return vmap(loss, {std::nullopt, 0})(w, xs).sum(); };
  const auto total2 = [&](const Tensor& w) {
    return each([&](int64_t i) { return loss(w, xs[i]); }, 4).sum();
  };
  expect_near(grad(total)(cell.w), grad(total2)(cell.w));
  // Nested twice, and a scan of what is mapped.
  const Tensor hs = random64({2, 4, 3}, 6);
  expect_near(
      vmap(vmap(last, {0, 0}), {0, std::nullopt})(hs, xs),
      each([&](int64_t k) { return each([&](int64_t i) { return last(hs[k][i], xs[i]); }, 4); },
           2));
  const auto [final, rows] = scan(
      [&](const Tensor& c, const Tensor& x) {
        const Tensor next = vmap([&](const Tensor& one) { return cell(one, x).first; })(c);
        return std::pair(next, next.sum());
      },
      h, xs[0]);
  expect_near(final, each([&](int64_t i) { return last(h[i], xs[0]); }, 4));
}

TEST(loops, spec_amend_43_vmap_of_while_and_branches) {
  const auto steps = [](const Tensor& first) {
    return while_loop([](const Pair& s) { return s.first < 100; },
                      [](const Pair& s) { return Pair(s.first * 2 + 1, s.second + 1); },
                      Pair(first, Tensor(0)));
  };
  const Tensor firsts = Tensor::from<int>({200, 1, 50, 99, 3});
  const auto both = vmap([&](const Tensor& x) { return steps(x); })(firsts);
  expect_equal(both.first, each([&](int64_t i) { return steps(firsts[i]).first; }, 5));
  expect_equal(both.second, each([&](int64_t i) { return steps(firsts[i]).second; }, 5));
  // The condition is that of all examples.
  const auto shared = [](const Tensor& x) {
    return while_loop([](const Pair& s) { return s.second < 3; },
                      [](const Pair& s) { return Pair(s.first * 2, s.second + 1); },
                      Pair(x, Tensor(0)))
        .first;
  };
  expect_equal(vmap(shared)(firsts), firsts * 8);

  const Tensor xs = random64({5}, 1), which = Tensor::from<bool>({true, false, false, true, true});
  const auto pick = [](const Tensor& p, const Tensor& x) {
    return cond(
        p, [](const Tensor& y) { return y.exp(); }, [](const Tensor& y) { return y * 3; }, x);
  };
  expect_near(vmap(pick)(which, xs), each([&](int64_t i) { return pick(which[i], xs[i]); }, 5));
  expect_near(vmap(pick, {std::nullopt, 0})(which[0], xs),
              each([&](int64_t i) { return pick(which[0], xs[i]); }, 5));
  expect_near(vmap(pick, {0, std::nullopt})(which, xs[0]),
              each([&](int64_t i) { return pick(which[i], xs[0]); }, 5));
  const auto slope = [&](const Tensor& p, const Tensor& x) {
    return grad<1>([&](const Tensor& q, const Tensor& y) { return pick(q, y); })(p, x);
  };
  expect_near(vmap(slope)(which, xs), each([&](int64_t i) { return slope(which[i], xs[i]); }, 5));
  using F = std::function<Tensor(const Tensor&)>;
  const std::vector<F> branches{[](const Tensor& x) { return x + 1; },
                                [](const Tensor& x) { return x * 2; },
                                [](const Tensor& x) { return -x; }};
  const Tensor numbers = Tensor::from<int>({-1, 0, 1, 2, 9});
  expect_near(vmap([&](const Tensor& k, const Tensor& x) { return switch_case(k, branches, x); })(
                  numbers, xs),
              each([&](int64_t i) { return switch_case(numbers[i], branches, xs[i]); }, 5));
}

// --- inside of each other, and of other things
// -------------------------------------------------------

TEST(loops, loops_stand_inside_of_each_other) {
  // Row sums of products, by a loop in a loop that captures the outer carry.
  const Tensor xs = random64({3, 4}, 1);
  const auto f = [](const Tensor& rows) {
    return scan(
        [](const Tensor& outer, const Tensor& row) {
          const Tensor inner =
              scan([&](const Tensor& c,
                       const Tensor& x) { return std::pair(c * 0.5 + x * outer, c.sin()); },
                   outer + 1, row)
                  .first;
          return std::pair(outer + inner, inner);
        },
        Tensor::full({}, 0.25, DType::Float64), rows);
  };
  const auto g = [](const Tensor& rows) {
    return written_out(
        [](const Tensor& outer, const Tensor& row) {
          Tensor c = outer + 1;
          for (int64_t k = 0; k < 4; ++k) c = c * 0.5 + row[k] * outer;
          return Pair(outer + c, c);
        },
        Tensor::full({}, 0.25, DType::Float64), rows);
  };
  expect_near(f(xs).second, g(xs).second);
  expect_same_everywhere(f(xs).first);
  const auto loss = [](auto h) {
    return [h](const Tensor& r) { return h(r).first + h(r).second.square().sum(); };
  };
  expect_near(grad(loss(f))(xs), grad(loss(g))(xs));
  // Branches and conditions in a loop, and a loop in a branch.
  const Tensor last = fori_loop(
      0, 6,
      [](const Tensor& i, const Tensor& x) {
        return cond(
            i.mod(2) == 0,
            [](const Tensor& y) {
              return fori_loop(0, 3, [](const Tensor&, const Tensor& z) { return z + 1; }, y);
            },
            [](const Tensor& y) { return y * 2; }, x);
      },
      Tensor(0));
  EXPECT_EQ(last.item<int>(), ((((0 + 3) * 2) + 3) * 2 + 3) * 2);
}

TEST(loops, functions_hold_loops_and_loops_hold_functions) {
  const Cell cell = random_cell(3, 2);
  const Tensor xs = random64({4, 2}, 1), h = random64({3}, 2);
  const auto layer =
      function([](const Cell& c, const Tensor& a, const Tensor& x) { return c(a, x); });
  const auto loop = function([&](const Cell& c, const Tensor& first, const Tensor& rows) {
    return scan([&](const Tensor& a, const Tensor& x) { return layer(c, a, x); }, first, rows);
  });
  expect_near(loop(cell, h, xs).second, written_out(cell, h, xs).second);
  const auto loss = [&](const Cell& c) { return loop(c, h, xs).second.square().sum(); };
  const auto plain = [&](const Cell& c) { return written_out(c, h, xs).second.square().sum(); };
  expect_near(grad(loss)(cell).w, grad(plain)(cell).w);
  const auto precompiled =
      function([&](const Tensor& rows) { return scan(cell, h, rows).second; }, Resolve::Precompile);
  expect_near(precompiled(xs) + precompiled(xs * 2),
              written_out(cell, h, xs).second + written_out(cell, h, xs * 2).second);
}

TEST(loops, steps_write_into_tensors_of_their_own) {
  const Tensor xs = Tensor::arange(12).cast(DType::Float32).reshape({3, 4});
  const auto [last, all] = scan(
      [](const Tensor& table, const Tensor& row) {
        Tensor next = table.clone();
        next.setitem({1}, row.sum());
        next.setitem({Slice{2, 4}}, row[{Slice{0, 2}}]);
        return std::pair(next, next.sum());
      },
      Tensor::zeros({5}), xs);
  EXPECT_EQ(last.tolist<float>(), (std::vector<float>{0, 38, 8, 9, 0}));
  EXPECT_EQ(all.tolist<float>(), (std::vector<float>{6 + 1, 22 + 9, 38 + 17}));
}

// What a step captures is read by every step, and is the user's.
TEST(loops, a_copy_of_what_is_captured_is_made_anew_in_every_step) {
  const Tensor held = random64({3}, 1), xs = random64({4}, 2);
  const auto before = held.tolist<double>();
  const auto written = [](const Tensor& c, const Tensor& x, bool twice) {
    Tensor t = c.clone();
    t.setitem({1}, 5.0);  // what follows from the copy alone
    t.setitem({0}, t[0] + x);
    if (twice) t[{Slice{1, 3}}].assign(t[{Slice{1, 3}}] * x);
    return t;
  };
  for (const bool twice : {false, true}) {
    const auto step = [&](const Tensor& c) {
      return [=](const Tensor& k, const Tensor& x) {
        const Tensor t = written(c, x, twice);
        return Pair{k + t.square().sum(), t};
      };
    };
    for (const bool carried : {false, true}) {  // the same memory is the first carry, too
      const Tensor start = carried ? held[0] : xs[0];
      const auto wanted = written_out(step(held), start, xs);
      const auto [last, all] = scan(step(held), start, xs);
      expect_near(last, wanted.first);
      expect_near(all, wanted.second);
    }
    const auto once = [&](const Tensor& x) { return written(held, x, twice).sum(); };
    expect_near(cond(
                    xs[0] > xs[1] - 100, once, [&](const Tensor&) { return held.sum(); }, xs[2]),
                once(xs[2]));
    expect_near(while_loop([](const Tensor& k) { return k < 100; },
                           [&](const Tensor& k) { return once(k).square() + k + 30; }, xs[0]),
                [&] {
                  Tensor k = xs[0];
                  while (k.item<double>() < 100) k = once(k).square() + k + 30;
                  return k;
                }());
    const auto by_scan = [&](const Tensor& c) { return scan(step(c), xs[0], xs).first; };
    const auto by_hand = [&](const Tensor& c) { return written_out(step(c), xs[0], xs).first; };
    expect_near(grad(by_scan)(held), grad(by_hand)(held));
    expect_near(vmap(by_scan)(random64({2, 3}, 7)), vmap(by_hand)(random64({2, 3}, 7)));
  }
  EXPECT_EQ(held.tolist<double>(), before);
}

// The gradient is a Function in the step, whose writes need memory of the launch.
TEST(loops, steps_take_gradients_of_functions_that_write) {
  const auto written = [](const Tensor& x) {
    Tensor y = x * 2;
    y.setitem({0}, x[1] * x[2]);
    y.setitem({Slice{1, 2}}, y[0] + x[0]);
    return (y * y).sum();
  };
  const auto pure = [](const Tensor& x) {
    const Tensor first = x[1] * x[2];
    return first.square() + (first + x[0]).square() + (x[2] * 2).square();
  };
  const Tensor start = random64({3}, 5);
  const auto steps = [&](auto f, int64_t count) {
    return [=](const Tensor& x) {
      return fori_loop(
          0, count, [&](const Tensor&, const Tensor& c) { return c - grad(f)(c) * 0.01; }, x);
    };
  };
  for (const int64_t count : {1, 4}) {
    expect_near(steps(written, count)(start), steps(pure, count)(start));
    const auto loss = [&](auto f) {
      return [=](const Tensor& x) { return steps(f, count)(x).square().sum(); };
    };
    const Tensor xs = random64({2, 3}, 6);
    expect_near(vmap(steps(written, count))(xs), vmap(steps(pure, count))(xs));
    const auto collected = [&](auto f) {
      return scan(
                 [=](const Tensor& c, const Tensor& row) {
                   return Pair{c + vmap(grad(f))(row).sum(0) * 0.1, f(c)};
                 },
                 start, random64({2, 2, 3}, 7))
          .second;
    };
    expect_near(collected(written), collected(pure));
    const auto once = [&](auto f) {
      return while_loop([](const Tensor& c) { return c.sum() < 100; },
                        [=](const Tensor& c) { return c + grad(f)(c).square() + 1; }, start);
    };
    expect_near(once(written), once(pure));
    expect_near(grad(loss(written))(start), grad(loss(pure))(start));
  }
}

TEST(loops, a_state_that_is_overwritten_is_carried_beside_the_last) {
  for (const bool last_first : {true, false}) {
    const auto [a, b] =
        scan(
            [&](const Pair& c, const Tensor& x) {
              Tensor next = (last_first ? c.first : c.second).clone();
              next.setitem({1}, x);
              const Tensor early(next.uop());
              next.setitem({2}, x + 10);
              return std::pair(last_first ? Pair(next, early) : Pair(early, next), std::tuple<>());
            },
            Pair(Tensor::zeros({4}), Tensor::zeros({4})), Tensor::from<float>({1, 2, 3}))
            .first;
    EXPECT_EQ((last_first ? a : b).tolist<float>(), (std::vector<float>{0, 3, 13, 0}));
    EXPECT_EQ((last_first ? b : a).tolist<float>(), (std::vector<float>{0, 3, 12, 0}));
  }
}

TEST(loops, values_of_loops_are_values_like_others) {
  Tensor x = Tensor::from<float>({1, 2, 3});
  const auto sum = [](const Tensor& c, const Tensor& r) { return std::pair(c + r, c); };
  const Tensor before = scan(sum, Tensor(0.f), x).first;
  x += 1;  // a lazy reader keeps what it saw
  EXPECT_EQ(before.item(), 6);
  EXPECT_EQ(scan(sum, Tensor(0.f), x).first.item(), 9);
  // Equal loops are one, and what was computed is not computed again.
  const Tensor a = scan(sum, Tensor(0.f), x).first, b = scan(sum, Tensor(0.f), x).first;
  EXPECT_EQ(a.uop(), b.uop());
  // Views of arguments and of results.
  const Tensor y = Tensor::arange(12).cast(DType::Float32).reshape({3, 4});
  const Tensor t = scan(sum, Tensor::zeros({3}), y.transpose()).second.transpose();
  EXPECT_EQ(t[1].tolist<float>(), (std::vector<float>{0, 4, 9, 15}));
  expect_same_everywhere(t);
}

TEST(loops, random_draws_differ_from_step_to_step) {
  Tensor::manual_seed(7);
  const Tensor drawn =
      scan([](std::tuple<> none, std::tuple<>) { return std::pair(none, Tensor::rand({4})); },
           std::tuple<>(), std::tuple<>(), {.length = 5})
          .second;
  std::set<float> different;
  for (const float v : drawn.tolist<float>()) different.insert(v);
  EXPECT_EQ(different.size(), 20u);
  const Tensor walk =
      while_loop([](const Pair& s) { return s.second < 5; },
                 [](const Pair& s) { return Pair(Tensor::rand({1}), s.second + 1); },
                 Pair(Tensor::zeros({1}), Tensor(0)))
          .first;
  EXPECT_GT(walk.item(), 0);
}

TEST(loops, spec_amend_43_one_program_serves_all_numbers_of_steps) {
  const Tensor all = random64({8, 3}, 1), h = random64({4}, 2);
  const Cell cell = random_cell(4, 3);
  const UOp n = variable("loop_length", 0, 8);
  clear_compile_cache();
  int64_t compiled = 0;
  for (const int64_t length : {5, 8, 0, 1}) {
    const Tensor xs = all[{Slice{0, Size(koine::bind(n, length))}}];
    const Tensor last = scan(cell, h, xs).first;
    Tensor expected = h;
    for (int64_t k = 0; k < length; ++k) expected = cell(expected, all[k]).first;
    reset_counters();
    last.realize();
    if (length != 5) {
      EXPECT_EQ(counters().compiled, 0) << length;
    }
    compiled += counters().compiled;
    expect_near(last, expected);
  }
  EXPECT_GT(compiled, 0);
}

TEST(loops, captured_steps_run_loops_again) {
  const Tensor xs = Tensor::from<float>({1, 2, 3}), other = Tensor::from<float>({4, 5, 6});
  const Tensor sum = scan([](const Tensor& c, const Tensor& x) { return std::pair(c * 2 + x, c); },
                          Tensor(0.f), xs)
                         .first;
  CapturedStep step({sum.uop()});
  step.run();
  EXPECT_EQ(Tensor(step.outputs()[0]).item(), 11);
  step.replace(xs.uop(), other.uop());
  step.run();
  EXPECT_EQ(Tensor(step.outputs()[0]).item(), 32);
  const UOp program = step.host_program();
  EXPECT_EQ(parse(to_text(program)), program);
  bool found = false;
  for (const UOp& call : program.src()) found = found || is_loop(call.src(0));
  EXPECT_TRUE(found);
}

TEST(loops, loops_run_where_their_arguments_lie) {
  register_remote_device();
  const auto sum = [](const Tensor& c, const Tensor& x) { return std::pair(c * 2 + x, c); };
  for (const char* device : {"CPU:1", "INTERP", "REMOTE"}) {
    const Tensor xs = Tensor::from<float>({1, 2, 3}).to(device);
    const auto [last, all] = scan(sum, Tensor(0.f).to(device), xs);
    EXPECT_EQ(last.device(), device);
    EXPECT_EQ(last.item(), 11) << device;
    EXPECT_EQ(all.tolist<float>(), (std::vector<float>{0, 1, 4})) << device;
    const Tensor w = while_loop([](const Tensor& x) { return x.sum() < 40; },
                                [](const Tensor& x) { return x * 2; }, xs);
    EXPECT_EQ(w.tolist<float>(), (std::vector<float>{8, 16, 24})) << device;
  }
  expect_error(
      [&] {
        scan(sum, Tensor(0.f).to("CPU:1"), Tensor::from<float>({1, 2}).to("INTERP")).first.item();
      },
      {"CPU:1", "INTERP", "to()"});
}

// --- errors
// --------------------------------------------------------------------------------------------

TEST(loops, positions_out_of_range_in_a_step_are_errors) {
  const Tensor table = Tensor::from<float>({10, 20, 30}), at = Tensor::from<int>({0, 2, 3, 1});
  const auto f = [&](const Tensor& c, const Tensor& i) { return std::pair(c + table[i], c); };
  EXPECT_EQ(scan(f, Tensor(0.f), Tensor::from<int>({0, 2, -1, 1})).first.item(), 90);
  expect_error([&] { scan(f, Tensor(0.f), at).first.item(); },
               {"inside of scan", "out of range", "step 2"});
  expect_error(
      [&] {
        fori_loop(
            0, 2,
            [&](const Tensor& i, const Tensor& c) {
              return c + scan(f, Tensor(0.f), at + i).first;
            },
            Tensor(0.f))
            .item();
      },
      {"inside of fori_loop", "out of range", "step 0"});
  expect_error(
      [&] {
        while_loop([](const Pair& s) { return s.second < 4; },
                   [&](const Pair& s) { return Pair(s.first + table[s.second], s.second + 1); },
                   Pair(Tensor(0.f), Tensor(0)))
            .first.item();
      },
      {"inside of while_loop", "out of range", "step 3"});
  const auto pick = [&](bool first) {
    return cond(
        Tensor(first) != Tensor::zeros({}, DType::Bool), [&](const Tensor& i) { return table[i]; },
        [&](const Tensor& i) { return table[i - 3]; }, Tensor(3) + Tensor::zeros({}, DType::Int32));
  };
  EXPECT_EQ(pick(false).item(), 10);
  expect_error([&] { pick(true).item(); }, {"inside of cond", "out of range"});
  // Nothing is written where one is.
  Tensor target = Tensor::zeros({2}).realize();
  const Tensor kept = target + 0;
  target.assign(Tensor::full({2}, 1.f) * scan(f, Tensor(0.f), at).first);
  expect_error([&] { target.tolist<float>(); }, {"inside of scan"});
  EXPECT_EQ(target.tolist<float>(), (std::vector<float>{0, 0}));
}

TEST(loops, all_positions_of_a_step_are_looked_at) {
  const Tensor table = Tensor::from<float>({10, 20, 30});
  const auto f = [&](const Tensor& c, const Tensor& i) { return std::pair(c + table[i].sum(), c); };
  const auto of = [&](const std::vector<int>& at) {
    return scan(f, Tensor(0.f), Tensor::from(at, {3, 2})).first;
  };
  EXPECT_EQ(of({0, 1, 2, -1, -3, 0}).item(), 110);
  for (const auto& [position, step] : {std::pair(0, 0), {1, 0}, {2, 1}, {3, 1}, {5, 2}}) {
    std::vector<int> at{0, 1, 2, -1, -3, 0};
    at[static_cast<size_t>(position)] = position % 2 == 0 ? 3 : -4;
    expect_error([&] { of(at).item(); },
                 {"inside of scan", "out of range", fmt::format("step {}", step)});
  }
}

TEST(loops, misuse_is_refused_in_words) {
  const auto count = [](const Tensor&, const Tensor& c) { return c + 1; };
  for (const auto& [lower, upper] : {std::pair{INT64_MIN, INT64_MAX}, {INT64_MIN, int64_t{0}}})
    expect_error([&] { (void)fori_loop(lower, upper, count, Tensor(0)); },
                 {"fori_loop: from -9223372036854775808 to", "more steps than 64 bits count"});
  EXPECT_EQ(fori_loop(int64_t{5}, int64_t{-5}, count, Tensor(0)).item<int>(), 0);
  const Tensor xs = Tensor::zeros({3, 2}), h = Tensor::zeros({4});
  const auto keep = [](const Tensor& c, const Tensor&) { return std::pair(c, c); };
  expect_error(
      [&] { scan([](const Tensor& c, const Tensor&) { return std::pair(c.sum(), c); }, h, xs); },
      {"scan", "carry", "float32 of shape (4,)", "float32 of shape ()", "before the first step"});
  expect_error(
      [&] {
        scan([](const Tensor& c, const Tensor&) { return std::pair(c.cast(DType::Int32), c); }, h,
             xs);
      },
      {"scan", "float32 of shape (4,)", "int32 of shape (4,)", "cast()"});
  expect_error(
      [&] {
        scan([](const Tensor& c, const Pair&) { return std::pair(c, c); }, h,
             Pair(xs, Tensor::zeros({2})));
      },
      {"scan: the numbers of rows differ: tensor 0 of the rows of shape (3, 2) has 3, tensor 1 of "
       "the "
       "rows of shape (2,) has 2"});
  expect_error([&] { scan(keep, h, Tensor(1.f)); }, {"scan", "shape ()", "axis 0"});
  expect_error([&] { scan(keep, h, xs, {.length = 4}); }, {"scan", "length is 4", "has 3"});
  expect_error(
      [&] {
        scan([](const Tensor& c, std::tuple<>) { return std::pair(c, c); }, h, std::tuple<>());
      },
      {"scan: there are no rows: say how many steps with options.length"});
  expect_error(
      [&] {
        scan([](const Tensor& c, std::tuple<>) { return std::pair(c, c); }, h, std::tuple<>(),
             {.length = -1});
      },
      {"scan", "-1 steps"});
  expect_error(
      [&] {
        scan(
            [](const Tensor& c, const Tensor& x) {
              c.sum().item();
              return std::pair(c, x);
            },
            h, xs);
      },
      {"inside of the function traced at", "loops_test.cpp"});
  expect_error(
      [&] {
        while_loop([](const Tensor& x) { return x > 0; }, [](const Tensor& x) { return x; }, h);
      },
      {"while_loop", "one bool of shape ()", "bool of shape (4,)", "any()"});
  expect_error(
      [&] {
        while_loop([](const Tensor& x) { return x.sum(); }, [](const Tensor& x) { return x; }, h);
      },
      {"while_loop", "float32 of shape ()"});
  expect_error(
      [&] {
        while_loop([](const Tensor& x) { return x.sum() > 0; },
                   [](const Tensor& x) { return x.sum(); }, h);
      },
      {"while_loop", "float32 of shape (4,)", "float32 of shape ()"});
  expect_error(
      [&] {
        fori_loop(
            0, 3, [](const Tensor& i, const Tensor& x) { return x + i.cast(DType::Float64); }, h);
      },
      {"carry", "float64"});
  const std::vector<Tensor> two{h, h};
  const auto longer = [](const Tensor&, std::vector<Tensor> all) {
    all.push_back(all[0]);
    return all;
  };
  const std::string said = "fori_loop: the step gives 3 tensors, and the carry holds 2";
  expect_error([&] { fori_loop(0, 3, longer, two); }, {said});
  expect_error([&] { fori_loop(Tensor(0), Tensor(3), longer, two); }, {said});
  const auto one = [](const Tensor& x) { return x; };
  expect_error([&] { cond(h > 0, one, one, h); },
               {"cond", "bool of shape ()", "bool of shape (4,)"});
  expect_error([&] { cond(Tensor(1.f), one, one, h); }, {"cond", "float32 of shape ()"});
  expect_error([&] { cond(Tensor(true), one, [](const Tensor& x) { return x.sum(); }, h); },
               {"cond", "in on_false", "in on_true", "(4,)"});
  using F = std::function<Tensor(const Tensor&)>;
  expect_error([&] { switch_case(Tensor(0), std::vector<F>{}, h); }, {"switch_case", "no branch"});
  expect_error([&] { switch_case(Tensor(0.5f), std::vector<F>{one}, h); },
               {"switch_case", "integer"});
}

// What a graph says of its loops is looked at where it is made, whoever wrote it.
TEST(loops, graphs_of_loops_that_do_not_fit_are_refused) {
  using Nodes = std::vector<UOp>;
  const UOp four = leaf({4}), rows = leaf({3, 2}), number = leaf({}, DType::Int32);
  const auto at = [](int64_t slot, const Shape& shape, DType dtype = DType::Float32) {
    return param(slot, shape_of(shape), dtype);
  };
  const auto refused = [](Op op, const std::vector<Nodes>& functions, const Nodes& more,
                          const std::string& form, const Nodes& arguments,
                          const std::vector<std::string>& parts) {
    SCOPED_TRACE(parts.back());
    expect_error(
        [&] {
          Nodes src;
          for (const Nodes& f : functions) src.push_back(tuple(f));
          src.insert(src.end(), more.begin(), more.end());
          Nodes call{UOp::make(op, src, form)};
          call.insert(call.end(), arguments.begin(), arguments.end());
          (void)get_tuple(UOp::make(Op::Call, call), 0);
        },
        parts);
  };
  const UOp carry = at(0, {4}), three = index_const(3);
  const Nodes count{three};
  const auto scan_of = [&](const Nodes& step, const std::string& form, const Nodes& arguments,
                           const std::vector<std::string>& parts) {
    refused(Op::Scan, {step}, count, form, arguments, parts);
  };
  scan_of({at(1, {4})}, "carry", {four}, {"scan: a function reads slot 1, of 1 arguments"});
  scan_of({carry, at(-1, {4})}, "carry", {four}, {"scan: a function reads slot -1"});
  scan_of({at(0, {5})}, "carry", {four},
          {"the step takes float32 of shape (5,) for argument 0", "as it is", "of shape (4,)"});
  scan_of({at(0, {4}, DType::Int32)}, "carry", {four}, {"the step takes int32 of shape (4,)"});
  scan_of({at(0, {3, 2})}, "row", {rows},
          {"the step takes float32 of shape (3, 2)", "of which it gets a row"});
  scan_of({}, "carry", {four}, {"scan: the step gives 0 values, for 1 carries"});
  scan_of({at(1, {2})}, "carry row", {four, rows}, {"carry 0", "(4,)", "(2,)", "cast()"});
  scan_of({cast(carry, DType::Int32)}, "carry", {four}, {"carry 0", "int32 of shape (4,)"});
  scan_of({at(0, {})}, "row", {four}, {"argument 0 of shape (4,) has no row for each of 3"});
  scan_of({number}, "row", {number}, {"argument 0 of shape () has no row for each of 3"});
  scan_of({carry}, "carry", {four, rows}, {"it says what 1 arguments are, and is called with 2"});
  scan_of({carry}, "carry const", {four, rows}, {"its arg names carry, row or constant"});
  scan_of({carry}, "carry reversed", {four}, {"its arg names carry, row or constant"});
  refused(Op::Scan, {{carry}}, {constant_int(DType::Int32, 3)}, "carry", {four},
          {"how often is an index scalar, got int32"});

  const UOp holds = lt(at(1, {}), constant(DType::Float32, 3));
  const auto while_of = [&](const Nodes& condition, const Nodes& step, const std::string& form,
                            const std::string& part) {
    refused(Op::While, {condition, step}, {}, form, {four, leaf({})}, {"while_loop", part});
  };
  while_of({holds}, {carry}, "carry row", "no rows");
  while_of({holds}, {carry, carry}, "carry constant", "gives 2 values, for 1 carries");
  while_of({holds, holds}, {carry}, "carry constant", "one bool of shape ()");
  while_of({}, {carry}, "carry constant", "one bool of shape (), got nothing");
  while_of({at(1, {})}, {carry}, "carry constant", "got float32 of shape ()");
  while_of({lt(carry, carry)}, {carry}, "carry constant", "got bool of shape (4,)");
  while_of({holds}, {at(1, {})}, "carry constant", "carry 0");
  refused(Op::While, {{holds}, {carry}}, {}, "reversed carry constant", {four, leaf({})},
          {"its arg names carry, row or constant"});

  const auto switch_of = [&](const std::vector<Nodes>& branches, const std::string& form,
                             const Nodes& arguments, const std::vector<std::string>& parts) {
    refused(Op::Switch, branches, {}, form, arguments, parts);
  };
  const UOp kept = at(1, {4});
  switch_of({{kept}}, "constant carry", {number, four}, {"a number and constants"});
  switch_of({{number}}, "", {}, {"a number and constants"});
  switch_of({{kept}}, "constant constant", {leaf({}), four}, {"an int32 of shape ()", "float32"});
  switch_of({{kept}}, "constant constant", {leaf({1}, DType::Int32), four},
            {"an int32 of shape ()", "int32 of shape (1,)"});
  switch_of({{kept, kept}, {kept}}, "constant constant", {number, four},
            {"branch 0 gives 2 values, and branch 1 gives 1"});
  switch_of({{kept, kept}, {kept, cast(kept, DType::Int32)}}, "constant constant", {number, four},
            {"value 1 is float32 of shape (4,) in branch 0 and int32 of shape (4,) in branch 1"});
  switch_of({{kept}, {kept}, {leaf({2})}}, "constant constant", {number, four},
            {"value 0", "(4,) in branch 0", "(2,) in branch 2"});
}

}  // namespace koine::test

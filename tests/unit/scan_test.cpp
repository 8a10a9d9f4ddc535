// Running folds and what is made of them: right values in both modes, and work that grows with the
// number of elements.
#include <cmath>

#include "check.hpp"
#include "gradient_check.hpp"
#include "kernels.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/scan.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/tensor/transforms.hpp"

namespace koine::test {
namespace {

Tensor leaf_tensor(const Shape& shape, DType dtype = DType::Float32, uint64_t salt = 0) {
  return Tensor(leaf(shape, dtype, salt));
}

// Four times the elements cost at most 4.4 times the operations and bytes.
void expect_linear(const std::function<Tensor(int64_t)>& value, int64_t n, double operations) {
  const Counters one = counters_of({value(n)}), four = counters_of({value(4 * n)});
  EXPECT_LE(one.operations, operations * static_cast<double>(n));
  EXPECT_GE(one.operations, 0.9 * static_cast<double>(n)) << "the kernels ran";
  EXPECT_LE(four.operations, 4.4 * one.operations);
  EXPECT_LE(four.bytes, 4.4 * one.bytes);
}

// prefix_sum of the specification, in its words.
Tensor document_prefix_sum(const Tensor& t) {
  const int64_t n = t.size(0);
  Tensor x = t.pad({{n - 1, 0}});
  x = x.reshape({1, 2 * n - 1}).expand({n + 1, 2 * n - 1}).reshape({(n + 1) * (2 * n - 1)});
  x = x.shrink({{0, 2 * n * n}}).reshape({n, 2 * n}).shrink({{0, n}, {0, n}});
  return x.sum({-1});
}

}  // namespace

// After `index` a kernel says what the values say: every element folds its part of the row anew.
// `split` lets the fold go on from element to element.
TEST(scan, split_writes_in_steps_what_index_leaves_as_values_say_it) {
  const auto memory = [](int64_t slot) {
    return UOp::make(Op::Param, {shape_of({100})},
                     BufferArg{slot, DType::Float32, Device("CPU"), AddrSpace::Global, ""});
  };
  const UOp sums = Tensor(memory(1)).cumsum(0).uop();
  const UOp program = sink(std::vector<UOp>{store(memory(0), sums)});
  const UOp indexed = indexed_program(bufferized_program(decided_program(program)));
  const std::vector<Kernel> before = kernels_of(indexed),
                            after = kernels_of(split_program(indexed));
  ASSERT_EQ(before.size(), 1u);
  ASSERT_EQ(after.size(), 1u);
  const auto folds = [](const UOp& ast) {
    std::vector<UOp> out;
    for (const UOp& u : toposort(ast))
      if (u.is(Op::Reduce)) out.push_back(u);
    return out;
  };
  const std::vector<UOp> all = folds(before[0].ast), running = folds(after[0].ast);
  ASSERT_EQ(all.size(), 1u);
  ASSERT_EQ(running.size(), 1u);
  EXPECT_TRUE(running_levels(all[0]).empty());
  EXPECT_EQ(running_levels(running[0]).size(), 1u);
}

TEST(scan, spec_C_psum_costs_its_elements) {
  in_both_modes([] {
    for (const DType d : {DType::Float32, DType::Float64, DType::Int32, DType::UInt64}) {
      SCOPED_TRACE(std::string(dtype_name(d)));
      auto prefix = [&](int64_t n) { return document_prefix_sum(leaf_tensor({n}, d)); };
      EXPECT_LE(kernel_count({prefix(512)}), 2);
      expect_linear(prefix, 2048, 8);
      expect_linear([&](int64_t n) { return leaf_tensor({n}, d).cumsum(0); }, 2048, 8);
    }
  });
}

TEST(scan, spec_C_psum_is_the_windowed_left_fold) {
  for (const DType d : stored_dtypes())
    for (const int64_t n : {1, 2, 9, 40}) {
      SCOPED_TRACE(fmt::format("{} {}", dtype_name(d), n));
      expect_same_everywhere(document_prefix_sum(leaf_tensor({n}, d)));
      expect_same_everywhere(leaf_tensor({n}, d).cumsum(0));
    }
}

TEST(scan, spec_C_psum_integers_are_exact_and_strict_floats_add_from_the_left) {
  in_both_modes([] {
    constexpr int64_t n = 70001;
    std::vector<int64_t> values, sums;
    int64_t sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      values.push_back((i * 7919) % 1000003 * ((i % 3) - 1));
      sums.push_back(sum += values.back());
    }
    EXPECT_EQ(Tensor::from(values, {n}).cumsum(0).tolist<int64_t>(), sums);
  });
  const OptionScope scope(strict_options());
  std::vector<float> values, sums;
  float sum = 0;
  for (int i = 0; i < 5000; ++i) {
    values.push_back(0.1F * static_cast<float>(i % 17));
    sums.push_back(sum += values.back());
  }
  EXPECT_EQ(Tensor::from(values, {5000}).cumsum(0).tolist<float>(), sums);
  EXPECT_EQ(document_prefix_sum(Tensor::from(values, {5000})).tolist<float>(), sums);
}

// As near to the real sums as the table of switches.md promises for every prefix, however long.
TEST(scan, sums_of_many_stay_within_the_bounds_of_a_tree) {
  for (const int64_t n : {1000, 32768, 300007}) {
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(i % 2 == 0 ? 0.1F : 0.7F);
    const auto got = Tensor::from(values, {n}).cumsum(0).tolist<float>();
    long double sum = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      sum += values[i];
      const double allowed =
          4 * 0x1p-24 * std::log2(std::max<double>(2, static_cast<double>(i + 1)));
      ASSERT_NEAR(got[i], static_cast<double>(sum), allowed * static_cast<double>(sum)) << i;
    }
  }
}

TEST(scan, cumsum_along_every_axis) {
  const Tensor x = leaf_tensor({4, 5, 6});
  for (const int64_t axis : {0, 1, 2, -1, -2, -3}) expect_same_everywhere(x.cumsum(axis));
  const Tensor turned = x.permute({2, 0, 1}).flip({1});
  for (const int64_t axis : {0, 1, 2}) expect_same_everywhere(turned.cumsum(axis));
  in_both_modes([] {
    for (const int64_t axis : {0, 1, 2})
      expect_linear(
          [&](int64_t n) {
            Shape shape{7, 6, 5};
            shape[static_cast<size_t>(axis)] = n;
            return leaf_tensor(shape).cumsum(axis);
          },
          500, 8 * 42);
    expect_linear([](int64_t n) { return leaf_tensor({n, 4}).cumsum(1); }, 1000, 8 * 4);
    expect_linear([](int64_t n) { return leaf_tensor({n, 4}).cumsum(0); }, 5000, 8 * 4);
  });
  EXPECT_EQ(Tensor(2.5).cumsum(0).item(), 2.5);
  EXPECT_EQ(Tensor::zeros({0}).cumsum(0).shape(), (Shape{0}));
  EXPECT_EQ(Tensor::zeros({3, 0}).cumsum(0).shape(), (Shape{3, 0}));
  EXPECT_EQ(Tensor::zeros({3, 0}).cumsum(1).shape(), (Shape{3, 0}));
  expect_same_everywhere(leaf_tensor({1}).cumsum(0));
}

// Threads, which large scans get, leave the loop that goes on alone.
TEST(scan, spec_C_psum_no_thread_begins_a_fold_anew) {
  in_both_modes([] {
    for (const Shape& shape : {Shape{1000000}, Shape{1000000, 4}, Shape{4, 1000000},
                               Shape{9, 65536}, Shape{65536, 16}, Shape{512, 512}})
      for (int64_t axis = 0; axis < ssize(shape); ++axis) {
        const Tensor x(buffer_from_host(shape_of(Ints(shape.begin(), shape.end())), DType::Float32,
                                        "CPU", nullptr));
        const std::vector<Kernel> kernels = schedule({x.cumsum(axis).uop()});
        ASSERT_EQ(kernels.size(), 1u);
        Target target = generic_target(options().strict);
        target.has_threads = true;
        const UOp linear = lower_kernel(kernels[0].ast, target).linear;
        for (const UOp& u : linear.src())
          EXPECT_FALSE(u.is(Op::Range) && u.as<RangeArg>().type == AxisType::Reduce)
              << "a fold for each element along axis " << axis;
      }
  });
}

// Sums over windows of a width that does not grow, whatever makes the windows.
TEST(scan, spec_C_psum_sums_over_windows_cost_their_elements) {
  in_both_modes([] {
    auto image = [](int64_t n) { return leaf_tensor({1, 1, n, 8}); };
    expect_linear([&](int64_t n) { return image(n).avg_pool2d(3, 1); }, 500, 12 * 8);
    expect_linear([&](int64_t n) { return image(n).avg_pool2d(2, 2).exp(); }, 500, 12 * 8);
    auto differences = [](int64_t n) {
      const Tensor sums = leaf_tensor({n}).cumsum(0).pad({{1, 0}});
      return sums.shrink({{16, n + 1}}) - sums.shrink({{0, n - 15}});
    };
    expect_linear(differences, 2048, 12);
    auto added = [](int64_t n) {
      const Tensor x = leaf_tensor({n});
      Tensor sum = x.shrink({{0, n - 7}});
      for (int64_t k = 1; k < 8; ++k) sum = sum + x.shrink({{k, n - 7 + k}});
      return sum;
    };
    expect_linear(added, 2048, 8);
  });
}

// How many of an element's kind stand up to it: one table of the kinds, whichever side of the
// comparison the element is on.
TEST(scan, folds_by_key_cost_their_elements_whichever_side_is_compared) {
  in_both_modes([] {
    for (const bool element_first : {true, false}) {
      const auto ranks = [&](const Tensor& keys, int64_t n) {
        const Tensor place = Tensor::arange(n), element = keys.reshape({1, n}),
                     result = keys.reshape({n, 1});
        const Tensor same = element_first ? element == result : result == element;
        const Tensor upto = place.reshape({1, n}) <= place.reshape({n, 1});
        return upto.bitwise_and(same).cast(DType::Int32).sum({1});
      };
      const auto keys_of = [](int64_t n) {
        return (Tensor(leaf({n}, DType::Int32)).bitwise_and(Tensor(7)))
            .cast(DType::UInt8)
            .realize();
      };
      expect_linear([&](int64_t n) { return ranks(keys_of(n), n); }, 2048, 12);
      expect_same_everywhere(ranks(keys_of(300), 300));
    }
  });
}

TEST(scan, infinities_and_nan_stay_where_they_come) {
  in_both_modes([] {
    const float nan = std::nanf(""), large = static_cast<float>(inf);
    const auto v = Tensor::from<float>({1, large, 2, -large, 3}).cumsum(0).tolist<float>();
    EXPECT_EQ(v[0], 1);
    EXPECT_EQ(v[1], inf);
    EXPECT_EQ(v[2], inf);
    EXPECT_TRUE(std::isnan(v[3]) && std::isnan(v[4]));
    const auto w = Tensor::from<float>({1, 2, nan, 4}).cumsum(0).tolist<float>();
    EXPECT_EQ(w[1], 3) << "nothing comes back from behind";
    EXPECT_TRUE(std::isnan(w[2]) && std::isnan(w[3]));
  });
}

// What stands around a scan is computed with it or apart, and either way once.
TEST(scan, stays_linear_whatever_reads_it_and_whatever_it_reads) {
  struct Case {
    const char* what;
    std::function<Tensor(const Tensor&)> value;
  };
  const Tensor back = Tensor::from<int32_t>({3, 1, 0, 2, 3});
  const std::vector<Case> cases{
      {"computed elements", [](const Tensor& x) { return (x * x + Tensor(1.0)).sqrt().cumsum(0); }},
      {"an epilogue", [](const Tensor& x) { return x.cumsum(0).exp() * x + Tensor(1.0); }},
      {"a scan of a scan", [](const Tensor& x) { return x.cumsum(0).cumsum(0); }},
      {"both axes", [](const Tensor& x) { return x.reshape({-1, 8}).cumsum(0).cumsum(1); }},
      {"two axes added",
       [](const Tensor& x) {
         const Tensor y = x.reshape({-1, 8});
         return y.cumsum(0) + y.cumsum(1);
       }},
      {"two scans added", [](const Tensor& x) { return x.cumsum(0) + x.exp().cumsum(0); }},
      {"two directions",
       [](const Tensor& x) { return x.cumsum(0) + x.flip({0}).cumsum(0).flip({0}); }},
      {"by index", [&](const Tensor& x) { return x.cumsum(0)[back] + x.sum(); }},
      {"rolled", [](const Tensor& x) { return x.cumsum(0).roll(3, 0); }},
      {"flipped", [](const Tensor& x) { return x.flip({0}).cumsum(0).flip({0}); }},
      {"every second", [](const Tensor& x) { return x.cumsum(0)[{Slice{{}, {}, 2}}]; }},
      {"without the first",
       [](const Tensor& x) { return x.cumsum(0)[{Slice{1, {}}}] - x[{Slice{1, {}}}]; }},
      {"summed", [](const Tensor& x) { return x.cumsum(0).sum(); }},
      {"rows of it summed", [](const Tensor& x) { return x.reshape({8, -1}).cumsum(1).sum(1); }},
      {"the scan of sums", [](const Tensor& x) { return x.reshape({-1, 8}).sum(1).cumsum(0); }},
      {"softmax", [](const Tensor& x) { return (x * Tensor(0.01)).cumsum(0).softmax(); }},
      {"rows beside it",
       [](const Tensor& x) { return x.cumsum(0).reshape({-1, 1}) + x.shrink({{0, 5}}); }},
      {"columns beside it",
       [](const Tensor& x) {
         return x.cumsum(0).reshape({1, -1}) + x.shrink({{0, 5}}).reshape({5, 1});
       }},
      {"joined", [](const Tensor& x) { return Tensor::cat({x, x.cumsum(0)}); }},
  };
  in_both_modes([&] {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.what);
      expect_linear([&](int64_t n) { return c.value(leaf_tensor({n})); }, 1024, 60);
    }
  });
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    expect_same_everywhere(c.value(leaf_tensor({24})));
  }
}

TEST(scan, a_chain_is_one_kernel) {
  const Tensor x = leaf_tensor({300});
  EXPECT_EQ(kernel_count({x.cumsum(0)}), 1);
  EXPECT_EQ(kernel_count({(x * x).cumsum(0).exp()}), 1);
  EXPECT_EQ(kernel_count({x.cast(DType::BFloat16).cumsum(0)}), 1);
  EXPECT_EQ(kernel_count({x.cumsum(0) + x.exp().cumsum(0)}), 1);
}

TEST(scan, gradient_of_cumsum_runs_backwards) {
  in_both_modes([] {
    Tensor x = leaf_tensor({6}).contiguous().requires_grad();
    const Tensor weights = Tensor::from<float>({1, 2, 4, 8, 16, 32});
    EXPECT_EQ((x.cumsum(0) * weights).sum().gradient({x})[0].tolist<float>(),
              (std::vector<float>{63, 62, 60, 56, 48, 32}));
    auto gradient = [](int64_t n) {
      Tensor w = Tensor(leaf({n})).contiguous().requires_grad();
      (void)w.realize();
      return (w.cumsum(0) * w.detach()).sum().gradient({w})[0];
    };
    expect_linear(gradient, 2048, 30);
    auto second = [](int64_t n) {
      Tensor w = Tensor(leaf({n})).contiguous().requires_grad();
      (void)w.realize();
      const Tensor g = w.cumsum(0).square().sum().gradient({w})[0];
      return g.square().sum().gradient({w})[0];
    };
    expect_linear(second, 2048, 60);
    expect_same_everywhere(gradient(20));
    expect_same_everywhere(second(12));
  });
}

// A kernel that is edited so that its loop cannot go on in order computes the same.
TEST(scan, any_edit_of_the_loops_keeps_the_values) {
  const Tensor x = leaf_tensor({16, 24});
  const std::vector<std::vector<Opt>> edits{
      {},
      {{OptOp::Split, 1, 8, AxisType::Loop}},
      {{OptOp::Split, 1, 4, AxisType::Thread, true}},
      {{OptOp::Split, 0, 4, AxisType::Upcast}},
      {{OptOp::Split, 0, 4, AxisType::Thread, true}},
      {{OptOp::Padto, 1, 32}},
      {{OptOp::Swap, 0, 1}},
      {{OptOp::Split, 1, 6, AxisType::Loop}, {OptOp::Swap, 1, 2}},
  };
  for (const bool strict : {false, true}) {
    const OptionScope scope(strict ? strict_options() : options());
    const auto kernels = schedule({x.cumsum(1).uop()});
    ASSERT_EQ(kernels.size(), 1u);
    for (const auto& edit : edits) {
      Options o = options();
      o.verify = 3;
      const OptionScope checked(o);
      const LoweredKernel k = lower_kernel(kernels[0].ast, generic_target(strict), {}, &edit);
      EXPECT_GT(k.checks.checked, 0);
    }
    expect_error([&] { (void)apply_opt(kernels[0].ast, {OptOp::Split, 1, 8, AxisType::Upcast}); },
                 {"Split", "axis 1", "running fold", "UPCAST"});
    expect_error([&] { (void)apply_opt(kernels[0].ast, {OptOp::Swap, 0, 2}); },
                 {"Swap", "0 and 2"});
  }
}

// --- running products and extremes ---------------------------------------------------------------

TEST(scan, cumprod_cummax_cummin_are_what_they_say) {
  in_both_modes([] {
    const float nan = std::nanf(""), large = static_cast<float>(inf);
    EXPECT_EQ(Tensor::from<float>({2, 3, -1, 0, 5}).cumprod(0).tolist<float>(),
              (std::vector<float>{2, 6, -6, 0, 0}));
    EXPECT_EQ(Tensor::from<int8_t>({100, 100, 2}).cumprod(0).tolist<int>(),
              (std::vector<int>{100, 10000, 20000}));
    EXPECT_EQ(Tensor::from<float>({1, 3, 2, large, 4}).cummax(0).tolist<float>(),
              (std::vector<float>{1, 3, 3, large, large}));
    EXPECT_EQ(Tensor::from<float>({-large, 3, 2, -5, 4}).cummin(0).tolist<float>(),
              (std::vector<float>{-large, -large, -large, -large, -large}));
    const auto v = Tensor::from<float>({1, 7, nan, 9}).cummax(0).tolist<float>();
    EXPECT_EQ(v[1], 7);
    EXPECT_TRUE(std::isnan(v[2]) && std::isnan(v[3])) << "NaN stays";
    const auto w = Tensor::from<float>({1, -7, nan, -9}).cummin(0).tolist<float>();
    EXPECT_EQ(w[1], -7);
    EXPECT_TRUE(std::isnan(w[2]) && std::isnan(w[3]));
    EXPECT_EQ(Tensor::from<int32_t>({INT32_MIN, 3, -2, INT32_MAX, 4}).cummin(0).tolist<int>(),
              (std::vector<int>(5, INT32_MIN)));
    EXPECT_EQ(Tensor::from<uint64_t>({5, UINT64_MAX, 3}).cummax(0).tolist<uint64_t>(),
              (std::vector<uint64_t>{5, UINT64_MAX, UINT64_MAX}));
  });
  EXPECT_EQ(Tensor(3).cummax(0).item(), 3);
  EXPECT_EQ(Tensor::zeros({0, 2}).cummin(0).shape(), (Shape{0, 2}));
  for (const DType d : stored_dtypes())
    for (const int64_t axis : {0, -1}) {
      SCOPED_TRACE(fmt::format("{} {}", dtype_name(d), axis));
      const Tensor x = leaf_tensor({5, 7}, d);
      expect_same_everywhere(x.cumprod(axis));
      expect_same_everywhere(x.cummax(axis));
      expect_same_everywhere(x.cummin(axis));
    }
  expect_error([] { (void)Tensor::zeros({2, 3}).cumprod(2); }, {"cumprod", "2"});
  expect_error([] { (void)Tensor::zeros({2, 3}).cummax(-3); }, {"cummax", "-3"});
}

TEST(scan, cumprod_cummax_cummin_cost_their_elements) {
  in_both_modes([] {
    expect_linear([](int64_t n) { return leaf_tensor({n}).cumprod(0); }, 2048, 8);
    expect_linear([](int64_t n) { return leaf_tensor({n}).cummax(0); }, 2048, 20);
    expect_linear([](int64_t n) { return leaf_tensor({n}, DType::Int32).cummin(0); }, 2048, 8);
    auto gradient = [](int64_t n) {
      Tensor x = leaf_tensor({n}).contiguous().requires_grad();
      (void)x.realize();
      return (x.cummax(0) * x.detach()).sum().gradient({x})[0];
    };
    expect_linear(gradient, 2048, 40);
  });
  Tensor x = Tensor::from<float>({1, 3, 2, 3, 5}).requires_grad();
  const Tensor weights = Tensor::from<float>({1, 2, 4, 8, 16});
  EXPECT_EQ((x.cummax(0) * weights).sum().gradient({x})[0].tolist<float>(),
            (std::vector<float>{1, 6, 0, 8, 16}));
  EXPECT_EQ((x.cummin(0) * weights).sum().gradient({x})[0].tolist<float>(),
            (std::vector<float>{31, 0, 0, 0, 0}));
}

// Forward, backward, and both of the second order: a recurrence each, of one step an element.
TEST(scan, derivatives_of_cumprod_cost_their_elements) {
  auto rows = [](int64_t n) { return leaf_tensor({3, n}); };
  auto product = [](const Tensor& x) { return x.cumprod(1); };
  auto slope = [&](const Tensor& x) { return (product(x) * x.sin()).sum().gradient({x})[0]; };
  in_both_modes([&] {
    expect_linear([&](int64_t n) { return slope(rows(n)); }, 128, 3 * 60);
    expect_linear([&](int64_t n) { return jvp(product, rows(n), rows(n).cos()).second; }, 128,
                  3 * 60);
    expect_linear(
        [&](int64_t n) {
          const Tensor w = rows(n);
          return slope(w).square().sum().gradient({w})[0];
        },
        128, 3 * 200);
    expect_linear([&](int64_t n) { return jvp(slope, rows(n), rows(n).cos()).second; }, 128,
                  3 * 200);
  });
}

// Against differences in float64, with none to all of a row's factors 0, along every axis.
TEST(scan, derivatives_of_cumprod_know_zeros) {
  constexpr int64_t n = 36;
  std::vector<double> factors;
  const std::vector<std::vector<int64_t>> zeros{{},     {0},           {n - 1},       {7},
                                                {7, 8}, {0, 5, n - 1}, {3, 9, 20, 21}};
  std::mt19937_64 random(test_seed());
  std::uniform_real_distribution<double> far(0.7, 1.4);
  for (const auto& where : zeros)
    for (int64_t i = 0; i < n; ++i) {
      const bool is_zero = std::find(where.begin(), where.end(), i) != where.end();
      factors.push_back(is_zero ? 0 : (random() % 2 == 0 ? 1 : -1) * far(random));
    }
  const Tensor x = Tensor::from(factors, {static_cast<int64_t>(zeros.size()), n});
  const Tensor direction = doubles(x.shape(), 3);
  in_both_modes([&] {
    auto along_rows = [](const Tensor& t) { return t.cumprod(1); };
    auto along_columns = [](const Tensor& t) { return t.transpose().cumprod(0); };
    check_gradient(along_rows, x);
    check_gradient(along_columns, x);
    check_second_gradient(along_rows, x);
    // Forward mode is the difference along a direction, of the product and of its gradient.
    auto slope = [](const Tensor& t) { return t.cumprod(1).square().sum().gradient({t})[0]; };
    for (const std::function<Tensor(const Tensor&)>& f :
         {std::function<Tensor(const Tensor&)>(along_rows),
          std::function<Tensor(const Tensor&)>(slope)}) {
      const Tensor step = direction * 1e-5;
      const auto there = f(x + step).tolist<double>(), back = f(x - step).tolist<double>();
      const auto got = jvp(f, x, direction).second.tolist<double>();
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], (there[i] - back[i]) / 2e-5, 1e-5 * std::max(1.0, std::abs(got[i])))
            << i;
    }
  });
  // An infinity reaches what it is a factor of, and nothing else.
  std::vector<float> wild(40, 1.5F);
  wild[5] = static_cast<float>(inf);
  const Tensor w = Tensor::from(wild, {40});
  const auto got = w.cumprod(0)[{Slice{0, 6}}].sum().gradient({w})[0].tolist<float>();
  EXPECT_FLOAT_EQ(got[5], std::pow(1.5F, 5.0F));
  EXPECT_EQ(got[4], static_cast<float>(inf));
}

TEST(scan, derivatives_of_cumprod_go_through_transforms) {
  const Tensor x = doubles({4, 3, 33}, 1, 0.8, 1.2), w = doubles({3, 33}, 2);
  auto slope = [&](const Tensor& t) {
    return grad([&](const Tensor& u) { return (u.cumprod(1) * w).sum(); })(t);
  };
  const Tensor all = vmap(slope)(x);
  auto product = [](const Tensor& t) { return t.cumprod(1); };
  const Tensor tangents = vmap([&](const Tensor& t) { return jvp(product, t, w).second; })(x);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(all[i].tolist<double>(), slope(x[i]).tolist<double>());
    EXPECT_EQ(tangents[i].tolist<double>(), jvp(product, x[i], w).second.tolist<double>());
    EXPECT_EQ(vmap(product)(x)[i].tolist<double>(), product(x[i]).tolist<double>());
  }
  // The gradient of all examples is each example's.
  const Tensor whole = grad([&](const Tensor& t) { return (vmap(product)(t) * w).sum(); })(x);
  EXPECT_EQ(whole.tolist<double>(), all.tolist<double>());
  // On two devices, which share the rows, and of narrow floats.
  const Tensor split = x.shard("CPU,CPU:1", 0), weights = w.shard("CPU,CPU:1");
  const Tensor parts = (split.cumprod(2) * weights).sum().gradient({split})[0];
  const auto got = parts.tolist<double>(), expected = all.tolist<double>();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-12) << i;
  const Tensor half = x.cast(DType::Float16);
  EXPECT_EQ(half.cumprod(2).sum().gradient({half})[0].dtype(), DType::Float16);
}

}  // namespace koine::test

// sort and what is made of it: right orders for every dtype, and work that grows with the number of
// elements.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/engine/engine.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {
namespace {

// Positions in the order of a stable sort; NaN counts as the largest.
std::vector<int> sorted_positions(const std::vector<double>& v, bool descending) {
  std::vector<int> order(v.size());
  std::iota(order.begin(), order.end(), 0);
  auto less = [&](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    const double x = v[static_cast<size_t>(a)], y = v[static_cast<size_t>(b)];
    return descending ? less(y, x) : less(x, y);
  });
  return order;
}

// Numbers with many that are equal, and those that sorts get wrong.
std::vector<double> hard_numbers(int64_t n, DType d) {
  std::vector<double> out;
  const bool sign = is_float(d) || is_signed(d);
  for (int64_t i = 0; i < n; ++i)
    out.push_back(static_cast<double>((i * 7919 + i * i * 31) % 97) - (sign ? 48 : 0));
  if (!is_float(d)) return out;
  for (int64_t i = 0; i < n; i += 11) out[static_cast<size_t>(i)] = i % 2 == 0 ? -0.0 : 0.0;
  for (int64_t i = 5; i < n; i += 23) out[static_cast<size_t>(i)] = std::nan("");
  if (d == DType::Float8E4M3) return out;
  for (int64_t i = 7; i < n; i += 29) out[static_cast<size_t>(i)] = i % 2 == 0 ? inf : -inf;
  return out;
}

}  // namespace

TEST(sort, orders_every_dtype_and_keeps_equal_elements_in_order) {
  for (const DType d : stored_dtypes())
    // Up to 128 elements for each byte of a key are compared, more are ordered by its bytes.
    for (const int64_t n : {int64_t{2}, int64_t{40}, 128 * item_size(d), 128 * item_size(d) + 1}) {
      const Tensor x = Tensor::from(hard_numbers(n, d), {n}).cast(d).realize();
      const auto values = x.tolist<double>();
      for (const bool descending : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", dtype_name(d), n, descending));
        const std::vector<int> want = sorted_positions(values, descending);
        EXPECT_EQ(x.argsort(0, descending).tolist<int>(), want);
        const auto [sorted, order] = x.sort(0, descending);
        EXPECT_EQ(order.dtype(), DType::Int32);
        EXPECT_EQ(sorted.dtype(), d);
        const auto got = sorted.tolist<double>();
        for (size_t i = 0; i < got.size(); ++i) {
          const double v = values[static_cast<size_t>(want[i])];
          ASSERT_TRUE(got[i] == v || (std::isnan(got[i]) && std::isnan(v))) << i;
        }
      }
    }
}

TEST(sort, wide_integers_and_close_floats) {
  in_both_modes([] {
    std::vector<uint64_t> wide;
    std::vector<int64_t> sign;
    std::vector<double> close;
    for (uint64_t i = 0; i < 200; ++i) {
      wide.push_back(i * 0x9e3779b97f4a7c15u);
      sign.push_back(static_cast<int64_t>(wide.back()));
      close.push_back(1 + 0x1p-52 * static_cast<double>(wide.back() % 1000));
    }
    auto check = [](auto v) {
      const auto got =
          Tensor::from(v, {200}).sort(0).first.template tolist<typename decltype(v)::value_type>();
      std::sort(v.begin(), v.end());
      EXPECT_EQ(got, v);
    };
    check(wide);
    check(sign);
    check(close);
  });
}

TEST(sort, along_every_axis) {
  std::vector<float> v;
  for (int i = 0; i < 4 * 70 * 3; ++i) v.push_back(static_cast<float>(i * 7919 % 101));
  const Tensor x = Tensor::from(v, {4, 70, 3});
  for (const int64_t axis : {0, 1, 2, -1, -2, -3}) {
    const auto [sorted, order] = x.sort(axis);
    EXPECT_EQ(sorted.shape(), x.shape());
    const Tensor rows = sorted.transpose(axis, -1);
    const int64_t n = rows.size(-1);
    const auto got = rows.reshape({-1, n}).tolist<float>();
    auto want = x.transpose(axis, -1).reshape({-1, n}).tolist<float>();
    for (auto at = want.begin(); at != want.end(); at += n) std::sort(at, at + n);
    EXPECT_EQ(got, want) << axis;
    EXPECT_EQ(x.gather(axis, order).tolist<float>(), sorted.tolist<float>()) << axis;
  }
  for (const int64_t n : {1, 20, 70}) {
    const Tensor y = Tensor::from(std::vector<float>(v.begin(), v.begin() + 2 * n), {2, n});
    expect_same_everywhere(y.argsort(1));
    expect_same_everywhere(y.sort(1, true).first);
  }
}

TEST(sort, of_nothing_and_of_one) {
  const auto [none, places] = Tensor::zeros({0}).sort();
  EXPECT_EQ(none.shape(), (Shape{0}));
  EXPECT_EQ(places.shape(), (Shape{0}));
  EXPECT_EQ(Tensor::zeros({3, 0}).argsort(0).shape(), (Shape{3, 0}));
  EXPECT_EQ(Tensor(2.5).sort().first.item(), 2.5);
  EXPECT_EQ(Tensor(2.5).argsort().item(), 0);
  EXPECT_EQ(Tensor::from<float>({7}).argsort().tolist<int>(), std::vector<int>{0});
  expect_error([] { (void)Tensor::zeros({2, 3}).sort(2); }, {"sort", "2"});
  expect_error([] { (void)Tensor::zeros({2, 3}).topk(4, 1); }, {"topk", "4", "3"});
  expect_error([] { (void)Tensor::zeros({2, 3}).topk(-1, 1); }, {"topk", "-1"});
}

TEST(sort, topk_takes_the_first_of_the_order) {
  in_both_modes([] {
    const float nan = std::nanf("");
    const Tensor x = Tensor::from<float>({3, 1, 3, nan, 2, 5, 1, 0}, {2, 4});
    const auto [most, at] = x.topk(2);
    EXPECT_EQ(at.tolist<int>(), (std::vector<int>{3, 0, 1, 0}));
    EXPECT_EQ(most.shape(), (Shape{2, 2}));
    EXPECT_EQ(most.tolist<float>()[3], 2);
    EXPECT_EQ(x.topk(3, 1, false).second.tolist<int>(), (std::vector<int>{1, 0, 2, 3, 2, 0}));
    EXPECT_EQ(x.topk(1, 0).second.tolist<int>(), (std::vector<int>{0, 1, 0, 0}));
    EXPECT_EQ(x.topk(0).first.shape(), (Shape{2, 0}));
  });
}

// Few of many: found among the parts whose first elements come first. Equal elements, also across
// parts, keep their order, and NaN is the largest.
TEST(sort, topk_of_long_rows_takes_the_first_of_the_order) {
  std::mt19937_64 random(test_seed());
  for (int64_t i = 0; i < test_cases(40); ++i) {
    const auto n = static_cast<int64_t>(1 + random() % (random() % 4 == 0 ? 20000 : 700)),
               k = std::min(n, static_cast<int64_t>(random() % 12)),
               rows = static_cast<int64_t>(1 + random() % 3);
    const int64_t distinct = random() % 2 == 0 ? 5 : 100000;
    const DType d = stored_dtypes()[random() % stored_dtypes().size()];
    const bool largest = random() % 2 == 0, across = random() % 2 == 0;
    SCOPED_TRACE(fmt::format("KOINE_TEST_SEED={} case {}: {} of {} rows of {} {}", test_seed(), i,
                             k, rows, n, dtype_name(d)));
    std::vector<double> v;
    for (int64_t j = 0; j < rows * n; ++j)
      v.push_back(is_float(d) && random() % 50 == 0
                      ? std::nan("")
                      : static_cast<double>(random() % static_cast<uint64_t>(distinct)));
    const Tensor x = Tensor::from(v, {rows, n}).cast(d).realize();
    const auto [values, order] = (across ? x.transpose(0, 1) : x).topk(k, across ? 0 : 1, largest);
    const auto got = (across ? order.transpose(0, 1) : order).tolist<int>();
    const auto taken = (across ? values.transpose(0, 1) : values).tolist<double>();
    const auto all = x.tolist<double>();
    for (int64_t r = 0; r < rows; ++r) {
      const auto want = sorted_positions({all.begin() + r * n, all.begin() + (r + 1) * n}, largest);
      for (int64_t j = 0; j < k; ++j) {
        const auto at = static_cast<size_t>(r * k + j);
        ASSERT_EQ(got[at], want[static_cast<size_t>(j)]) << r << " " << j;
        const double element = all[static_cast<size_t>(r * n + got[at])];
        ASSERT_TRUE(taken[at] == element || std::isnan(element)) << r << " " << j;
      }
    }
  }
  in_both_modes([] { expect_same_everywhere(Tensor(leaf({2, 150})).topk(3, 1).second); });
}

TEST(sort, unique_elements) {
  in_both_modes([] {
    EXPECT_EQ(Tensor::from<int32_t>({3, -1, 3, 7, -1, 3}).unique().tolist<int>(),
              (std::vector<int>{-1, 3, 7}));
    const auto v = Tensor::from<float>({0.0F, std::nanf(""), -0.0F, 2, std::nanf("")})
                       .unique()
                       .tolist<float>();
    ASSERT_EQ(v.size(), 3u);
    EXPECT_EQ(v[0], 0);
    EXPECT_EQ(v[1], 2);
    EXPECT_TRUE(std::isnan(v[2]));
    EXPECT_EQ(Tensor::from<int32_t>({4}).unique().tolist<int>(), std::vector<int>{4});
    EXPECT_EQ(Tensor::zeros({2, 0}).unique().shape(), (Shape{0}));
    std::vector<int32_t> many;
    for (int i = 0; i < 3000; ++i) many.push_back(i * i % 1009);
    const auto got = Tensor::from(many, {50, 60}).unique().tolist<int32_t>();
    std::sort(many.begin(), many.end());
    many.erase(std::unique(many.begin(), many.end()), many.end());
    EXPECT_EQ(got, many);
  });
}

TEST(sort, the_gradient_goes_to_the_elements_that_were_taken) {
  in_both_modes([] {
    Tensor x = Tensor::from<float>({3, 1, 2}).requires_grad();
    const Tensor weights = Tensor::from<float>({10, 20, 30});
    EXPECT_EQ((x.sort().first * weights).sum().gradient({x})[0].tolist<float>(),
              (std::vector<float>{30, 10, 20}));
    EXPECT_EQ(x.topk(2).first.square().sum().gradient({x})[0].tolist<float>(),
              (std::vector<float>{6, 0, 4}));
  });
}

// Four times the elements cost at most 4.4 times the operations and bytes.
TEST(sort, costs_its_elements) {
  in_both_modes([] {
    struct Case {
      const char* what;
      std::function<std::vector<Tensor>(int64_t)> values;
      double operations;
    };
    const std::vector<Case> cases{
        {"sort",
         [](int64_t n) {
           const auto [values, order] = Tensor(leaf({n})).sort();
           return std::vector<Tensor>{values, order};
         },
         120},
        {"rows", [](int64_t n) { return std::vector<Tensor>{Tensor(leaf({n, 3})).argsort(0)}; },
         400},
        {"many rows",
         [](int64_t n) { return std::vector<Tensor>{Tensor(leaf({n, 8})).argsort(1)}; }, 520},
        {"topk", [](int64_t n) { return std::vector<Tensor>{Tensor(leaf({n})).topk(9).first}; },
         24},
        {"bytes",
         [](int64_t n) { return std::vector<Tensor>{Tensor(leaf({n}, DType::UInt8)).argsort()}; },
         30},
        {"randperm", [](int64_t n) { return std::vector<Tensor>{Tensor::randperm(n)}; }, 240},
        {"the gradient of a sort",
         [](int64_t n) {
           Tensor x = Tensor(leaf({n})).contiguous().requires_grad();
           (void)x.realize();
           return (x.sort().first * x.detach()).sum().gradient({x});
         },
         140},
    };
    for (const Case& c : cases) {
      SCOPED_TRACE(c.what);
      const Counters one = counters_of(c.values(4096)), four = counters_of(c.values(16384));
      EXPECT_GE(one.operations, 4096);
      EXPECT_LE(one.operations, c.operations * 4096);
      EXPECT_LE(four.operations, 4.4 * one.operations);
      EXPECT_LE(four.bytes, 4.4 * one.bytes);
    }
  });
}

// Of positions in two axes, each decides a row and a column: no loop looks for either.
TEST(sort, gradients_along_the_last_axis_cost_their_elements) {
  constexpr int64_t width = 8;
  struct Case {
    const char* what;
    std::function<Tensor(const Tensor& x, const Tensor& rows, const Tensor& columns)> value;
    double operations;
  };
  const std::vector<Case> cases{
      {"sort", [](const Tensor& x, const Tensor&, const Tensor&) { return x.sort(1).first; }, 200},
      {"topk", [](const Tensor& x, const Tensor&, const Tensor&) { return x.topk(3, 1).first; },
       200},
      {"cummax", [](const Tensor& x, const Tensor&, const Tensor&) { return x.cummax(1); }, 20},
      {"scatter",
       [](const Tensor& x, const Tensor& rows, const Tensor&) {
         const Tensor places = (rows.unsqueeze(1) + Tensor::arange(width)) % width;
         return Tensor::zeros(x.shape()).scatter(1, places, x);
       },
       40},
      {"rows that are written",
       [](const Tensor& x, const Tensor& rows, const Tensor&) {
         Tensor t = Tensor::zeros(x.shape());
         t.setitem({rows}, x);
         return t;
       },
       40},
      {"elements that are picked",
       [](const Tensor& x, const Tensor& rows, const Tensor& columns) {
         return x[{rows, columns}];
       },
       20},
  };
  in_both_modes([&] {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.what);
      auto gradient = [&](int64_t n) {
        Tensor x = Tensor(leaf({n, width})).contiguous().requires_grad();
        const Tensor rows = (Tensor::arange(n) * 5 + 3) % n, columns = rows % width;
        Tensor::realize({x, rows, columns});
        const Tensor y = c.value(x, rows, columns);
        return (y * y).sum().gradient({x})[0];
      };
      const UOp small = gradient(7).uop();
      EXPECT_EQ(difference(interpret_bounded(small, bindings_of(small)), run_on(small, "CPU")), "");
      const Counters one = counters_of({gradient(512)}), four = counters_of({gradient(2048)});
      EXPECT_GE(one.operations, 512 * width);
      EXPECT_LE(one.operations, c.operations * 512 * width);
      EXPECT_LE(four.operations, 4.4 * one.operations);
      EXPECT_LE(four.bytes, 4.4 * one.bytes);
    }
  });
}

// It looks at how many there are, so what it computes on the way counts too.
TEST(sort, unique_costs_its_elements) {
  in_both_modes([] {
    auto cost = [](int64_t n) {
      const Tensor x = Tensor(leaf({n}, DType::Int32)).contiguous().realize();
      reset_counters();
      (void)x.unique().realize();
      return counters();
    };
    const Counters one = cost(4096), four = cost(16384);
    EXPECT_GE(one.operations, 4096);
    EXPECT_LE(one.operations, 240 * 4096);
    EXPECT_LE(four.operations, 4.4 * one.operations);
    EXPECT_LE(four.bytes, 4.4 * one.bytes);
  });
}

TEST(sort, a_random_batch_reads_its_rows_only) {
  constexpr int64_t n = 20000;
  const Tensor xs = Tensor(leaf({n, 3})).contiguous();
  (void)xs.realize();
  const Tensor batch = xs[Tensor::randperm(n).shrink({{0, 8}})];
  const Tensor distances = (xs.reshape({n, 1, 3}) - batch.reshape({1, 8, 3})).square().sum({2});
  const Counters cost = counters_of({distances});
  EXPECT_LE(cost.bytes, 4e7) << "and not n x n";
  EXPECT_LE(cost.operations, 1e7);
  EXPECT_LE(cost.temporary_bytes, 100000000);
}

TEST(sort, randperm_is_a_permutation_of_any_length) {
  for (const int64_t n : {0, 1, 2, 64, 65, 1000, 100000}) {
    auto v = Tensor::randperm(n).tolist<int>();
    ASSERT_EQ(static_cast<int64_t>(v.size()), n);
    if (n >= 1000) {
      EXPECT_FALSE(std::is_sorted(v.begin(), v.end()));
    }
    std::sort(v.begin(), v.end());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(v[static_cast<size_t>(i)], i);
  }
  expect_error([] { (void)Tensor::randperm(-1); }, {"randperm", "-1"});
}

}  // namespace koine::test

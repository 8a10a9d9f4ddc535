// Tensors that are made of nothing: constants, sequences and random numbers.
#include <map>
#include <set>

#include "plain.hpp"

namespace koine::test {
namespace {
using enum DType;
}

TEST(methods, creation) {
  on_both(false, [] {
    auto expect = [](const std::vector<Real>& want, const Tensor& got, DType d, double units = 0) {
      EXPECT_EQ(difference(row_of(d, want), got, {units, 1}), "") << got;
    };
    for (const DType d : number_dtypes) {
      expect({1, 1, 1}, Tensor::ones({3}, d), d);
      expect({0, 0}, Tensor::zeros({2}, d), d);
      expect({1, 0, 0, 0, 1, 0, 0, 0, 1}, Tensor::eye(3, d).flatten(), d);
      const Tensor like = Tensor::zeros({2}, d);
      expect({1, 1}, like.ones_like(), d);
      expect({0, 0}, like.ones_like().zeros_like(), d);
      expect({d == Bool ? Real(1) : 3, d == Bool ? Real(1) : 3}, like.full_like(3), d);
      expect({}, Tensor::full({0}, 1, d), d);
      if (d == Bool) continue;
      expect({5, 5, 5, 5}, Tensor::full({2, 2}, 5, d).reshape({4}), d);
      expect({2, 5, 8}, Tensor::arange(2, 11, 3, d), d);
      expect({11, 8, 5}, Tensor::arange(11, 2, -3, d), d);
      expect({}, Tensor::arange(3, 3, 1, d), d);
    }
    expect({0, 1, 2, 3}, Tensor::arange(4), Int32);
    expect({-4, -2, 0}, Tensor::arange(-4, 1, 2), Int32);
    // With fractions float32, each rounded once; the stop itself is left out.
    expect({0, 0.25, 0.5, 0.75}, Tensor::arange(0, 1, 0.25), Float32);
    expect({1.5, 0.5, -0.5}, Tensor::arange(1.5F, -1.5, -1), Float32);
    expect({0, 1, 2}, Tensor::arange(0, 2.5, 1, Int64), Int64);
    expect({0, 0.1F, 0.2F, 0.3F}, Tensor::arange(0, 0.35, 0.1), Float32);
    expect({}, Tensor::arange(0, -1.0), Float32);
    // full takes the dtype of its value where none is named.
    expect({7, 7}, Tensor::full({2}, 7), Int32);
    expect({7, 7}, Tensor::full({2}, int64_t{7}), Int64);
    expect({0.5, 0.5}, Tensor::full({2}, 0.5), Float32);
    expect({1, 1}, Tensor::full({2}, true), Bool);
    EXPECT_EQ(Tensor::eye(0).shape(), (Shape{0, 0}));
    expect({}, Tensor::linspace(2, 3, 0), Float32);
    expect({2}, Tensor::linspace(2, 3, 1), Float32);
    expect({2, 3}, Tensor::linspace(2, 3, 2), Float32);
    expect({3, 1.5L, 0, -1.5L, -3}, Tensor::linspace(3, -3, 5), Float32);
  });
}

// As NumPy's: each number is the nearest float32 of the exact one, and the last is `stop` itself.
TEST(methods, linspace_is_rounded_once_and_ends_at_stop) {
  on_both(false, [] {
    for (const auto& [start, stop] : {std::pair{0.0, 1.0},
                                      {-1.0, 1.0},
                                      {1e-3, 1e3},
                                      {5.0, 5.0},
                                      {1e6, 1e6 + 1},
                                      {-0.1, 0.7},
                                      {0.0, 1e-40}})
      for (const int64_t n : {2, 3, 7, 10, 50, 101}) {
        std::vector<Real> want;
        for (int64_t i = 0; i < n; ++i)
          want.push_back(start + (static_cast<Real>(stop) - start) * static_cast<Real>(i) /
                                     static_cast<Real>(n - 1));
        const Tensor got = Tensor::linspace(start, stop, n);
        EXPECT_EQ(difference(row_of(Float32, want), got, {0.501}), "") << start << " to " << stop;
        EXPECT_EQ(got.tolist<float>().back(), static_cast<float>(stop));
      }
  });
}

namespace {

// Numbers in [low, high) whose mean and variance are a uniform distribution's.
void expect_uniform(const Tensor& got, double low, double high) {
  const auto x = got.tolist<double>();
  double sum = 0, squares = 0, least = 1, most = 0;
  for (const double v : x) {
    ASSERT_TRUE(v >= low && v <= high) << v;
    const double u = (v - low) / (high - low);
    sum += u, squares += u * u;
    least = std::min(least, u), most = std::max(most, u);
  }
  const auto n = static_cast<double>(x.size());
  EXPECT_NEAR(sum / n, 0.5, 6 * std::sqrt(1 / 12.0 / n)) << low << " to " << high;
  EXPECT_LT(least, 20 / n) << low << " to " << high;
  EXPECT_GT(most, 1 - 20 / n) << low << " to " << high;
  EXPECT_NEAR(squares / n, 1 / 3.0, 6 * std::sqrt(4 / 45.0 / n)) << low << " to " << high;
}

}  // namespace

TEST(methods, random_numbers) {
  on_both(false, [] {
    Tensor::manual_seed(test_seed());
    expect_uniform(Tensor::rand({40, 50}), 0, 1);
    expect_uniform(Tensor::uniform({2000}, -3, 5), -3, 5);
    expect_uniform(Tensor::uniform({2000}, 2, 2.5), 2, 2.5);
    const double gain = std::sqrt(2 / (1 + 0.01 * 0.01)), fan = 25 * 4;
    expect_uniform(Tensor::kaiming_uniform({20, 25, 4}), -gain * std::sqrt(3 / fan),
                   gain * std::sqrt(3 / fan));
    expect_uniform(Tensor::glorot_uniform({20, 25, 4}), -std::sqrt(6 / (20 + fan)),
                   std::sqrt(6 / (20 + fan)));
    const double row = gain * std::sqrt(3 / 2000.0);  // of one axis all are what comes in
    expect_uniform(Tensor::kaiming_uniform({2000}), -row, row);
    expect_uniform(Tensor::glorot_uniform({2000}), -std::sqrt(6 / 4000.0), std::sqrt(6 / 4000.0));
    const nn::Linear linear(16, 100);
    expect_uniform(linear.weight, -0.25, 0.25);
    expect_uniform(linear.bias, -0.25, 0.25);
    const nn::Conv2d conv(8, 40, 3, {}, 2);
    expect_uniform(conv.weight, -1 / 6.0, 1 / 6.0);  // 4 channels of 3 times 3
    const auto normal = Tensor::randn({3000}).tolist<double>();
    double moments[5] = {};
    for (const double v : normal)
      for (int k = 1; k < 5; ++k) moments[k] += std::pow(v, k) / 3000;
    EXPECT_NEAR(moments[1], 0, 6 / std::sqrt(3000));
    EXPECT_NEAR(moments[2], 1, 6 * std::sqrt(2 / 3000.0));
    EXPECT_NEAR(moments[3], 0, 6 * std::sqrt(15 / 3000.0));
    EXPECT_NEAR(moments[4], 3, 6 * std::sqrt(96 / 3000.0));
  });
}

TEST(methods, random_integers_and_orders) {
  on_both(false, [] {
    Tensor::manual_seed(test_seed());
    const Tensor drawn = Tensor::randint({7, 500}, -3, 4);
    EXPECT_EQ(drawn.dtype(), Int32);
    std::map<int, int> counts;
    for (const int v : drawn.tolist<int>()) ++counts[v];
    EXPECT_EQ(counts.size(), 7u);
    for (const auto& [value, count] : counts) {
      EXPECT_TRUE(value >= -3 && value < 4) << value;
      EXPECT_NEAR(count, 500, 6 * std::sqrt(500)) << value;
    }
    EXPECT_EQ(Tensor::randint({3}, INT32_MAX, int64_t{INT32_MAX} + 1).tolist<int>(),
              (std::vector<int>{INT32_MAX, INT32_MAX, INT32_MAX}));
    std::set<std::vector<int>> orders;
    for (int64_t i = 0; i < 20; ++i) orders.insert(Tensor::randperm(3).tolist<int>());
    for (const auto& order : orders)
      EXPECT_EQ(std::set(order.begin(), order.end()), (std::set{0, 1, 2}));
    EXPECT_GE(orders.size(), 4u);
    EXPECT_EQ(Tensor::randperm(0).tolist<int>(), std::vector<int>());
    EXPECT_EQ(Tensor::randperm(1).tolist<int>(), std::vector<int>{0});
  });
}

// Sequences and draws that no memory holds: what is read of them is computed.
TEST(methods, more_elements_than_memory_holds) {
  for (const int64_t n : {(int64_t{1} << 30) + 5, int64_t{1} << 32, (int64_t{1} << 40) + 123}) {
    SCOPED_TRACE(n);
    const auto last = [&](const Tensor& t) { return t.shrink({{n - 3, n}}).contiguous(); };
    EXPECT_EQ(last(Tensor::arange(0, n, 1, Int64)).tolist<int64_t>(),
              (std::vector<int64_t>{n - 3, n - 2, n - 1}));
    constexpr int64_t middle = int64_t{1} << 30;
    const Tensor row = Tensor::arange(0, n, 1, Int64).shrink({{middle - 1, middle + 2}}) + 0;
    EXPECT_EQ(row.contiguous().tolist<int64_t>(),
              (std::vector<int64_t>{middle - 1, middle, middle + 1}));
    // A draw goes on where the one before ended.
    Tensor::manual_seed(test_seed());
    const std::vector<float> drawn = last(Tensor::rand({n})).tolist<float>();
    Tensor::manual_seed(test_seed());
    (void)Tensor::rand({n - 3});
    EXPECT_EQ(Tensor::rand({3}).tolist<float>(), drawn);
  }
}

// A number is dropped, or kept and divided by the chance to be kept.
TEST(methods, dropout) {
  std::mt19937_64 random(test_seed());
  on_both(false, [&] {
    Tensor::manual_seed(test_seed());
    for (const double p : {0.5, 0.25, 0.9}) {
      const Tensor x = Tensor::full({4000}, 3.0).contiguous();
      const auto got = x.dropout(p).tolist<float>();
      const auto kept = static_cast<float>(3.0F * static_cast<float>(1 / (1 - p)));
      int64_t dropped = 0;
      for (const float v : got) {
        ASSERT_TRUE(v == 0 || v == kept) << v;
        dropped += v == 0;
      }
      EXPECT_NEAR(static_cast<double>(dropped), 4000 * p, 6 * std::sqrt(4000 * p * (1 - p)));
      EXPECT_EQ(x.dropout(p, false).tolist<float>(), x.tolist<float>());
      EXPECT_EQ(nn::Dropout(p)(x, false).tolist<float>(), x.tolist<float>());
      EXPECT_NE(nn::Dropout(p)(x, true).tolist<float>(), x.tolist<float>());
    }
    const Tensor wild = Tensor::from<float>({NAN, INFINITY, 2});
    EXPECT_EQ(wild.dropout(1).tolist<float>(), (std::vector<float>{0, 0, 0}));
    EXPECT_EQ(wild.dropout(0)[2].item<float>(), 2);
  });
}

}  // namespace koine::test

// Values that change from call to call are no constants of a program: literals and the offsets of
// slices.
#include <cmath>
#include <limits>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {
namespace {

int64_t compiled_in(const std::function<void()>& action) {
  clear_compile_cache();
  const int64_t before = counters().compiled;
  action();
  return counters().compiled - before;
}

TEST(literals, a_rate_that_changes_compiles_once_more) {
  in_both_modes([] {
    const auto start = Tensor::rand({300}).tolist<float>(), slope = start;
    Tensor w = Tensor::from(start, {300}).realize();
    const Tensor g = Tensor::from(slope, {300}).realize();
    std::vector<double> expected(start.begin(), start.end());
    EXPECT_EQ(compiled_in([&] {
                for (int i = 1; i <= 50; ++i) {
                  const auto rate = static_cast<double>(0.1F / static_cast<float>(i));
                  w = (w - g * rate).realize();
                  for (size_t k = 0; k < 300; ++k)
                    expected[k] -= static_cast<double>(slope[k]) * rate;
                }
              }),
              2);
    const auto got = w.tolist<float>();
    for (size_t k = 0; k < 300; ++k) EXPECT_NEAR(got[k], expected[k], 1e-5) << k;
  });
}

TEST(literals, slices_that_move_compile_once_more) {
  const Tensor x = Tensor::arange(1000).cast(DType::Float32).reshape({100, 10}).realize();
  EXPECT_EQ(compiled_in([&] {
              for (int64_t i = 0; i < 20; ++i)
                EXPECT_EQ((x[Slice{i * 5, (i + 1) * 5}].sum().item()), 50 * i * 50 + 49 * 25);
            }),
            2);
  EXPECT_EQ(compiled_in([&] {
              for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(x[i].sum().item(), 100 * i + 45);
            }),
            2);
  const int64_t moved = compiled_in([&] {
    for (int64_t i = 0; i < 9; ++i)
      for (int64_t j = 0; j < 10; ++j) EXPECT_EQ(x[i][j].item(), 10 * i + j);
  });
  EXPECT_EQ(moved, 3) << "one offset changed first, then both";
}

TEST(literals, a_cache_that_is_written_row_by_row) {
  Tensor cache = Tensor::zeros({12, 4}).clone().realize();
  for (int64_t i = 0; i < 12; ++i) {
    Tensor row = cache[Slice{i, i + 1}];
    row.assign(Tensor::full({1, 4}, static_cast<double>(i) + 0.5));
    cache.realize();
  }
  const auto got = cache.tolist<float>();
  for (size_t k = 0; k < got.size(); ++k) EXPECT_EQ(got[k], static_cast<float>(k / 4) + 0.5F) << k;
}

TEST(literals, values_on_several_devices_compile_once_more) {
  in_both_modes([] {
    const auto numbers = Tensor::rand({8, 6}).tolist<float>();
    for (const int64_t axis : {0, 1}) {
      Tensor w = Tensor::from(numbers, {8, 6}).shard("CPU,CPU:1", axis).realize();
      const Tensor g = Tensor::from(numbers, {8, 6}).realize(),
                   there = g.shard("CPU,CPU:1", axis).realize();
      const int64_t once = compiled_in([&] { (void)(w - there * 0.5).realize(); });
      std::vector<double> expected(numbers.begin(), numbers.end());
      EXPECT_EQ(compiled_in([&] {
                  for (int i = 1; i <= 20; ++i) {
                    const auto rate = static_cast<double>(0.1F / static_cast<float>(i));
                    w = (w - there * rate).realize();
                    for (size_t k = 0; k < numbers.size(); ++k)
                      expected[k] -= static_cast<double>(numbers[k]) * rate;
                  }
                }),
                2 * once);
      const auto got = w.to("CPU").tolist<float>();
      for (size_t k = 0; k < got.size(); ++k) EXPECT_NEAR(got[k], expected[k], 1e-5) << k;
    }
    // Part of it on one device, part on another, the interpreter too.
    const Tensor x = Tensor::from(numbers, {8, 6}).realize();
    for (const char* other : {"CPU:1", "INTERP"}) {
      auto value = [&](int64_t i) {
        const double by = static_cast<double>(i) + 0.5;
        return ((x[Slice{i, i + 2}] * by).to(other) + by).to("CPU") - by;
      };
      const int64_t once = compiled_in([&] { (void)value(0).realize(); });
      EXPECT_EQ(compiled_in([&] {
                  for (int64_t i = 0; i < 6; ++i) {
                    const auto got = value(i).tolist<float>();
                    for (size_t k = 0; k < got.size(); ++k)
                      EXPECT_NEAR(
                          got[k],
                          numbers[static_cast<size_t>(i) * 6 + k] * (static_cast<float>(i) + 0.5F),
                          1e-5);
                  }
                }),
                2 * once)
          << other;
    }
  });
}

// Each value is that of the interpreter, whichever came before it.
TEST(literals, every_value_is_computed_with_its_own) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> numbers{1, 0, -0.0, 2.5, NAN, inf, -inf, 1e-40, -1, 3e38, 2.5, 0.1};
  for (const DType d :
       {DType::Float32, DType::Float64, DType::Float16, DType::Int32, DType::UInt8}) {
    std::mt19937_64 random(test_seed());
    const UOp x = random_leaf(random, {7}, d);
    for (const double number : numbers) {
      if (!is_float(d) && !(std::abs(number) <= 3)) continue;
      const UOp c =
          expand(reshape(constant(d, is_float(d) ? number : std::abs(number)), shape_of({1})),
                 shape_of({7}));
      const UOp value = add(mul(x, c), maximum(c, x));
      const OptionScope scope(strict_options());
      const std::vector<UOp> got = realize({value});
      EXPECT_EQ(difference(interpret(value, bindings_of(value)), array_of(got[0])), "")
          << dtype_name(d) << ' ' << number;
    }
  }
}

// KOINE_DEBUG=2 says, once, which literal became a Variable.
TEST(literals, what_became_a_variable_is_said) {
  clear_compile_cache();
  const Tensor x = Tensor::arange(40).cast(DType::Float32).reshape({10, 4}).realize();
  Options talking = options();
  talking.debug = 2;
  const auto lines = [&](const std::function<Tensor()>& value) {
    const OptionScope scope(talking);
    ::testing::internal::CaptureStderr();
    (void)value().tolist<float>();
    const std::string all = ::testing::internal::GetCapturedStderr();
    const size_t from = all.find("literal:");
    return from == std::string::npos ? "" : all.substr(from, all.find('\n', from) - from);
  };
  const auto scaled = [&](double by) { return lines([&] { return x * Tensor(by); }); };
  EXPECT_EQ(scaled(0.1), "");
  EXPECT_EQ(scaled(0.1), "");
  EXPECT_EQ(scaled(-2.5),
            "literal: the float32 number -2.5 became a Variable: it was 0.1 in an earlier program "
            "that is equal otherwise");
  EXPECT_EQ(scaled(3), "") << "it is one already";
  const auto row = [&](int64_t i) { return lines([&] { return x[i].exp(); }); };
  EXPECT_EQ(row(2), "");
  EXPECT_EQ(row(7),
            "literal: the offset 7 of a slice along axis 0 became a Variable: it was 2 in an "
            "earlier program that is equal otherwise");
  talking.debug = 1;
  clear_compile_cache();
  EXPECT_EQ(scaled(0.1) + scaled(0.2), "");
}

// Differences of 64-bit numbers leave 64 bits: such a number is no place to count from.
TEST(literals, the_ends_of_64_bits) {
  const std::vector<int64_t> ends{5, INT64_MAX, INT64_MIN, -1, 0, INT64_MAX - 1};
  const Tensor x = Tensor::from(ends, {6}).realize(),
               narrow = Tensor::from<int32_t>({-4, 7}).realize();
  for (const int64_t number : ends) {
    SCOPED_TRACE(number);
    const Tensor literal(constant_int(DType::Int64, number));
    std::vector<int> less, more, near;
    for (const int64_t v : ends) less.push_back(v < number), more.push_back(number < v);
    for (const int64_t v : {-4, 7}) near.push_back(number < v);
    EXPECT_EQ((x < literal).tolist<int>(), less);
    EXPECT_EQ((literal < x).tolist<int>(), more);
    EXPECT_EQ((literal < narrow.cast(DType::Int64)).tolist<int>(), near);
    EXPECT_EQ((x + literal).tolist<int64_t>()[3],
              static_cast<int64_t>(static_cast<uint64_t>(number) - 1));
    const auto bits = static_cast<uint64_t>(number);
    const Tensor words = x.bitcast(DType::UInt64), word(constant_bits(DType::UInt64, bits));
    for (size_t i = 0; i < ends.size(); ++i) {
      less[i] = static_cast<uint64_t>(ends[i]) < bits;
      more[i] = bits < static_cast<uint64_t>(ends[i]);
    }
    EXPECT_EQ((words < word).tolist<int>(), less);
    EXPECT_EQ((word < words).tolist<int>(), more);
  }
}

}  // namespace
}  // namespace koine::test

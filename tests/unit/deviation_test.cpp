// How far a value may lie from that of the formula, for it was computed in another order.
#include "koine/interp/deviation.hpp"

#include <cmath>

#include "check.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {

TEST(deviation, folds_in_any_order_stay_within_the_bound) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 300; ++i) {
    const Op op = i % 3 == 0 ? Op::Mul : i % 3 == 1 ? Op::Add : Op::Max;
    const bool whole = i % 2 == 0;
    std::vector<Bits> values;
    for (int k = 0; k < 2 + i % 30; ++k)
      values.push_back(double_to_bits(
          DType::Float32, whole ? static_cast<double>(static_cast<int64_t>(random() % 3) - 1)
                                : std::ldexp(static_cast<double>(random() % 100001) - 5e4,
                                             static_cast<int>(random() % 20) - 25)));
    Fold fold(op, DType::Float32, {true, false});
    for (const Bits v : values) fold.add({v, 0, 0});
    const Deviating got = fold.result(true);
    const double value = bits_to_double(DType::Float32, got.bits);
    if (whole && op != Op::Max) {
      EXPECT_EQ(got.deviation, 0);
    }
    for (int order = 0; order < 20; ++order) {
      std::shuffle(values.begin(), values.end(), random);
      Fold other(op, DType::Float32, {});
      for (const Bits v : values) other.add({v, 0, 0});
      const double shuffled = bits_to_double(DType::Float32, other.result(true).bits);
      EXPECT_LE(std::abs(shuffled - value), got.deviation) << op_name(op);
    }
  }
}

// Every order and nesting of three numbers, zeros of both signs, infinities, NaN and the ends of
// the range among them: what comes out differently lies within the bound, or nothing is promised.
TEST(deviation, folds_of_three_special_numbers_in_every_order) {
  const std::vector<float> corners{0,   -0.0f, 1,      -1,    0.1f,   3,      inf,    -inf,
                                   NAN, 3e38f, -3e38f, 2e19f, 1e-45f, 1e-30f, -1e-30f};
  int64_t promised = 0, all = 0;
  for (const Op op : {Op::Add, Op::Mul, Op::Max})
    for (const float a : corners)
      for (const float b : corners)
        for (const float c : corners) {
          Fold fold(op, DType::Float32, {true, false});
          std::vector<Bits> values;
          for (const float v : {a, b, c}) values.push_back(double_to_bits(DType::Float32, v));
          for (const Bits v : values) fold.add({v, 0, 0});
          const Deviating got = fold.result(false);
          auto both = [&](Bits x, Bits y) {
            return interpret_scalar(op, DType::Float32, DType::Float32, std::array{x, y});
          };
          const double value = bits_to_double(DType::Float32, got.bits);
          ++all;
          promised += got.deviation == 0 ? 1 : 0;
          std::vector<size_t> order{0, 1, 2};
          do {
            const Bits x = values[order[0]], y = values[order[1]], z = values[order[2]];
            for (const Bits other : {both(both(x, y), z), both(x, both(y, z))}) {
              const double seen = bits_to_double(DType::Float32, other);
              if (other == got.bits || (std::isnan(seen) && std::isnan(value))) continue;
              const bool finite = std::isfinite(seen) && std::isfinite(value);
              const double apart = finite ? std::abs(seen - value) : undetermined;
              ASSERT_TRUE(got.deviation > 0 && got.deviation >= apart)
                  << op_name(op) << " of " << a << ", " << b << ", " << c << ": " << seen
                  << " in another order, " << value << " +- " << got.deviation;
            }
          } while (std::ranges::next_permutation(order).found);
        }
  EXPECT_GT(promised * 10, all * 5) << "of those that no order changes most are known to be so";
}

TEST(deviation, a_bound_is_no_excuse_for_a_wrong_sum) {
  Fold fold(Op::Add, DType::Float32, {true, true});
  for (int k = 1; k <= 100; ++k) fold.add({double_to_bits(DType::Float32, 0.1 * k), 0, 0});
  const Deviating sum = fold.result(true);
  EXPECT_NEAR(bits_to_double(DType::Float32, sum.bits), 505, 1e-3);
  EXPECT_GT(sum.deviation, 0);
  EXPECT_LT(sum.deviation, 0.01);
}

TEST(deviation, overflow_in_one_order_leaves_a_sum_open) {
  const Bits big = double_to_bits(DType::Float32, 3e38),
             less = double_to_bits(DType::Float32, -3e38);
  Fold fold(Op::Add, DType::Float32, {true, false});
  for (const Bits v : {big, big, less}) fold.add({v, 0, 0});
  EXPECT_EQ(fold.result(true).deviation, undetermined);
  Fold nan(Op::Add, DType::Float32, {true, false});
  for (const double v : {1.0, std::nan(""), 2.0})
    nan.add({double_to_bits(DType::Float32, v), 0, 0});
  EXPECT_EQ(nan.result(true).deviation, 0);
}

}  // namespace koine::test

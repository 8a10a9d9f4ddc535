// Values that change from call to call are no constants of a program: literals and the offsets of
// slices.
#include <cmath>
#include <limits>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/tensor/random.hpp"

namespace koine::test {
namespace {

int64_t compiled_in(const std::function<void()>& action) {
  clear_compile_cache();
  const int64_t before = counters().compiled;
  action();
  return counters().compiled - before;
}

constexpr double infinity = std::numeric_limits<double>::infinity();

// A function of a tensor and of a number that a program knows, and what it means.
struct WithNumber {
  const char* name;
  DType dtype;
  Tensor (*value)(const Tensor& x, double number);
  double (*meaning)(double x, double number);
  std::vector<double> ordinary, special;
  int64_t further = 0;  // programs that special numbers have for themselves
};

int64_t whole(double number) { return static_cast<int64_t>(number); }
double wrapped(double a) { return static_cast<int32_t>(static_cast<int64_t>(a)); }
double floored_quotient(double a, double b) { return b == 0 ? 0 : wrapped(std::floor(a / b)); }
double remainder_of(double a, double b) { return b == 0 ? 0 : a - b * std::floor(a / b); }
double left_shifted(double a, double by) {
  return by > 31 ? 0
                 : static_cast<int32_t>(static_cast<uint32_t>(static_cast<int32_t>(a))
                                        << static_cast<int>(by));
}
double right_shifted(double a, double by) {
  return static_cast<int32_t>(a) >> static_cast<int>(std::min(by, 31.0));
}
double whole_power(double a, double e) {
  if (e < 0) return std::fabs(a) == 1 ? std::pow(a, e) : 0;
  uint32_t out = 1;
  for (int k = 0; k < static_cast<int>(e); ++k)
    out *= static_cast<uint32_t>(static_cast<int32_t>(a));
  return static_cast<int32_t>(out);
}

const std::vector<WithNumber>& with_numbers() {
  const std::vector<double> divisors{7, 3, 10, 1000, 12, -5},
      special_divisors{1, -1, 0, 2, 8, INT32_MIN, INT32_MAX};
  static const auto& all = *new const std::vector<WithNumber>{
      {"pow",
       DType::Float32,
       [](const Tensor& x, double e) { return x.pow(e); },
       [](double x, double e) { return std::pow(x, e); },
       {0.3, 1.7, 3, -2.5, 5},
       {0, 0.5, 1, 2, -1, -0.0, NAN, infinity, -infinity},
       1},  // 2, which is x * x
      {"number to the power of a tensor",
       DType::Float32,
       [](const Tensor& x, double base) { return Tensor(base).pow(x); },
       [](double x, double base) { return std::pow(base, x); },
       {0.3, 1.7, 3, 2.5, 5},
       {0, 1, 2, -1, -0.0, NAN, infinity}},
      {"power of integers, exponents of three bits",
       DType::Int32,
       [](const Tensor& x, double e) { return x.pow(whole(e)); },
       whole_power,
       {4, 5, 6, 7},
       {0, 1, 2, 3, -1, -2, -3},
       7},  // of fewer bits, and negative ones
      {"floor division", DType::Int32, [](const Tensor& x, double by) { return x.idiv(whole(by)); },
       floored_quotient, divisors, special_divisors},
      {"remainder", DType::Int32, [](const Tensor& x, double by) { return x.mod(whole(by)); },
       remainder_of, divisors, special_divisors},
      {"remainder of floats",
       DType::Float64,
       [](const Tensor& x, double by) { return x.mod(by); },
       [](double x, double by) {
         if (std::isinf(by) && std::isfinite(x)) return x == 0 || (x < 0) == (by < 0) ? x : by;
         const double r = std::fmod(x, by);
         return r != 0 && (r < 0) != (by < 0) ? r + by : r;
       },
       {0.5, 0.75, 3, -1.25},
       {0, 1, -1, NAN, infinity, -infinity}},
      {"left shift",
       DType::Int32,
       [](const Tensor& x, double by) { return x.lshift(whole(by)); },
       left_shifted,
       {1, 2, 5, 7},
       {0, 31, 32, 100}},
      {"right shift",
       DType::Int32,
       [](const Tensor& x, double by) { return x.rshift(whole(by)); },
       right_shifted,
       {1, 2, 5, 7},
       {0, 31, 32, 100}},
  };
  return all;
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

// Of a product only what may be picked is computed, wherever that begins.
TEST(literals, what_data_picks_from_a_slice_that_moves_is_a_part_of_it) {
  const int64_t rows = 64, columns = 24, inner = 8;
  auto numbers = [](const Shape& shape, int64_t by) {
    const Tensor all = Tensor::arange(shape[0] * shape[1]) * by % 7 - 3;
    return all.cast(DType::Float32).reshape(shape).realize();
  };
  const Tensor a = numbers({rows, inner}, 3), b = numbers({inner, columns}, 5);
  const std::vector<float> product = a.matmul(b).tolist<float>();
  const auto two = Tensor::from<int32_t>({0, 1, -1, 0});
  std::vector<int32_t> far;
  for (int32_t i = 0; i < 2 * columns; ++i) far.push_back(i * 7 % 50 % 40);
  const Tensor many = Tensor::from(far, {2 * columns}),
               columns_of_two = (Tensor::arange(2 * columns).reshape({2, columns}) % 2).realize();
  struct Case {
    const char* what;
    std::function<Tensor(const Tensor&, int64_t)> value;
    std::function<int64_t(int64_t place, int64_t from)> at;  // in the product, row-major
    double rows;                                             // that may be picked from
    int64_t last;
  };
  auto two_rows = [](const Tensor& x, int64_t from) { return x[{Slice{from, from + 2}}]; };
  auto stretch = [=](const Tensor& x, int64_t from) {
    const int64_t start = from * 19;
    return x.flatten()[{Slice{start, start + 40}}];
  };
  const std::vector<Case> cases{
      {"rows",
       [=](const Tensor& x, int64_t from) { return two_rows(x, from).index_select(0, two); },
       [=](int64_t k, int64_t from) {
         const int64_t row = k / columns;
         return (from + (row == 1 || row == 2 ? 1 : 0)) * columns + k % columns;
       },
       2, 62},
      {"gathered",
       [=](const Tensor& x, int64_t from) { return two_rows(x, from).gather(0, columns_of_two); },
       [=](int64_t k, int64_t from) { return (from + k % 2) * columns + k % columns; }, 2, 62},
      {"places in rows",
       [=](const Tensor& x, int64_t from) {
         return two_rows(x, from).flatten().index_select(0, many);
       },
       [=](int64_t k, int64_t from) { return from * columns + far[static_cast<size_t>(k)]; }, 2,
       62},
      {"places in a stretch of all elements",
       [=](const Tensor& x, int64_t from) { return stretch(x, from).index_select(0, many); },
       [=](int64_t k, int64_t from) { return from * 19 + far[static_cast<size_t>(k)]; }, 3, 78},
  };
  for (const Case& c : cases) {
    clear_compile_cache();
    for (const int64_t from : std::vector<int64_t>{0, 7, 31, c.last, c.last - 1, 5}) {
      reset_counters();
      const std::vector<float> got = c.value(a.matmul(b), from).tolist<float>();
      EXPECT_LE(counters().operations,
                2 * inner * columns * c.rows + 20 * static_cast<double>(got.size()))
          << c.what << " from " << from;
      for (size_t k = 0; k < got.size(); ++k)
        EXPECT_EQ(got[k], product[static_cast<size_t>(c.at(static_cast<int64_t>(k), from))])
            << c.what << " from " << from << " at " << k;
    }
  }
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
      // Sums that differ in their number alone share a kernel, where they are on one kind of
      // device.
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
                once + 3)
          << other;
    }
  });
}

// Each value is that of the interpreter, whichever came before it.
TEST(literals, every_value_is_computed_with_its_own) {
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

// Exponents, divisors and distances of shifts: ordinary numbers are two programs, and special ones
// mean what they mean to a program that knows them.
TEST(literals, exponents_divisors_and_shifts_compile_once_more) {
  in_both_modes([] {
    for (const WithNumber& row : with_numbers()) {
      SCOPED_TRACE(row.name);
      const std::vector<double> numbers{-100, -13, -2, -1, 0, 1, 2, 5, 77, INT32_MAX, INT32_MIN};
      const bool floats = is_float(row.dtype);
      const Tensor x = (floats ? Tensor::from<double>({-2.5, -1, -0.0, 0, 0.3, 1, 2, 7.25})
                               : Tensor::from(numbers, {11}))
                           .cast(row.dtype)
                           .realize();
      const auto given = x.tolist<double>();
      auto check = [&](double number) {
        SCOPED_TRACE(number);
        const UOp value = row.value(x, number).uop();
        const Array got = array_of(realize({value})[0]);
        EXPECT_EQ(
            difference(options().strict ? BoundedArray{interpret(value, bindings_of(value)), {}}
                                        : interpret_bounded(value, bindings_of(value)),
                       got),
            "");
        const auto results = Tensor(value).tolist<double>();
        for (size_t k = 0; k < given.size(); ++k) {
          const double want = row.meaning(given[k], number);
          if (std::isnan(want))
            EXPECT_TRUE(std::isnan(results[k])) << given[k];
          else if (floats && std::isfinite(want))
            EXPECT_NEAR(results[k], want, 1e-6 * std::fabs(want)) << given[k];
          else
            EXPECT_EQ(results[k], want) << given[k];
        }
      };
      EXPECT_EQ(compiled_in([&] {
                  for (const double number : row.ordinary) check(number);
                }),
                2);
      const int64_t before = counters().compiled;
      for (const double number : row.special) check(number);
      EXPECT_EQ(counters().compiled - before, row.further);
    }
  });
}

// However it is written, a number is one constant: the dtype's.
TEST(literals, a_whole_number_is_the_same_program_as_a_float) {
  const Tensor x = small({8}).realize(), narrow = x.cast(DType::Float16);
  EXPECT_EQ(x.pow(2).uop(), (x * x).uop());
  EXPECT_EQ(x.pow(3).uop(), x.pow(3.0).uop());
  EXPECT_EQ((x * 3).uop(), (x * 3.0).uop());
  EXPECT_EQ((x + true).uop(), (x + 1).uop());
  EXPECT_EQ((narrow * 2049).uop(), (narrow * 2049.0).uop());
  EXPECT_EQ(x.masked_fill(x > 0, 1).uop(), x.masked_fill(x > 0, 1.0).uop());
}

// Of what is put somewhere, or read from somewhere, the place and what lies around are no part of
// the program; sizes are.
TEST(literals, places_of_pads_and_rolls_compile_once_more) {
  in_both_modes([] {
    const auto numbers = small({5, 12}).tolist<float>();
    const Tensor x = Tensor::from(numbers, {5, 12}).realize();
    const auto at = [&](int64_t i, int64_t j) { return numbers[static_cast<size_t>(i * 12 + j)]; };
    EXPECT_EQ(compiled_in([&] {
                for (const int64_t before : {3, 0, 1, 4, 2})
                  for (const double fill : {0.5, -1.0, infinity, -0.0, 0.0}) {
                    const auto got =
                        x.pad({{0, 0}, {before, 4 - before}}, Tensor(fill)).tolist<float>();
                    for (int64_t i = 0; i < 5; ++i)
                      for (int64_t j = 0; j < 16; ++j)
                        EXPECT_EQ(got[static_cast<size_t>(i * 16 + j)],
                                  j < before || j >= before + 12 ? static_cast<float>(fill)
                                                                 : at(i, j - before));
                  }
              }),
              3)
        << "the fill changed first, then both";
    const auto remainder = [](int64_t v, int64_t n) { return (v % n + n) % n; };
    for (const int64_t axis : {0, 1}) {
      EXPECT_EQ(compiled_in([&] {
                  for (const int64_t shift : {1, 2, 3, -1, 0, 12, 60, -7, 11, 5}) {
                    const auto got = x.roll(shift, axis).tolist<float>();
                    for (int64_t i = 0; i < 5; ++i)
                      for (int64_t j = 0; j < 12; ++j)
                        EXPECT_EQ(got[static_cast<size_t>(i * 12 + j)],
                                  axis == 0 ? at(remainder(i - shift, 5), j)
                                            : at(i, remainder(j - shift, 12)))
                            << shift;
                  }
                }),
                3)
          << "one by nothing at all is a copy";
    }
  });
}

// The gradient of a slice is a pad, and that of a roll a slice of pads.
TEST(literals, gradients_of_what_moves_compile_once_more) {
  const auto numbers = small({40}).tolist<float>();
  Tensor w = Tensor::from(numbers, {40}).realize();
  w.requires_grad();
  EXPECT_EQ(compiled_in([&] {
              for (const int64_t from : {3, 0, 8, 20, 33}) {
                const Tensor part = w[Slice{from, from + 7}];
                const auto got = (part * part).sum().gradient({w})[0].tolist<float>();
                for (int64_t k = 0; k < 40; ++k) {
                  const auto i = static_cast<size_t>(k);
                  EXPECT_EQ(got[i], from <= k && k < from + 7 ? 2 * numbers[i] : 0) << from;
                }
              }
            }),
            2);
  EXPECT_EQ(compiled_in([&] {
              for (const int64_t shift : {3, 1, 8, -5, 33}) {
                const auto got =
                    (w.roll(shift, 0) * w.detach()).sum().gradient({w})[0].tolist<float>();
                for (int64_t k = 0; k < 40; ++k)
                  EXPECT_EQ(got[static_cast<size_t>(k)],
                            numbers[static_cast<size_t>((k + shift + 40) % 40)])
                      << shift;
              }
            }),
            2);
  EXPECT_EQ(compiled_in([&] {
              for (const double exponent : {1.5, 3.0, 2.5, 4.0, 0.5}) {
                const auto got = w.square().pow(exponent).sum().gradient({w})[0].tolist<float>();
                for (size_t k = 0; k < 40; ++k) {
                  const double v = numbers[k];
                  EXPECT_NEAR(got[k], exponent * std::pow(v * v, exponent - 1) * 2 * v, 1e-4);
                }
              }
            }),
            2);
}

// What a loop does in its steps, and a branch where it is taken, is known as well as what is done
// around them.
TEST(literals, numbers_in_loops_and_branches_compile_once_more) {
  in_both_modes([] {
    const auto numbers = small({6, 5}).tolist<float>();
    const Tensor rows = Tensor::from(numbers, {6, 5}).realize();
    auto nothing_behind_two = [](const std::function<void(double)>& run) {
      clear_compile_cache();
      run(0.25);
      run(0.75);
      const int64_t before = counters().compiled;
      for (const double number : {-0.5, 3.0, 0.75}) run(number);
      EXPECT_EQ(counters().compiled, before);
    };
    nothing_behind_two([&](double number) {
      const auto sum = [&](const Tensor& x) {
        return scan(
                   [&](const Tensor& carry, const Tensor& row) {
                     const Tensor next = carry * number + row;
                     return std::pair(next, next * 2);
                   },
                   Tensor::zeros({5}), x)
            .first;
      };
      const auto got = sum(rows).tolist<float>();
      const auto slopes = grad([&](const Tensor& x) { return sum(x).sum(); })(rows).tolist<float>();
      for (size_t k = 0; k < 5; ++k) {
        double want = 0;
        for (size_t row = 0; row < 6; ++row) {
          want = want * number + static_cast<double>(numbers[row * 5 + k]);
          const double slope = std::pow(number, 5 - static_cast<double>(row));
          EXPECT_NEAR(slopes[row * 5 + k], slope, 1e-5 * std::fabs(slope));
        }
        EXPECT_NEAR(got[k], want, 1e-4 * (1 + std::fabs(want)));
      }
    });
    nothing_behind_two([&](double number) {
      const Tensor got = fori_loop(
          0, 4, [&](const Tensor&, const Tensor& x) { return x.roll(1, 0) + number; }, rows[0]);
      for (size_t k = 0; k < 5; ++k)
        EXPECT_NEAR(got.tolist<float>()[k], numbers[(k + 1) % 5] + 4 * number, 1e-4);
    });
    nothing_behind_two([&](double number) {
      const double bound = 10 + std::fabs(number);
      const Tensor got = while_loop([&](const Tensor& x) { return x < bound; },
                                    [&](const Tensor& x) { return x + std::fabs(number); },
                                    rows.square().sum() * 0);
      EXPECT_NEAR(got.item(), std::ceil(bound / std::fabs(number)) * std::fabs(number), 1e-4);
    });
    nothing_behind_two([&](double number) {
      const Tensor x = rows[0].contiguous();
      const Tensor got = cond(
          rows.square().sum() > 0, [&](const Tensor& v) { return v * number; },
          [&](const Tensor& v) { return v - number; }, x);
      for (size_t k = 0; k < 5; ++k)
        EXPECT_EQ(got.tolist<float>()[k], numbers[k] * static_cast<float>(number));
    });
  });
}

// A bound of random whole numbers is a divisor.
TEST(literals, bounds_of_random_numbers_compile_once_more) {
  const random::Key key(3);
  EXPECT_EQ(compiled_in([&] {
              for (const int64_t high : {10, 6, 7, 100, 1 << 20}) {
                const auto got = random::randint(key, {200}, -2, high).tolist<int64_t>();
                for (const int64_t v : got) EXPECT_TRUE(-2 <= v && v < high) << v;
                const UOp value = random::randint(key, {200}, -2, high).uop();
                EXPECT_EQ(
                    difference(interpret(value, bindings_of(value)), array_of(realize({value})[0])),
                    "")
                    << high;
              }
            }),
            2);
}

// KOINE_DEBUG=2 says, once, which literal became a Variable.
// Kernels of one program that differ in numbers alone are one, which takes them as arguments.
TEST(literals, terms_of_a_series_are_compiled_once) {
  constexpr int64_t n = 64;
  for (const DType dtype : {DType::Float32, DType::Float64}) {
    const Tensor x = (Tensor::arange(n).cast(dtype) * (1.0 / n)).realize();
    Tensor series = x;
    constexpr int terms = 100;
    for (int i = 0; i < terms; ++i) series = series + (x * (i + 0.5)).sin() * (1.0 / (i + 1));
    clear_compile_cache();
    reset_counters();
    const std::vector<double> got = series.cast(DType::Float64).tolist<double>();
    EXPECT_GE(counters().kernels, 8);
    EXPECT_LE(counters().compiled, 4);
    for (int64_t k = 0; k < n; ++k) {
      const double at = static_cast<double>(k) / n;
      double expected = at;
      for (int i = 0; i < terms; ++i) expected += std::sin(at * (i + 0.5)) / (i + 1);
      EXPECT_NEAR(got[static_cast<size_t>(k)], expected, dtype == DType::Float32 ? 2e-5 : 1e-12);
    }
  }
  // Numbers of any kind, in each dtype; what is equal in all stays a constant.
  for (const DType dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64}) {
    const std::vector<double> numbers{3, -0.5, infinity, -0.0, std::nan(""), 0.25};
    const Tensor x = Tensor::from<float>({-2, 0, 1}).cast(dtype).realize();
    std::vector<Tensor> all;
    for (const double number : numbers) all.push_back((x.sum() * number + 1.0).maximum(-7.0));
    clear_compile_cache();
    reset_counters();
    Tensor::realize(all);
    EXPECT_LE(counters().compiled, 3) << dtype_name(dtype);
    for (size_t k = 0; k < numbers.size(); ++k) {
      const double expected = -numbers[k] + 1, got = all[k].item();
      EXPECT_TRUE(std::isnan(numbers[k]) ? std::isnan(got) : got == std::max(expected, -7.0))
          << dtype_name(dtype) << " " << numbers[k] << " " << got;
    }
  }
}

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
  const auto padded = [&](int64_t before) {
    return lines([&] { return x.pad({{0, 0}, {before, 3 - before}}); });
  };
  EXPECT_EQ(padded(1), "");
  EXPECT_EQ(padded(2),
            "literal: the offset 2 of a pad along axis 1 became a Variable: it was 1 in an "
            "earlier program that is equal otherwise");
  talking.debug = 1;
  clear_compile_cache();
  EXPECT_EQ(scaled(0.1) + scaled(0.2), "");
}

// Differences of 64-bit numbers leave 64 bits: such a number is no place to count from.
// A number of a function that is traced takes the dtype of what it meets, until it is assigned to.
TEST(literals, what_stands_for_a_number_does_so_while_nothing_else_is_assigned) {
  const Tensor narrow = Tensor::ones({2}, DType::Float16);
  Tensor n = Tensor::from<float>({2}).reshape({}).standing_for_number();
  EXPECT_TRUE(n.stands_for_number());
  EXPECT_EQ((narrow * n).dtype(), DType::Float16);
  n.assign(Tensor::from<float>({3}).reshape({}));
  EXPECT_FALSE(n.stands_for_number());
  EXPECT_EQ((narrow * n).dtype(), DType::Float32);
}

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

// Default mode: kernels may fuse products into sums and add in another order. How far a result may
// then be from the real number is stated in docs/switches.md, and checked here by a running error
// analysis: beside each float32 graph stand its value and its error bound, both in float64.
#include <cmath>

#include "check.hpp"
#include "isolate.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {
namespace {

constexpr double roundoff = 0x1p-24;  // of float32
constexpr double tiny = 0x1p-149;     // what underflow may lose

UOp number(double v) { return constant(DType::Float64, v); }
UOp magnitude(const UOp& x) { return maximum(x, neg(x)); }

// A float32 graph, its exact value, and how far the former may be from the latter.
struct Bounded {
  UOp graph, value, error;

  // One more rounding of a result that is `exact` up to `error`, of at most `ulps` half-ulps.
  static Bounded rounded(UOp graph, UOp exact, const UOp& error, double halves = 1) {
    const UOp rounding = mul(add(magnitude(exact), error), number(halves * roundoff));
    return {std::move(graph), std::move(exact), add(add(error, rounding), number(tiny))};
  }
  template <class Move>
  Bounded moved(const Move& move) const {
    return {move(graph), move(value), move(error)};
  }
};

class Generator {
 public:
  explicit Generator(std::mt19937_64& random) : random_(random) {}

  Bounded run() {
    Bounded x = leaf({1 + below(5), 1 + below(40), 1 + below(40)});
    const int64_t steps = 2 + below(7);
    for (int64_t i = 0; i < steps; ++i) x = step(x);
    return x;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  Bounded leaf(const std::vector<int64_t>& sizes) {
    int64_t n = 1;
    for (const int64_t s : sizes) n *= s;
    std::vector<float> data;
    for (int64_t i = 0; i < n; ++i)
      data.push_back(
          std::ldexp(static_cast<float>(below(4001) - 2000), static_cast<int>(below(8)) - 14));
    const UOp graph = buffer_from_host(shape_of(sizes), DType::Float32, "CPU", data.data());
    return {graph, cast(graph, DType::Float64), mul(cast(graph, DType::Float64), number(0))};
  }
  Bounded partner(const Bounded& x) {
    std::vector<int64_t> sizes = x.graph.sizes();
    for (int64_t& s : sizes)
      if (below(4) == 0) s = 1;
    return leaf(sizes);
  }

  static Bounded sum(const Bounded& a, const Bounded& b) {
    return Bounded::rounded(add(a.graph, b.graph), add(a.value, b.value), add(a.error, b.error));
  }
  static Bounded product(const Bounded& a, const Bounded& b) {
    const UOp error = add(add(mul(magnitude(a.value), b.error), mul(magnitude(b.value), a.error)),
                          mul(a.error, b.error));
    return Bounded::rounded(mul(a.graph, b.graph), mul(a.value, b.value), error);
  }
  // Any order of adding n terms, and of first multiplying them out.
  Bounded reduced(const Bounded& x) {
    std::vector<int64_t> axes;
    int64_t n = 1;
    for (size_t i = 0; i < x.graph.rank(); ++i)
      if (below(2) == 0) {
        axes.push_back(static_cast<int64_t>(i));
        n *= x.graph.sizes()[i];
      }
    if (axes.empty()) return x;
    auto over = [&](Op op, const UOp& v) { return reduce(op, v, axes); };
    if (below(4) == 0)
      return {over(Op::Max, x.graph), over(Op::Max, x.value), over(Op::Max, x.error)};
    const double gamma = reorder_bound(Op::Add, DType::Float32, n, adds_products(x.graph));
    const UOp inherited = over(Op::Add, x.error),
              size = over(Op::Add, add(magnitude(x.value), x.error));
    return {over(Op::Add, x.graph), over(Op::Add, x.value),
            add(add(inherited, mul(size, number(gamma))), number(static_cast<double>(n) * tiny))};
  }
  Bounded exponential(const Bounded& x) {
    // 2^x of something in [-8, 8]: 2 ulp are 4 half-ulps.
    const auto inside = [&](const UOp& v) {
      const UOp low = constant(v.dtype(), -8), high = constant(v.dtype(), 8);
      return minimum(maximum(v, low), high);
    };
    const UOp exact = unary(Op::Exp2, inside(x.value));
    const UOp spread = mul(exact, sub(unary(Op::Exp2, x.error), number(1)));
    return Bounded::rounded(unary(Op::Exp2, inside(x.graph)), exact, spread, 4);
  }

  Bounded step(const Bounded& x) {
    switch (below(8)) {
      case 0:
        return sum(x, partner(x));
      case 1:
        return product(x, partner(x));
      case 2:  // what a target may fuse
        return sum(product(x, partner(x)), partner(x));
      case 3: {
        const Bounded y = partner(x);
        return {maximum(x.graph, y.graph), maximum(x.value, y.value), maximum(x.error, y.error)};
      }
      case 4:
        return x.moved([&](const UOp& v) { return flip(permute(v, {2, 0, 1}), {0, 1, 1}); });
      case 5:
        return exponential(x);
      default:
        return reduced(x);
    }
  }

  std::mt19937_64& random_;
};

}  // namespace

TEST(fuzz, default_mode_stays_within_the_stated_bound) {
  const uint64_t seed = test_seed();
  const int64_t cases = test_cases(1500);
  double worst = 0;
  int64_t elements = 0, unbounded = 0;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(i));
    const Bounded x = Generator(random).run();
    Array value, error;
    {
      const OptionScope scope(strict_options());
      value = interpret(x.value, bindings_of(x.value));
      error = interpret(x.error, bindings_of(x.error));
    }
    const Array got = run_on(x.graph, "CPU");
    ASSERT_EQ(got.sizes, value.sizes);
    for (size_t k = 0; k < got.data.size(); ++k) {
      const double real = bits_to_double(DType::Float64, value.data[k]),
                   bound = bits_to_double(DType::Float64, error.data[k]),
                   computed = bits_to_double(DType::Float32, got.data[k]);
      ++elements;
      if (std::isnan(bound)) {  // of an exponential whose operand may be off by any amount
        ++unbounded;
        continue;
      }
      if (bound > 0) worst = std::max(worst, std::abs(computed - real) / bound);
      ASSERT_LE(std::abs(computed - real), bound * (1 + 1e-9))
          << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i)
          << " KOINE_TEST_CASES=1: element " << k << " is " << computed << " instead of " << real
          << "\n"
          << to_text(x.graph);
    }
  }
  RecordProperty("largest_error_in_bounds", std::to_string(worst));
  EXPECT_GT(worst, 1e-3) << "the bound says nothing";
  EXPECT_LE(unbounded, elements / 1000) << "the bound says nothing";
}

namespace {

Tensor rows_of(const Tensor& v, int64_t first, int64_t end) {
  SizePairs bounds{{first, end}};
  for (int64_t k = 1; k < v.ndim(); ++k) bounds.push_back({0, v.size(k)});
  return v.shrink(bounds);
}

// A value behind what rules see through, where a place is known: of a product in it the last
// operation is none that a rounding could be told by.
Tensor behind_choices(const Tensor& v, std::mt19937_64& random) {
  const Tensor other = v * (v.flip({0}) + 0.25);
  const int64_t rows = v.size(0).present();
  switch (random() % 13) {
    case 0:
      return Tensor::cat({other, v}, 0);
    case 1:
      return Tensor::stack({v, other}, 0);
    case 2:
      return other.index_select(0, Tensor::randint({rows + 2}, 0, rows).realize());
    case 3: {
      std::vector<int64_t> sizes(static_cast<size_t>(v.ndim()), 1);
      sizes[0] = rows;
      return Tensor::where(Tensor::arange(rows).reshape(sizes) > rows / 2, other, v);
    }
    case 4: {
      Tensor out = v.clone();
      rows_of(out, 0, 1).assign(rows_of(other, 0, 1));
      return out;
    }
    case 5:
      return other.roll(1, 0);
    case 6:
      return other * Tensor::ones(v.shape());
    case 7:
      return -(-other);
    case 8:
      return other + 0.3;
    case 9:
      return v * 1.1 + v.flip({v.ndim() - 1});
    case 10:
      return v - v.mean();
    case 11:
      return v / v.square().mean(-1, true).sqrt();
    default:
      return v;
  }
}

// The same value by way of others: turned and turned back, or in parts along an axis.
Tensor by_another_way(const Tensor& v, std::mt19937_64& random) {
  const auto axis = static_cast<int64_t>(random() % static_cast<uint64_t>(v.ndim()));
  const int64_t n = v.size(axis).present();
  if (random() % 2 == 0) return v.roll(1, axis).roll(-1, axis);
  const std::vector<Tensor> parts = v.split(std::max<int64_t>(1, n / 2), axis);
  return Tensor::cat(parts, axis);
}

}  // namespace

// However often a value is computed again, it is the same to all who read it: what they make of it
// is what they would make of its memory.
TEST(fuzz, default_mode_computes_a_value_the_same_wherever_it_is_read) {
  const uint64_t seed = test_seed();
  check_isolated(
      test_cases(800), 200,
      [&](int64_t i) {
        std::mt19937_64 random(seed + static_cast<uint64_t>(i));
        const UOp graph = Generator(random).run().graph;
        const OptionScope scope(Options{.strict = false});
        const Tensor v = behind_choices(Tensor(graph), random);
        const Tensor row = v.max(v.ndim() - 1, true), moved = v - row, more = v + 1.5;
        const int64_t rows = v.size(0).present(), at = static_cast<int64_t>(random() % rows);
        const Tensor one_row = rows_of(v, at, at + 1) + 1.5;
        const Tensor ways = by_another_way(v, random) != by_another_way(v, random);
        if ((ways & (v == v)).any().item() != 0)
          return "a value by two ways is two:\n" + to_text(v.uop());
        const bool stored = random() % 2 == 0;  // else all who read it compute it
        std::vector<Tensor> asked{moved, more, row, one_row};
        if (stored) asked.push_back(v);
        Tensor::realize(asked);
        const auto gaps = moved.tolist<float>(), sums = more.tolist<float>();
        if (std::any_of(gaps.begin(), gaps.end(), [](float g) { return g > 0; }))
          return "a value above the maximum of its row:\n" + to_text(graph);
        if (std::isfinite(row.sum().item()) && (moved == 0).any(-1).all().item() != 1)
          return "a row without its maximum:\n" + to_text(graph);
        const auto in_row = one_row.tolist<float>();
        for (size_t k = 0; k < in_row.size(); ++k)
          if (const float same = sums[static_cast<size_t>(at) * in_row.size() + k];
              !std::isnan(same) && in_row[k] != same)
            return fmt::format("element {} of row {} is {} alone and {} among all:\n{}", k, at,
                               in_row[k], same, to_text(v.uop()));
        if (!stored) return std::string();
        const auto values = v.tolist<float>();
        for (size_t k = 0; k < values.size(); ++k)
          if (!std::isnan(values[k]) && sums[k] != values[k] + 1.5F)
            return fmt::format("element {} is {}, and 1.5 more than it {}:\n{}", k, values[k],
                               sums[k], to_text(graph));
        return std::string();
      },
      [&](int64_t i, const std::string& problem) {
        ADD_FAILURE() << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i)
                      << " KOINE_TEST_CASES=1: " << problem;
        return false;
      });
}

}  // namespace koine::test

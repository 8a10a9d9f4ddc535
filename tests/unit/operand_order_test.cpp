// Which kernels there are, and what each costs, follows from the values: not from the order of
// operands, nor from that of what is asked for. Programs are as users write them, over sizes at
// which computing again and memory are weighed against each other.
#include <fmt/ranges.h>

#include "check.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/contents.hpp"
#include "koine/rules/simplify.hpp"
#include "settings.hpp"

namespace koine::test {
namespace {

// A few steps from three matrices; some of the values on the way are asked for as well.
class Programs {
 public:
  explicit Programs(uint64_t seed) : random_(seed) {
    static const auto& sizes = *new const std::vector<std::vector<int64_t>>{
        {24, 16, 12}, {5, 40, 7}, {64, 200, 32}, {3, 300, 33}, {130, 8, 8}};
    const std::vector<int64_t>& s = pick(sizes);
    rows_ = s[0], columns_ = s[1], others_ = s[2];
  }

  std::vector<UOp> values() {
    pool_ = {leaf({rows_, columns_}), leaf({rows_, columns_}), leaf({columns_, others_}),
             leaf({1, columns_})};
    const int64_t steps = 3 + below(10);
    for (int64_t i = 0; i < steps; ++i) pool_.push_back(step());
    std::vector<UOp> out{pool_.back().uop()};
    for (size_t i = 4; i + 1 < pool_.size(); ++i)
      if (below(4) == 0) out.push_back(pool_[i].uop());
    if (below(3) == 0)
      for (const Tensor& g : pool_.back().sum().gradient({pool_[0], pool_[2]}))
        out.push_back(g.uop());
    return out;
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  template <class T>
  const T& pick(const std::vector<T>& list) {
    return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
  }
  Tensor leaf(const Shape& shape) {
    std::vector<float> numbers;
    for (int64_t n = shape[0].present() * shape[1].present(); n > 0; --n)
      numbers.push_back(static_cast<float>(below(4001)) / 1024 - 2);
    Tensor out = Tensor::from(numbers, shape).realize();
    return out.requires_grad();
  }

  // Values made last are taken more often.
  const Tensor& any() {
    const auto n = static_cast<int64_t>(pool_.size());
    return pool_[static_cast<size_t>(std::max(below(n), below(n)))];
  }

  // Another value that broadcasts with one.
  Tensor beside(const Tensor& x) {
    std::vector<Tensor> fit;
    for (const Tensor& t : pool_) {
      bool fits = t.uop().rank() <= x.uop().rank();
      for (size_t i = 0; fits && i < t.uop().rank(); ++i) {
        const Size a = t.size(t.uop().rank() - 1 - i), b = x.size(x.uop().rank() - 1 - i);
        fits = a.present() == b.present() || a.present() == 1;
      }
      if (fits) fit.push_back(t);
    }
    return fit.empty() ? x : pick(fit);
  }

  Tensor step() {
    const Tensor& x = any();
    const bool matrix = x.uop().rank() == 2;
    const auto axis = static_cast<int64_t>(x.uop().rank()) - 1;
    switch (below(27)) {
      case 0:
        return x.exp();
      case 1:
        return x.sin() * 0.5;
      case 2:
        return x.gelu();
      case 3:
        return x * 2.0 + 1.0;
      case 4:
      case 5:
      case 6:
        return x + beside(x);
      case 7:
      case 8:
        return x * beside(x);
      case 9:
        return x - beside(x);
      case 10:
        return Tensor::where(x > 0.25, x, beside(x));
      case 11:
        return matrix ? x.sum(below(2), below(2) == 0) : x.relu();
      case 12:
        return matrix ? x.max(below(2), true) : x.sqrt();
      case 13:
        return matrix ? x.softmax(below(2)) : x.sum();
      case 14:
        return matrix ? x.log_softmax(1) : x.mean();
      case 15:
        return matrix ? x.layernorm() : x.reciprocal();
      case 16:
        return matrix ? x.transpose() : x.exp() + 1.0;
      case 17:
      case 18:
        for (const Tensor& w : pool_)
          if (matrix && w.uop().rank() == 2 && w.size(0).present() == x.size(1).present() &&
              w.size(1).present() <= 200)
            return x.matmul(w);
        return x.abs();
      case 19:
        return matrix ? Tensor::cat({x, x * 2.0}, below(2)) : x.neg();
      case 20:
        return matrix ? x.pad({{1, 0}, {0, 2}}).shrink({{0, x.size(0)}, {1, x.size(1) + 1}})
                      : x.abs();
      case 21:
        return matrix ? x.var(1, below(2) == 0) : x + 1.0;
      case 22:
        return matrix ? x.index_select(0, Tensor::from<int32_t>({-1, 0, -1}).realize()) : x.tanh();
      case 23:
        return x.maximum(beside(x)) * beside(x);
      case 24:
        return matrix ? Tensor::where(x == x.max(1, true), x, Tensor(0.0)) : x.sigmoid();
      case 25:
        return matrix ? (x.exp() * x).sum(below(2), true) + beside(x) : x.silu();
      default:
        return x.uop().rank() == 0 ? x.square()
               : below(2) == 0     ? x.cumsum(axis)
                                   : x.flip(Ints{axis});
    }
  }

  std::mt19937_64 random_;
  int64_t rows_, columns_, others_;
  std::vector<Tensor> pool_;
};

}  // namespace

TEST(operand_order, spec_C38_what_is_equal_but_for_it_is_one_node) {
  const UOp x = Tensor::full({3}, 0.5).clone().realize().uop(), y = Tensor(x).sin().uop();
  const auto shared = [](const UOp& a, const UOp& b) {
    const UOp both = share_commuted(tuple(std::vector<UOp>{a, b}));
    return both.src(0) == both.src(1);
  };
  EXPECT_TRUE(shared(add(x, y), add(y, x)));
  EXPECT_TRUE(shared(mul(y, add(x, y)), mul(add(y, x), y)));
  EXPECT_FALSE(shared(maximum(x, y), maximum(y, x))) << "of two zeros the left one";
  EXPECT_FALSE(shared(lt(x, y), lt(y, x)));
  EXPECT_FALSE(shared(add(x, y), mul(y, x)));
  // Kernels too: what a fold of one element leaves is what stands there in another order.
  const Tensor t = Tensor::full({1, 40}, 0.5).clone().realize(), beside = t - t.max(0, true);
  const UOp minus = t.neg().uop();
  EXPECT_EQ(counted_work({beside.uop(), Tensor(add(t.uop(), minus)).sin().uop()}),
            counted_work({beside.uop(), Tensor(add(minus, t.uop())).sin().uop()}));
}

TEST(operand_order, spec_C38_changes_no_choice_that_rules_find) {
  const UOp p = param(0, shape_of({}), DType::Bool), a = param(1, shape_of({}), DType::Float32),
            b = param(2, shape_of({}), DType::Float32), c = param(3, shape_of({}), DType::Float32);
  for (const auto& [x, y] : {std::pair(add(a, c), add(b, c)), {add(c, a), add(b, c)}}) {
    const UOp chosen = simplify(where(p, x, y));
    ASSERT_TRUE(chosen.is(Op::Add)) << to_text(chosen);
    EXPECT_EQ(count_ops(chosen, Op::Add), 1);
  }
}

TEST(operand_order, spec_C38_changes_no_kernel_of_programs) {
  const uint64_t seed = test_seed();
  int failures = 0;
  for (int64_t i = 0; i < test_cases(500) && failures < 3; ++i) {
    const uint64_t own = seed + static_cast<uint64_t>(i);
    std::vector<UOp> values = Programs(own).values();
    std::mt19937_64 random(own);
    const auto expected = counted_work(values);
    for (int k = 0; k < 3; ++k) {
      std::shuffle(values.begin(), values.end(), random);
      const UOp other = with_swapped_operands(tuple(values), random);
      const auto got = counted_work({other.src().begin(), other.src().end()});
      if (got == expected) continue;
      ++failures;
      ADD_FAILURE() << "KOINE_TEST_SEED=" << own << " KOINE_TEST_CASES=1: "
                    << fmt::format("work {} of {}\nand {} of {}", fmt::join(expected, " "),
                                   to_text(tuple(values)), fmt::join(got, " "), to_text(other));
      break;
    }
  }
}

// The same programs, whose kernels store values and folds of their rows beside each other: each
// value is to the bit what it is alone.
TEST(operand_order, spec_W11_programs_compute_what_the_interpreter_does) {
  const uint64_t seed = test_seed();
  for (int64_t i = 0; i < test_cases(60); ++i) {
    const uint64_t own = seed + static_cast<uint64_t>(i);
    const std::vector<UOp> values = Programs(own).values();
    std::mt19937_64 random(own);
    const Settings settings = draw_settings(random, "CPU", true);
    const OptionScope scope(options_of(settings));
    const std::vector<UOp> buffers = realize(values);
    for (size_t k = 0; k < values.size(); ++k)
      ASSERT_EQ(difference(interpret(values[k], bindings_of(values[k])), array_of(buffers[k])), "")
          << "KOINE_TEST_SEED=" << own << " KOINE_TEST_CASES=1: " << k << ", " << text_of(settings)
          << to_text(tuple(values));
  }
}

}  // namespace koine::test

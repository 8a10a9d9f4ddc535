// Symbolic rules against brute force: random index expressions over small ranges.
#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine::test {
namespace {

class Expressions {
 public:
  explicit Expressions(std::mt19937_64& random) : random_(random) {
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t low = below(2) == 0 ? 0 : below(7) - 3;
      const std::string name(1, static_cast<char>('i' + i));
      variables_.push_back(variable(name, low, low + 1 + below(6)));
    }
  }
  const std::vector<UOp>& variables() const { return variables_; }

  UOp index(int depth) {
    if (depth <= 0 || below(5) == 0)
      return below(3) == 0 ? index_const(below(13) - 4) : variables_[static_cast<size_t>(below(3))];
    const UOp a = index(depth - 1);
    switch (below(7)) {
      case 0:
        return mul(a, below(4) == 0 ? index(depth - 2) : index_const(below(9) - 2));
      case 1:
        return idiv(a, divisor(depth));
      case 2:
        return mod(a, divisor(depth));
      case 3:
        return maximum(a, index(depth - 1));
      case 4:
        return where(condition(depth - 1), a, index(depth - 1));
      default:
        return add(a, index(depth - 1));
    }
  }
  // Mostly a small constant, else of either sign, a size, or what may be 0 (C30: the quotient is
  // 0).
  UOp divisor(int depth) {
    switch (below(6)) {
      case 0:
        return index_const(-1 - below(5));
      case 1:
        return variables_[static_cast<size_t>(below(3))];
      case 2:
        return index(depth - 2);
      default:
        return index_const(1 + below(8));
    }
  }
  UOp condition(int depth) {
    const UOp a = index(depth), b = index(depth);
    switch (below(4)) {
      case 0:
        return ne(a, b);
      case 1:
        return logical_not(lt(a, b));
      case 2:
        return bit_and(lt(a, b), ne(b, index_const(below(5))));
      default:
        return lt(a, b);
    }
  }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
  std::mt19937_64& random_;
  std::vector<UOp> variables_;
};

}  // namespace

TEST(rules, random_index_expressions_keep_their_values_and_bounds) {
  const int64_t cases = test_cases(25000);
  for (int64_t n = 0; n < cases; ++n) {
    std::mt19937_64 random(test_seed() + static_cast<uint64_t>(n));
    Expressions make(random);
    const UOp before = n % 3 == 0 ? make.condition(3) : make.index(4);
    const UOp after = simplify(before);
    ASSERT_EQ(simplify(after), after) << "simplifying again changes\n"
                                      << dim_text(after) << "\ninto\n"
                                      << dim_text(simplify(after));
    const Interval bounds = before.bounds(), tight = after.bounds();
    const auto& v = make.variables();
    const Interval is = v[0].bounds(), js = v[1].bounds(), ks = v[2].bounds();
    for (int64_t i = is.low; i <= is.high; ++i)
      for (int64_t j = js.low; j <= js.high; ++j)
        for (int64_t k = ks.low; k <= ks.high; ++k) {
          const Bindings at{{v[0], {DType::Index, {}, {static_cast<Bits>(i)}, {}}},
                            {v[1], {DType::Index, {}, {static_cast<Bits>(j)}, {}}},
                            {v[2], {DType::Index, {}, {static_cast<Bits>(k)}, {}}}};
          const int64_t x = interpret_index(before, at), y = interpret_index(after, at);
          ASSERT_EQ(x, y) << "KOINE_TEST_SEED=" << test_seed() + static_cast<uint64_t>(n) << ": "
                          << dim_text(before) << " became " << dim_text(after) << " at " << i << ","
                          << j << "," << k;
          ASSERT_TRUE(x >= bounds.low && x <= bounds.high) << dim_text(before);
          ASSERT_TRUE(y >= tight.low && y <= tight.high) << dim_text(after);
        }
  }
}

TEST(rules, movement_chains_become_the_index_a_person_would_write) {
  const UOp i = range(0, index_const(8), AxisType::Loop),
            j = range(1, index_const(4), AxisType::Loop);
  const UOp flat = add(mul(i, index_const(4)), j);
  EXPECT_EQ(dim_text(simplify(idiv(flat, index_const(4)))), "L0");
  EXPECT_EQ(dim_text(simplify(mod(flat, index_const(4)))), "L1");
  EXPECT_EQ(dim_text(simplify(add(mul(idiv(flat, index_const(16)), index_const(16)),
                                  mod(flat, index_const(16))))),
            "L0*4+L1");
  EXPECT_EQ(dim_text(simplify(idiv(add(mul(i, index_const(6)), j), index_const(12)))), "L0//2");
  EXPECT_EQ(dim_text(simplify(lt(add(mul(i, index_const(4)), index_const(3)), index_const(16)))),
            "L0<4");
  EXPECT_EQ(simplify(lt(i, index_const(8))), constant_bool(true));
}

// 8 i + v < 10 for v in 3..5 is i < 1: what v is decides nothing, and that it is above 0 counts.
TEST(rules, terms_that_decide_no_comparison_are_dropped) {
  int dropped = 0;
  const auto mentions = [](const UOp& u, const UOp& variable) {
    const NodeList all = toposort(u);
    return std::find(all.begin(), all.end(), variable) != all.end();
  };
  for (const int64_t c : {4, 8})
    for (int64_t low = -4; low <= 5; low += 3)
      for (int64_t limit = -9; limit <= 26; ++limit) {
        const UOp i = variable("i", -1, 3), v = variable("v", low, low + 2),
                  before = lt(add(mul(i, index_const(c)), v), index_const(limit)),
                  after = simplify(before);
        dropped += mentions(after, i) && !mentions(after, v) ? 1 : 0;
        for (int64_t x = -1; x <= 3; ++x)
          for (int64_t y = low; y <= low + 2; ++y) {
            const Bindings at{{i, {DType::Index, {}, {static_cast<Bits>(x)}, {}}},
                              {v, {DType::Index, {}, {static_cast<Bits>(y)}, {}}}};
            ASSERT_EQ(interpret_index(after, at), x * c + y < limit)
                << dim_text(before) << " became " << dim_text(after) << " at " << x << ", " << y;
          }
      }
  EXPECT_GT(dropped, 50);
}

TEST(rules, an_index_is_whole) {
  const UOp r = range(0, index_const(9), AxisType::Loop);
  EXPECT_EQ(simplify(UOp::make(Op::Trunc, {add(r, index_const(2))})), add(r, index_const(2)));
}

TEST(rules, a_cycle_of_rules_stops_and_is_printed) {
  const RuleSet<> circle = {
      rule("a to b", node(Op::Exp2, {any(0)}),
           [](const Match& m) { return unary(Op::Log2, m[0]); }),
      rule("b to a", node(Op::Log2, {any(0)}),
           [](const Match& m) { return unary(Op::Exp2, m[0]); }),
  };
  try {
    (void)rewrite(unary(Op::Exp2, param(0, shape_of({}), DType::Float32)), circle);
    ADD_FAILURE() << "the circle was not noticed";
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("does not end"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("Log2"), std::string::npos);
  }
}

TEST(rules, a_source_that_becomes_its_user_is_a_cycle) {
  const UOp x = param(0, shape_of({}), DType::Float32);
  const UOp root = unary(Op::Exp2, unary(Op::Sqrt, x));
  const RuleSet<> inward = {
      rule("sqrt to the root", node(Op::Sqrt), [&](const Match&) { return root; })};
  EXPECT_THROW((void)rewrite(root, inward), InternalError);
}

TEST(rules, what_holds_no_op_of_the_rules_is_not_walked) {
  const UOp x = param(0, shape_of({}), DType::Float32);
  UOp chain = unary(Op::Sqrt, x);
  for (int i = 0; i < 100; ++i) chain = add(chain, x);
  const RuleSet<> none_here = {
      rule("exp2", node(Op::Exp2, {any(0)}), [](const Match& m) { return m[0]; })};
  const uint64_t before = rewrite_counters().visits;
  EXPECT_EQ(rewrite(chain, none_here), chain);
  EXPECT_EQ(rewrite_counters().visits, before);
  const RuleSet<> below = {
      rule("sqrt", node(Op::Sqrt, {any(0)}), [](const Match& m) { return m[0]; })};
  EXPECT_EQ(toposort(rewrite(chain, below)).size(), 102u)  // the sums, x and its shape
      << "found below what is no root";
}

TEST(rules, float_identities_that_are_wrong_do_not_fire) {
  const UOp x = param(0, shape_of({}), DType::Float32);
  EXPECT_NE(simplify(mul(x, constant(DType::Float32, 0))), constant(DType::Float32, 0))
      << "NaN and -0";
  EXPECT_NE(simplify(add(x, constant(DType::Float32, 0.0))), x) << "-0 + 0 is 0";
  EXPECT_EQ(simplify(add(x, constant(DType::Float32, -0.0))), x);
  EXPECT_NE(simplify(ne(x, x)), constant_bool(false)) << "NaN";
  const UOp n = param(0, shape_of({}), DType::Int8);
  const UOp four_n_plus_three =
      add(mul(n, constant_int(DType::Int8, 4)), constant_int(DType::Int8, 3));
  EXPECT_NE(simplify(idiv(four_n_plus_three, constant_int(DType::Int8, 4))), n)
      << "amendment C35: int8 wraps";
}

}  // namespace koine::test

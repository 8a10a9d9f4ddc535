// Index arithmetic with symbolic sizes: divisions by them, and Ranges that end at them.
#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine::test {
namespace {

// Random sums and products over n, i < n, j < n + 2 and m, divided by positive sizes.
class SizedExpressions {
 public:
  explicit SizedExpressions(std::mt19937_64& random) : random_(random) {}

  const UOp n = variable("n", 1, 5), m = variable("m", 1, 3), i = range(0, n, AxisType::Loop),
            j = range(1, add(n, index_const(2)), AxisType::Loop);

  UOp sum(int terms) {
    UOp out = index_const(below(7) - 3);
    for (int k = 0; k < terms; ++k) {
      UOp term = index_const(below(7) - 3);
      for (int64_t f = below(3); f >= 0; --f) term = mul(term, atom());
      out = add(out, term);
    }
    return out;
  }
  UOp size() {
    switch (below(5)) {
      case 0:
        return n;
      case 1:
        return sub(mul(n, index_const(2)), index_const(1));
      case 2:
        return mul(n, m);
      case 3:
        return add(n, m);
      default:
        return add(mul(n, n), index_const(1));
    }
  }
  UOp any() {
    const UOp a = sum(2 + static_cast<int>(below(3)));
    switch (below(6)) {
      case 0:
        return idiv(a, size());
      case 1:
        return mod(a, size());
      case 2:
        return idiv(add(mul(i, size()), j), size());
      case 3:
        return maximum(a, sum(2));
      case 4:
        return mod(add(mul(i, size()), j), sub(mul(n, index_const(2)), index_const(1)));
      default:
        return where(below(2) == 0 ? lt(a, sum(2)) : ne(a, sum(1)), index_const(1), index_const(0));
    }
  }

 private:
  UOp atom() {
    const UOp atoms[] = {n, i, j, m};
    return atoms[below(4)];
  }
  int64_t below(int64_t k) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(k)); }
  std::mt19937_64& random_;
};

Array scalar(int64_t v) { return {DType::Index, {}, {static_cast<Bits>(v)}, {}}; }

}  // namespace

TEST(rules, spec_amend_37_random_expressions_over_symbolic_sizes_keep_their_values) {
  const int64_t cases = test_cases(400);
  for (int64_t c = 0; c < cases; ++c) {
    std::mt19937_64 random(test_seed() + static_cast<uint64_t>(c));
    SizedExpressions make(random);
    const UOp before = make.any(), after = simplify(before);
    const IndexSpan span = index_span(simplify_index(before));
    for (int64_t n = 1; n <= 5; ++n)
      for (int64_t m = 1; m <= 3; ++m)
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < n + 2; ++j) {
            const Bindings at{
                {make.n, scalar(n)}, {make.m, scalar(m)}, {make.i, scalar(i)}, {make.j, scalar(j)}};
            const int64_t x = interpret_index(before, at), y = interpret_index(after, at);
            ASSERT_EQ(x, y) << "KOINE_TEST_SEED=" << test_seed() + static_cast<uint64_t>(c) << ": "
                            << dim_text(before) << " became " << dim_text(after) << " at n=" << n
                            << " m=" << m << " i=" << i << " j=" << j;
            ASSERT_TRUE(x >= span.low && x <= span.high)
                << dim_text(before) << " = " << x << " at n=" << n << " i=" << i << " j=" << j;
          }
  }
}

TEST(rules, spec_amend_37_symbolic_sizes_divide_and_compare) {
  const UOp n = variable("n", 1, 100), m = variable("m", 0, 100);
  const UOp i = range(0, n, AxisType::Loop), j = range(1, n, AxisType::Loop);
  const UOp width = sub(mul(n, index_const(2)), index_const(1));
  auto text = [](const UOp& u) { return dim_text(simplify(u)); };
  EXPECT_EQ(text(idiv(add(mul(i, n), j), n)), "L0");
  EXPECT_EQ(text(mod(add(mul(i, n), j), n)), "L1");
  EXPECT_EQ(text(mod(add(mul(i, mul(n, index_const(2))), j), width)), "L0+L1");
  EXPECT_EQ(simplify(lt(i, n)), constant_bool(true));
  EXPECT_EQ(simplify(lt(add(i, j), width)), constant_bool(true));
  EXPECT_FALSE(simplify(lt(add(i, j), sub(width, index_const(1)))).is(Op::Const));
  EXPECT_EQ(simplify(maximum(sub(n, i), index_const(1))), simplify(sub(n, i)));
  // A divisor that may be 0 stays: then the quotient is 0, and so is the remainder.
  for (const int64_t value : {0, 3}) {
    const Bindings at{{m, scalar(value)}};
    EXPECT_EQ(interpret_index(simplify(idiv(mul(m, index_const(5)), m)), at), value == 0 ? 0 : 5);
    EXPECT_EQ(interpret_index(simplify(idiv(m, m)), at), value == 0 ? 0 : 1);
    EXPECT_EQ(interpret_index(simplify(mod(m, m)), at), 0);
    EXPECT_EQ(interpret_index(simplify(mod(mul(m, n), m)), {{m, scalar(value)}, {n, scalar(7)}}),
              0);
  }
}

// At equality a < b is false, whether by bounds or by the normal form.
TEST(rules, comparisons_at_equality) {
  const UOp i = variable("i", 0, 9), three = index_const(3);
  EXPECT_EQ(simplify(lt(three, three)), constant_bool(false));
  EXPECT_EQ(simplify(lt(add(i, three), add(three, i))), constant_bool(false));
  // The rule by itself, where no bounds have decided before.
  EXPECT_EQ(rewrite(lt(add(i, three), add(three, i)), index_rules()), constant_bool(false));
  EXPECT_EQ(rewrite(lt(i, add(i, three)), index_rules()), constant_bool(true));
  EXPECT_EQ(rewrite(ne(i, add(i, three)), index_rules()), constant_bool(true));
  EXPECT_EQ(rewrite(ne(add(three, i), add(i, three)), index_rules()), constant_bool(false));
  EXPECT_EQ(simplify(lt(i, index_const(10))), constant_bool(true));
  EXPECT_EQ(simplify(lt(i, index_const(0))), constant_bool(false));
  EXPECT_FALSE(simplify(lt(i, index_const(9))).is(Op::Const)) << "i may be 9";
  EXPECT_FALSE(simplify(lt(index_const(0), i)).is(Op::Const)) << "i may be 0";
  EXPECT_EQ(simplify(lt(index_const(-1), i)), constant_bool(true));
  EXPECT_EQ(simplify(lt(index_const(9), i)), constant_bool(false));
  const UOp twice = mul(i, index_const(2));
  for (int64_t limit = -1; limit <= 19; ++limit)
    for (int64_t at = 0; at <= 9; ++at) {
      const Bindings bound{{i, scalar(at)}};
      EXPECT_EQ(interpret_index(simplify(lt(twice, index_const(limit))), bound), 2 * at < limit);
      EXPECT_EQ(interpret_index(simplify(lt(index_const(limit), twice)), bound), limit < 2 * at);
      EXPECT_EQ(interpret_index(simplify(ne(twice, index_const(limit))), bound), 2 * at != limit);
    }
}

}  // namespace koine::test

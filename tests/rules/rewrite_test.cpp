// The language that rules are written in: what a pattern matches, which rule of a set fires, and
// what the driver makes of it.
#include "koine/rewrite/rewrite.hpp"

#include <chrono>
#include <thread>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {
namespace {

bool matches(const Pat& pattern, const UOp& node) {
  Match m(node);
  return match(pattern.node(), node, m);
}

UOp number(int64_t value) { return constant_int(DType::Int32, value); }

TEST(patterns, two_sources_of_commutative_ops_match_in_either_order) {
  const UOp x = leaf({}, DType::Int32), y = mul(x, x);
  for (int i = 0; i < op_count; ++i) {
    const Op op = static_cast<Op>(i);
    if (op_info(op).group != GroupOp::Binary) continue;
    const Pat pattern = node(op, {any(0), node(Op::Mul, {any(1), any(1)})});
    const DType d = op == Op::Fdiv || op == Op::Pow ? DType::Float32 : DType::UInt64;
    const UOp a = cast(x, d), b = mul(a, a);
    const UOp ab = UOp::make(op, {a, b}), ba = UOp::make(op, {b, a});
    EXPECT_TRUE(matches(pattern, ab)) << op_name(op);
    EXPECT_EQ(matches(pattern, ba), is_commutative(op)) << op_name(op);
    // An op out of several says nothing of order.
    EXPECT_FALSE(matches(node(ops({Op::Add, op == Op::Add ? Op::Max : op}),
                              {any(0), node(Op::Mul, {any(1), any(1)})}),
                         ba))
        << op_name(op);
  }
  EXPECT_FALSE(matches(node_with(Op::Add, {any(0), node(Op::Mul, {any(1), any(1)})}), add(y, x)));
}

TEST(patterns, what_the_first_order_captured_is_forgotten_for_the_second) {
  const UOp x = leaf({}, DType::Int32), y = leaf({}, DType::Int32, 1);
  const UOp sum = UOp::make(Op::Add, {UOp::make(Op::Max, {x, y}), UOp::make(Op::Mul, {y, x})});
  Match m(sum);
  // In the order as written slot 1 takes y from the Max first and fails below the Mul.
  const Pat pattern = pat_max(any(0), any(1)) + node(ops({Op::Mul, Op::Idiv}), {any(1), any(0)});
  ASSERT_TRUE(match(pattern.node(), sum, m));
  EXPECT_EQ(m[0], x);
  EXPECT_EQ(m[1], y);
  Match n(sum);
  const Pat swapped = node(ops({Op::Mul, Op::Idiv}), {any(0), any(1)}) + pat_max(any(1), any(0));
  ASSERT_TRUE(match(swapped.node(), sum, n));
  EXPECT_EQ(n[0], y);
  EXPECT_EQ(n[1], x);
  EXPECT_EQ(n.root(), sum);
}

TEST(patterns, a_slot_twice_is_one_node) {
  const UOp x = leaf({}, DType::Int32), y = leaf({}, DType::Int32, 1);
  EXPECT_TRUE(matches(pat_idiv(any(0), any(0)), idiv(x, x)));
  EXPECT_FALSE(matches(pat_idiv(any(0), any(0)), idiv(x, y)));
  EXPECT_TRUE(matches(pat_idiv(any(0), any(1)), idiv(x, x)));
}

TEST(patterns, classes_of_dtypes) {
  struct Class {
    DTypeClass pattern;
    bool (*holds)(DType);
  };
  const std::vector<Class> classes{{DTypeClass::Any, [](DType) { return true; }},
                                   {DTypeClass::Index, [](DType d) { return d == DType::Index; }},
                                   {DTypeClass::Integer, [](DType d) { return is_integer(d); }},
                                   {DTypeClass::Float, [](DType d) { return is_float(d); }},
                                   {DTypeClass::Bool, [](DType d) { return d == DType::Bool; }}};
  std::vector<DType> all = stored_dtypes();
  all.push_back(DType::Index);
  for (const DType d : all)
    for (const Class& c : classes)
      EXPECT_EQ(matches(any(0).of(c.pattern), constant_int(d, 1)), c.holds(d)) << dtype_name(d);
}

// A commutative op inside of a pattern keeps the first order that fits it (docs/rules.md).
TEST(patterns, an_inner_order_is_not_taken_back) {
  const UOp a = leaf({}, DType::Int32), b = bitcast(leaf({}, DType::UInt32), DType::Int32);
  const Pat x = any(0), y = any(1);
  const UOp sum = add(a, b);
  ASSERT_TRUE(sum.src(0) == a);
  for (const bool swapped : {false, true}) {
    const auto times = [&](const UOp& other) {
      return swapped ? mul(other, sum) : mul(sum, other);
    };
    EXPECT_TRUE(matches((x + y) * x, times(a)));
    EXPECT_FALSE(matches((x + y) * x, times(b)));
    EXPECT_TRUE(matches((y + x) * x, times(b)));
  }
}

TEST(patterns, literals_are_constants_of_any_dtype_and_value) {
  EXPECT_TRUE(matches(Pat(3), number(3)));
  EXPECT_TRUE(matches(Pat(3), constant(DType::Float64, 3)));
  EXPECT_FALSE(matches(Pat(3), number(4)));
  EXPECT_FALSE(matches(Pat(3), leaf({}, DType::Int32)));
  EXPECT_TRUE(matches(any_const(0), number(4)));
  EXPECT_FALSE(matches(any_const(0), leaf({}, DType::Int32)));
}

TEST(patterns, an_invalid_constant_is_any_node_and_no_const) {
  const UOp nothing = invalid(DType::Int32);
  EXPECT_TRUE(matches(any(0), nothing));
  EXPECT_FALSE(matches(any_const(0), nothing));
  EXPECT_FALSE(matches(node(Op::Const), nothing));
}

TEST(patterns, the_number_of_sources_is_part_of_a_pattern) {
  const UOp x = leaf({4}, DType::Int32), part = shrink(x, shape_of({1}), shape_of({2}));
  ASSERT_EQ(part.src().size(), 3U);
  EXPECT_TRUE(matches(node(Op::Shrink), part));
  EXPECT_FALSE(matches(node(Op::Shrink, {any(0), any(1)}), part));
  EXPECT_TRUE(matches(node_with(Op::Shrink, {any(0), any(1)}), part));
  EXPECT_FALSE(matches(node_with(Op::Shrink, {any(0), any(1), any(2), any(3)}), part));
}

Rule<> becomes(const char* name, const Pat& pattern, const UOp& result) {
  return rule(name, pattern, [result](const Match&) { return result; });
}

TEST(rule_sets, the_first_rule_that_applies_wins) {
  const UOp x = leaf({}, DType::Int32), sum = add(x, number(5));
  const RuleSet<> refuses{rule("refuses", any(0) + any(1), [](const Match&) { return UOp(); }),
                          rule("itself", any(0) + any(1), [](const Match& m) { return m.root(); })};
  const RuleSet<> one{becomes("one", any(0) + any(1), number(1))};
  const RuleSet<> two{becomes("two", any(0) + any(1), number(2))};
  EXPECT_EQ(rewrite(sum, refuses), sum);
  EXPECT_EQ(rewrite(sum, refuses + one + two), number(1));
  EXPECT_EQ(rewrite(sum, two + one), number(2));
  NoContext none;
  const Rule<>* fired = nullptr;
  const RuleSet<> both = refuses + two;
  EXPECT_EQ(both.apply(sum, none, &fired), number(2));
  ASSERT_NE(fired, nullptr);
  EXPECT_EQ(fired->name, "two");
  EXPECT_EQ(both.roots(), mask_of(Op::Add));
  EXPECT_EQ((both + RuleSet<>{becomes("any", any(0), x)}).roots(), ~OpMask{0});
}

TEST(rule_sets, a_rule_of_any_op_sees_every_op) {
  const RuleSet<> all{becomes("any", any(0).of(DTypeClass::Bool), constant_bool(true))};
  const UOp x = leaf({}, DType::Int32);
  EXPECT_EQ(rewrite(where(lt(x, number(3)), x, number(0)), all),
            UOp::make(Op::Where, {constant_bool(true), x, number(0)}));
}

TEST(rewriting, time_counts_once_where_drivers_nest) {
  RewriteCounters& counters = rewrite_counters();
  ASSERT_EQ(counters.depth, 0);
  const double before = counters.seconds;
  const auto start = std::chrono::steady_clock::now();
  {
    const RewriteClock outer;
    for (int i = 0; i < 100; ++i) {
      const RewriteClock inner, innermost;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  EXPECT_GE(counters.seconds - before, 0.005);
  EXPECT_LE(counters.seconds - before, passed.count());
  EXPECT_EQ(counters.depth, 0);
}

TEST(rewriting, results_are_rewritten_again_and_every_node_once) {
  const UOp x = leaf({}, DType::Int32);
  int64_t fired = 0;
  // 3 -> 2 -> 1 -> 0, wherever it stands, shared by both sides.
  const RuleSet<> down{rule("down", any_const(0), [&](const Match& m) {
    if (m[0].dtype() != DType::Int32 || const_int(m[0]) == 0) return UOp();
    ++fired;
    return number(const_int(m[0]) - 1);
  })};
  const UOp left = add(x, number(3)), both = UOp::make(Op::Mul, {left, left});
  const UOp zero = UOp::make(Op::Add, {x, number(0)});
  EXPECT_EQ(rewrite(both, down), UOp::make(Op::Mul, {zero, zero}));
  EXPECT_EQ(fired, 3);
}

TEST(rewriting, a_cycle_of_rules_is_reported_with_its_steps) {
  const UOp x = leaf({}, DType::Int32);
  const RuleSet<> circle{
      rule("there", any(0) + any(1), [](const Match& m) { return maximum(m[0], m[1]); }),
      rule("back", pat_max(any(0), any(1)), [](const Match& m) { return add(m[0], m[1]); })};
  try {
    (void)rewrite(neg(add(x, number(3))), circle);
    FAIL() << "a cycle came to an end";
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("step 1"), std::string::npos) << e.what();
  }
}

TEST(rewriting, the_trace_names_rule_before_and_after) {
  const UOp x = leaf({}, DType::Int32), sum = add(x, number(5));
  std::vector<std::string> names;
  set_trace_sink([&](std::string_view name, const UOp& before, const UOp& after) {
    names.emplace_back(name);
    EXPECT_EQ(before, sum);
    EXPECT_EQ(after, number(1));
  });
  (void)rewrite(neg(sum), RuleSet<>{becomes("one", any(0) + any(1), number(1))});
  set_trace_sink({});
  (void)rewrite(neg(sum), RuleSet<>{becomes("one", any(0) + any(1), number(1))});
  EXPECT_EQ(names, std::vector<std::string>{"one"});
}

TEST(rewriting, bodies_of_functions_are_entered_or_left_alone) {
  const UOp x = leaf({}, DType::Int32), p = param(0, shape_of({}), DType::Int32);
  const std::vector<UOp> arguments{add(x, number(2))};
  const UOp f = function(UOp::make(Op::Tuple, {add(p, number(5))}), arguments);
  const RuleSet<> times{
      rule("times", any(0) + any_const(1), [](const Match& m) { return mul(m[0], m[1]); })};
  const UOp outside = rewrite(f, times, Enter::NotCalls), inside = rewrite(f, times);
  EXPECT_EQ(outside.src(0), f.src(0));
  EXPECT_EQ(outside.src(1), mul(x, number(2)));
  EXPECT_EQ(inside.src(1), mul(x, number(2)));
  EXPECT_FALSE(inside.src(0) == f.src(0));
}

}  // namespace
}  // namespace koine::test

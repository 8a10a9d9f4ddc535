// The bound on work that deciding fusion promises (amendment C38), asserted from KOINE_VERIFY=2 on.
#include "koine/lower/work_bound.hpp"
#include "check.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/bufferize.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/verify/verify.hpp"

namespace koine::test {
namespace {

UOp argument(int64_t slot, const std::vector<int64_t>& shape) {
  return UOp::make(Op::Param, {shape_of(shape)},
                   BufferArg{slot, DType::Float32, Device("CPU"), AddrSpace::Global, ""});
}
UOp stored(const std::vector<int64_t>& shape, const UOp& value) {
  return sink(std::vector<UOp>{store(argument(0, shape), value)});
}

// What the kernels of a program break of the bound; empty: nothing. `decided`: nothing is left to
// decide, each value is computed where it is read.
std::string broken(const UOp& program, bool decided) {
  const UOp bufferized = bufferize(decided ? program : decided_program(program));
  try {
    check_work(bufferized, split_program(indexed_program(bufferized)));
  } catch (const VerifyError& e) {
    return e.what();
  }
  return "";
}

// (a b) c with nothing decided: a b is folded again for each column of c.
TEST(work_bound, what_is_folded_again_and_again_is_refused) {
  const auto product = [](const UOp& a, const UOp& b) {
    const int64_t m = a.sizes()[0], k = a.sizes()[1], n = b.sizes()[1];
    const UOp wide = shape_of({m, n, k});
    return reshape(reduce(Op::Add,
                          mul(expand(reshape(a, shape_of({m, 1, k})), wide),
                              expand(reshape(permute(b, {1, 0}), shape_of({1, n, k})), wide)),
                          {2}),
                   shape_of({m, n}));
  };
  const UOp once = product(argument(1, {16, 200}), argument(2, {200, 24}));
  const UOp program = stored({16, 100}, product(once, argument(3, {24, 100})));
  EXPECT_EQ(broken(program, false), "");
  const std::string problem = broken(program, true);
  // 16 x 24 x 200 folds, a hundred times, beside 16 x 24 x 100.
  for (const char* part : {"after split", "Reduce", "work is repeated", "fold 7718400 times",
                           "once each take 115200", "7680000 times", "'output'"})
    EXPECT_NE(problem.find(part), std::string::npos) << part << " in " << problem;
}

// So is dear work on values at places that overlap, and cheap work is not.
TEST(work_bound, what_is_computed_again_and_again_is_refused) {
  const auto program = [](int dear) {
    UOp value = argument(1, {1000});
    for (int i = 0; i < dear; ++i) value = UOp::make(Op::Sin, {add(value, value)});
    const UOp table = reshape(value, shape_of({1, 1000})), wide = shape_of({100, 1000});
    // Row i shows element (i + j) mod 1000 at j.
    const UOp flat = reshape(expand(table, wide), shape_of({100000}));
    const UOp moved = shrink(flat, shape_of({0}), shape_of({99 * 1001}));
    return stored({99, 1001}, reshape(moved, shape_of({99, 1001})));
  };
  EXPECT_EQ(broken(program(1), false), "");
  EXPECT_EQ(broken(program(40), false), "");
  const std::string problem = broken(program(40), true);
  for (const char* part : {"after split", "work is repeated", "compute", "'output'"})
    EXPECT_NE(problem.find(part), std::string::npos) << part << " in " << problem;
}

// What depends on the inner loop alone is computed in each turn of the one around it.
TEST(work_bound, what_the_loop_around_repeats_is_refused) {
  UOp value = argument(1, {1, 24});
  for (int i = 0; i < 40; ++i) value = UOp::make(Op::Sin, {add(value, value)});
  const UOp program = stored({1000, 24}, expand(value, shape_of({1000, 24})));
  EXPECT_EQ(broken(program, false), "");
  EXPECT_NE(broken(program, true).find("work is repeated"), std::string::npos);
}

// A table that is chosen from sources is chosen from at every place that reads it, here 300.
TEST(work_bound, places_that_are_values_may_choose_from_a_table) {
  const auto table = [](int64_t rows, int64_t columns) {
    std::vector<UOp> chosen;
    for (int64_t i = 0; i < rows * columns; ++i)
      chosen.push_back(constant_int(DType::Int16, i % 3));
    return reshape(UOp::make(Op::Stack, chosen), shape_of({rows, columns}));
  };
  const UOp read = UOp::make(Op::Index, {argument(1, {3, 10, 1}), table(5, 4), table(5, 3)});
  EXPECT_EQ(broken(stored({1, 4, 5, 1, 1}, reduce(Op::Add, read, {0, 3, 4})), false), "");
}

// Nine folds at each of 12 places of a fold, for each of 32 elements: as cheap as memory for them.
TEST(work_bound, a_fold_within_a_fold_of_few_steps_stays_in_place) {
  const UOp inner = reduce(Op::Add, argument(1, {1, 12, 9}), {2});
  const UOp wide = expand(inner, shape_of({32, 12, 1}));
  const UOp rows =
      add(wide, expand(reshape(argument(2, {32, 1}), shape_of({32, 1, 1})), shape_of({32, 12, 1})));
  EXPECT_EQ(broken(stored({32, 1, 1}, reduce(Op::Max, rows, {1})), true), "");
}

// A Stack that names a source twice reads it once, so Stacks of Stacks do not multiply reads.
TEST(work_bound, stacks_of_one_source_read_it_once) {
  const UOp x = reshape(argument(1, {1}), shape_of({})),
            y = reshape(argument(2, {1}), shape_of({}));
  const auto thrice = [](const UOp& u) { return UOp::make(Op::Stack, {u, u, u}); };
  const auto mixed = [&](const UOp& u) { return UOp::make(Op::Stack, {u, y, u, u}); };
  const UOp zero = constant(DType::Float32, 0);
  UOp same = pad(thrice(thrice(x)), shape_of({0, 1}), shape_of({4, 4}), zero);
  same = thrice(thrice(same));
  const auto loads_of = [](const UOp& value, const std::vector<int64_t>& shape) {
    const UOp indexed = indexed_program(bufferize(decided_program(stored(shape, value))));
    size_t loads = 0;
    for (const Kernel& kernel : kernels_of(indexed))
      for (const UOp& u : toposort(kernel.ast)) loads += u.is(Op::Load) ? 1 : 0;
    return loads;
  };
  EXPECT_EQ(broken(stored({3, 3, 4, 4}, same), false), "");
  EXPECT_EQ(loads_of(same, {3, 3, 4, 4}), 1U);
  EXPECT_EQ(loads_of(mixed(x), {4}), 2U);
}

}  // namespace
// Which elements are there says nothing about the fold of their row: it is folded once, not again
// for each of them under a condition.
TEST(work_bound, spec_C38_what_is_shifted_behind_a_fold_folds_once) {
  auto centred = [](const Tensor& x) { return x - x.mean(1, true); };
  auto halves = [](const Tensor& x) {
    const int64_t n = x.size(1);
    const Tensor c = x * x.square().mean(1, true).rsqrt(), first = c.shrink({{0, 32}, {0, n / 2}}),
                 second = c.shrink({{0, 32}, {n / 2, n}});
    return c * 2.0 + Tensor::cat({-second, first}, 1) * 3.0;
  };
  struct Case {
    const char* what;
    std::function<Tensor(const Tensor&)> value;
    double operations;  // an element
  };
  const std::vector<Case> cases{
      {"rolled", [=](const Tensor& x) { return centred(x).roll(1, 1) - centred(x); }, 7},
      {"rotary halves", halves, 11},
      {"padded",
       [=](const Tensor& x) {
         const Tensor c = centred(x);
         return c + c.shrink({{0, 32}, {1, x.size(1)}}).pad({{0, 0}, {0, 1}});
       },
       6},
      {"rolled behind a layernorm", [](const Tensor& x) { return x.layernorm().roll(3, 1) + x; },
       20},
      {"the gradient of a softmax that is rolled",
       [](const Tensor& x) { return x.softmax(1).roll(1, 1).square().sum().gradient({x})[0]; }, 18},
      {"the gradient of differences of a softmax",
       [](const Tensor& x) {
         const Tensor c = x.softmax(1);
         const int64_t n = x.size(1);
         const Tensor steps = c.shrink({{0, 32}, {1, n}}) - c.shrink({{0, 32}, {0, n - 1}});
         return steps.square().sum().gradient({x})[0];
       },
       26},
  };
  Options o = options();
  o.verify = std::max(o.verify, 2);
  o.strict = false;
  const OptionScope scope(o);
  for (const Case& c : cases)
    for (const int64_t n : {64, 256}) {
      Tensor x = Tensor(leaf({32, n})).contiguous().requires_grad();
      (void)x.realize();
      const UOp value = c.value(x).uop();
      EXPECT_EQ(difference(interpret_bounded(value, bindings_of(value)), run_on(value, "CPU")), "")
          << c.what;
      const Tensor y = c.value(x);
      reset_counters();
      (void)y.realize();
      EXPECT_LE(counters().operations, c.operations * 32 * static_cast<double>(n)) << c.what << n;
    }
}

}  // namespace koine::test

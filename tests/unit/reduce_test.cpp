#include "reduce.hpp"

#include "check.hpp"
#include "graphs.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {
namespace {

bool holds(const UOp& graph, Op op, DType dtype) {
  for (const UOp& u : toposort(graph))
    if (u.is(op) && u.dtype() == dtype) return true;
  return false;
}

}  // namespace

// A failure that needs two ops, one below the other, is reduced to little more than these.
TEST(reduce, a_random_graph_becomes_a_handful_of_nodes) {
  int reduced = 0;
  for (uint64_t i = 0; i < 1200; ++i) {
    std::mt19937_64 random(test_seed() + i);
    const UOp graph = random_graph(random);
    const Fails fails = [](const UOp& g) {
      for (const UOp& u : toposort(g))
        if (u.is(Op::Reduce) && holds(u.src(0), Op::Mul, u.dtype())) return true;
      return false;
    };
    if (!fails(graph)) continue;
    ++reduced;
    const UOp small = reduce_graph(graph, fails);
    EXPECT_TRUE(fails(small));
    EXPECT_LE(graph_size(small), 6) << to_text(small);
  }
  EXPECT_GT(reduced, 5);
}

TEST(reduce, sizes_and_constants_become_small_and_leaves_get_memory) {
  const UOp x = leaf({40, 30}),
            graph = mul(reduce(Op::Add, x, {1}), constant(DType::Float32, 7.25));
  const Fails fails = [](const UOp& g) {
    return holds(g, Op::Reduce, DType::Float32) && holds(g, Op::Mul, DType::Float32) &&
           (interpret(g, bindings_of(g)), true);
  };
  Reducer how;
  how.resized = [](const UOp& buffer) { return leaf(buffer.sizes(), buffer.dtype()); };
  const UOp small = reduce_graph(graph, fails, how);
  EXPECT_TRUE(small.is(Op::Mul)) << to_text(small);
  EXPECT_LE(small.numel(), 1) << to_text(small);
  EXPECT_LE(graph_size(small), 5);
}

TEST(reduce, bodies_of_functions_and_effects_shrink_too) {
  const UOp p = param(0, shape_of({4}), DType::Float32),
            q = param(1, shape_of({4}), DType::Float32);
  const UOp body =
      tuple(std::vector<UOp>{unary(Op::Sqrt, add(unary(Op::Exp2, p), mul(p, q))), add(p, q)});
  const UOp call =
      function(body, std::vector<UOp>{leaf({4}), add(leaf({4}), leaf({4}, DType::Float32, 1))});
  const UOp graph = add(get_tuple(call, 0), get_tuple(call, 1));
  const UOp small = reduce_graph(graph, [](const UOp& g) {
    return holds(g, Op::Function, DType::Void) && holds(g, Op::Exp2, DType::Float32);
  });
  EXPECT_TRUE(small.is(Op::GetTuple)) << to_text(small);
  EXPECT_LE(graph_size(small), 9) << to_text(small);

  const UOp b = leaf({4}), one = store(shrink(b, shape_of({0}), shape_of({2})), leaf({2})),
            two = store(shrink(b, shape_of({2}), shape_of({2})), unary(Op::Sqrt, leaf({2})));
  const UOp effects = after(b, {group(std::vector<UOp>{one, two})});
  const UOp less = reduce_graph(
      effects, [&](const UOp& g) { return g.is(Op::After) && holds(g, Op::Sqrt, DType::Float32); });
  EXPECT_LE(graph_size(less), 7) << to_text(less);
}

}  // namespace koine::test

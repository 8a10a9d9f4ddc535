// Differential fuzz: the tensor interpreter against interpreted and compiled kernels, bit for bit
// in strict mode and within the stated bound in default mode, under random settings.
#include <map>
#include <set>

#include "check.hpp"
#include "graphs.hpp"
#include "isolate.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "programs_reduce.hpp"
#include "reduce.hpp"
#include "to_cpp.hpp"

namespace koine::test {
namespace {

using MakeGraph = UOp (*)(std::mt19937_64&);

// The graph of a seed that failed, made small.
std::string reduced_graph(uint64_t seed, MakeGraph make) {
  std::mt19937_64 random(seed);
  const UOp graph = make(random);
  const auto problem = [&](const UOp& g) {
    return in_child([&] {
      std::mt19937_64 settings = random;
      return difference_anywhere(g, settings);
    });
  };
  const std::string kind = kind_of(problem(graph));
  if (kind.empty()) return "it does not fail alone";
  Reducer how;
  how.most_tries = 500;
  how.resized = [](const UOp& buffer) { return leaf(buffer.sizes(), buffer.dtype()); };
  const UOp small =
      reduce_graph(graph, [&](const UOp& g) { return kind_of(problem(g)) == kind; }, how);
  return fmt::format("reduced: {}\n{}\nas C++:\n{}", problem(small), to_text(small), to_cpp(small));
}

// Graphs of as many seeds, in children; stops after a few failures.
void expect_agreement(int64_t cases, MakeGraph make) {
  const uint64_t seed = test_seed();
  int64_t failures = 0;
  check_isolated(
      cases, 500,
      [&](int64_t i) {
        std::mt19937_64 random(seed + static_cast<uint64_t>(i));
        const UOp graph = make(random);
        return difference_anywhere(graph, random);
      },
      [&](int64_t i, const std::string& problem) {
        const uint64_t own = seed + static_cast<uint64_t>(i);
        ADD_FAILURE() << fmt::format("KOINE_TEST_SEED={} KOINE_TEST_CASES=1: {}\n", own, problem)
                      << reduced_graph(own, make);
        return ++failures < 3;
      });
}

// How many kernels of a value have axes of each type.
void count_axes(const UOp& value, const Target& target, std::map<AxisType, int64_t>& counts) {
  for (const Kernel& kernel : schedule({value})) {
    std::set<AxisType> types;
    for (const UOp& range : kernel_ranges(optimize(kernel.ast, target)))
      types.insert(range.as<RangeArg>().type);
    for (const AxisType type : types) ++counts[type];
  }
}

}  // namespace

TEST(fuzz, random_graphs_agree_on_interpreter_and_compiler) {
  expect_agreement(test_cases(10000), [](std::mt19937_64& random) { return random_graph(random); });
}

// Threads and blocks of a reduction begin where kernels have more to do than small values give.
TEST(fuzz, large_graphs_agree_and_use_threads) {
  constexpr int64_t usual = 24, cost = 200;  // of a large graph, in small ones
  const int64_t cases = (test_cases(usual * cost) + cost - 1) / cost;
  std::map<AxisType, int64_t> kernels;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(test_seed() + static_cast<uint64_t>(i));
    const UOp graph = large_random_graph(random);
    for (const bool strict : {true, false}) {
      Options o = options();
      o.strict = strict;
      o.noopt = false;
      const OptionScope scope(o);
      count_axes(graph, cpu_target(), kernels);
    }
  }
  if (cases >= usual) {  // not a case that is looked at
    EXPECT_GE(kernels[AxisType::Thread], cases / 2);
    EXPECT_GE(kernels[AxisType::Upcast], cases / 2);
    EXPECT_GE(kernels[AxisType::GroupReduce], 1);
    EXPECT_GE(kernels[AxisType::Reduce], 1);
  }
  for (const auto& [type, n] : kernels)
    RecordProperty(fmt::format("kernels_{}", axis_letter(type)), std::to_string(n));
  expect_agreement(cases, large_random_graph);
}

}  // namespace koine::test

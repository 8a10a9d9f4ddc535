// Differential fuzz: the tensor interpreter against interpreted and compiled kernels, bit for bit
// in strict mode and within the stated bound in default mode, under random settings.
#include "check.hpp"
#include "graphs.hpp"
#include "isolate.hpp"
#include "koine/ir/text.hpp"
#include "programs_reduce.hpp"
#include "reduce.hpp"
#include "to_cpp.hpp"

namespace koine::test {
namespace {

// The graph of a seed that failed, made small.
std::string reduced_graph(uint64_t seed) {
  std::mt19937_64 random(seed);
  const UOp graph = random_graph(random);
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

}  // namespace

TEST(fuzz, random_graphs_agree_on_interpreter_and_compiler) {
  const uint64_t seed = test_seed();
  int64_t failures = 0;
  check_isolated(
      test_cases(10000), 500,
      [&](int64_t i) {
        std::mt19937_64 random(seed + static_cast<uint64_t>(i));
        const UOp graph = random_graph(random);
        return difference_anywhere(graph, random);
      },
      [&](int64_t i, const std::string& problem) {
        ADD_FAILURE() << fmt::format("KOINE_TEST_SEED={} KOINE_TEST_CASES=1: {}\n",
                                     seed + static_cast<uint64_t>(i), problem)
                      << reduced_graph(seed + static_cast<uint64_t>(i));
        return ++failures < 3;
      });
}

}  // namespace koine::test

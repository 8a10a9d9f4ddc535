// Differential fuzz: the tensor interpreter against interpreted and compiled kernels, bit for bit
// in strict mode and within the stated bound in default mode, under random settings.
#include "check.hpp"
#include "graphs.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {

TEST(fuzz, random_graphs_agree_on_interpreter_and_compiler) {
  const uint64_t seed = test_seed();
  const int64_t cases = test_cases(10000);
  int64_t failures = 0;
  for (int64_t i = 0; i < cases && failures < 3; ++i) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(i));
    const UOp graph = random_graph(random);
    const std::string problem = difference_anywhere(graph, random);
    if (problem.empty()) continue;
    ++failures;
    ADD_FAILURE() << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i)
                  << " KOINE_TEST_CASES=1: " << problem << "\n"
                  << to_text(graph);
  }
}

}  // namespace koine::test

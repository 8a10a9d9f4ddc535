// Differential fuzz: the tensor interpreter against interpreted and compiled kernels, bit for bit.
#include "check.hpp"
#include "graphs.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {

TEST(fuzz, random_graphs_agree_on_interpreter_and_compiler) {
  const OptionScope scope(strict_options());
  const uint64_t seed = test_seed();
  const int64_t cases = test_cases(20000);
  int64_t failures = 0;
  for (int64_t i = 0; i < cases && failures < 3; ++i) {
    std::mt19937_64 random(seed + static_cast<uint64_t>(i));
    const UOp graph = random_graph(random);
    std::string problem;
    try {
      const Array expected = interpret(graph, bindings_of(graph));
      for (const char* device : {"INTERP", "CPU"}) {
        const std::string d = difference(expected, run_on(graph, device));
        if (!d.empty() && problem.empty()) problem = fmt::format("on {}: {}", device, d);
      }
    } catch (const std::exception& e) {
      problem = e.what();
    }
    if (problem.empty()) continue;
    ++failures;
    ADD_FAILURE() << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i)
                  << " KOINE_TEST_CASES=1: " << problem.substr(0, 600) << "\n"
                  << to_text(graph);
  }
}

}  // namespace koine::test

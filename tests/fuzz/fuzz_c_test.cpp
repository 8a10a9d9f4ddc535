// A second opinion: kernels as C text, compiled by the system's compiler, against the interpreter.
#include "c_text.hpp"
#include "graphs.hpp"

namespace koine::test {

TEST(fuzz, c_text_agrees_with_the_interpreter) {
  const int64_t cases = test_cases(2000);
  CText text;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(test_seed() + 77 + static_cast<uint64_t>(i));
    Features features = Features::all();
    features.raw_bytes = false;  // bytes of the program's own are no buffer of a kernel
    text.add(random_graph(random, features));
  }
  text.check(1);
}

}  // namespace koine::test

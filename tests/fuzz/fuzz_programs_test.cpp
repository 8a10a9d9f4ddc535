// Random programs against the oracle, in strict mode bit for bit and in default mode within bounds,
// under random settings; each in a child process. Seeds are test_seed() and up: shards of a long
// run take other seeds.
#include "check.hpp"
#include "isolate.hpp"
#include "programs.hpp"
#include "programs_reduce.hpp"

namespace koine::test {

TEST(fuzz, programs_agree_with_the_oracle) {
  const ProgramFeatures features = features_on();
  const uint64_t seed = test_seed();
  int64_t failures = 0;
  check_isolated(
      test_cases(12500), 500,
      [&](int64_t i) {
        std::mt19937_64 random(seed + static_cast<uint64_t>(i));
        const Program program = random_program(random, features);
        for (const Settings& settings : settings_of(random)) {
          const std::string problem = problem_of(program, settings);
          if (!problem.empty()) return text_of(settings) + "\n" + problem;
        }
        return std::string();
      },
      [&](int64_t i, const std::string& problem) {
        const uint64_t own = seed + static_cast<uint64_t>(i);
        ADD_FAILURE() << problem << "\n" << report_of(own, reduced_failure(own, features));
        return ++failures < 3;
      });
}

}  // namespace koine::test

// Random programs against the oracle, in strict mode bit for bit and in default mode within bounds,
// under random settings; each in a child process. Seeds are test_seed() and up: shards of a long
// run take other seeds.
#include <fmt/ranges.h>

#include "check.hpp"
#include "isolate.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
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

namespace {

// Kernels and bytes to the last; operations but for sums that become equal in a kernel where they
// are written in one order, and stay two where they are not (amendment C38 allows 1.25).
bool is_equal_work(const std::vector<std::pair<double, double>>& a,
                   const std::vector<std::pair<double, double>>& b) {
  double operations[2] = {};
  std::vector<double> bytes[2];
  for (const size_t side : {0, 1})
    for (const auto& [own, moved] : side == 0 ? a : b) {
      operations[side] += own;
      bytes[side].push_back(moved);
    }
  for (std::vector<double>& list : bytes) std::sort(list.begin(), list.end());
  const auto [least, most] = std::minmax(operations[0], operations[1]);
  return bytes[0] == bytes[1] && most <= 1.25 * least;
}

}  // namespace

// Which kernels there are, and what each costs, follows from the values: not from the order of
// operands, nor from that of what is asked for.
TEST(fuzz, programs_order_changes_no_work) {
  const ProgramFeatures features = features_on();
  const uint64_t seed = test_seed();
  int64_t failures = 0;
  check_isolated(
      test_cases(600), 200,
      [&](int64_t i) {
        std::mt19937_64 random(seed + static_cast<uint64_t>(i));
        std::vector<UOp> values;
        for (const Step& step : random_program(random, features).steps)
          if (step.kind == Step::Kind::Make && step.graphs[0].has_concrete_shape())
            values.push_back(step.graphs[0]);
        if (values.empty()) return std::string();
        const auto expected = counted_work(values);
        for (int k = 0; k < 3; ++k) {
          std::shuffle(values.begin(), values.end(), random);
          const UOp other = with_swapped_operands(tuple(values), random);
          const auto got = counted_work({other.src().begin(), other.src().end()});
          if (!is_equal_work(expected, got))
            return fmt::format("work {} of {}, work {} of {}", fmt::join(expected, " "),
                               to_text(tuple(values)), fmt::join(got, " "), to_text(other));
        }
        return std::string();
      },
      [&](int64_t i, const std::string& problem) {
        ADD_FAILURE() << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i)
                      << " KOINE_TEST_CASES=1: " << problem;
        return ++failures < 3;
      });
}

}  // namespace koine::test

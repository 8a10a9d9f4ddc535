// Random programs against the oracle, in strict mode bit for bit and in default mode within bounds,
// under random settings; each in a child process. Seeds are test_seed() and up: shards of a long
// run take other seeds.
#include <absl/container/flat_hash_set.h>
#include <fmt/ranges.h>

#include <numeric>
#include <optional>

#include "check.hpp"
#include "isolate.hpp"
#include "kernels.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
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

// The graphs over new memory of interpreted kernels in place of placeholders; empty where a size is
// not known.
std::vector<UOp> over_memory(const std::vector<UOp>& graphs, const Program& program,
                             uint64_t contents) {
  std::mt19937_64 random(contents);
  Substitution memory;
  absl::flat_hash_set<const Node*> read;
  for (const UOp& u : toposort_with_bodies(tuple(graphs))) read.insert(u.node());
  for (const auto& [id, place] : program.placeholders) {
    if (!read.contains(place.node())) continue;
    if (!place.has_concrete_shape()) return {};
    std::vector<int64_t> sizes;
    for (const UOp& d : place.shape().src()) sizes.push_back(const_int(d));
    const auto bytes = bytes_of(random_array(random, sizes, place.dtype()));
    memory.emplace(place, buffer_from_host(place.shape(), place.dtype(), "INTERP", bytes.data()));
  }
  const UOp all = substitute(tuple(graphs), memory);
  return {all.src().begin(), all.src().end()};
}

// What each value is, or the kind of the error that comes instead; by the number of the value.
struct Outcome {
  std::vector<Array> values;
  std::optional<ErrorKind> error;
};
Outcome outcome_of(const std::vector<UOp>& values) {
  Options o = strict_options();
  o.device = "INTERP";
  const OptionScope scope(o);
  Outcome out;
  try {
    for (const UOp& buffer : realize(values)) out.values.push_back(array_of(buffer));
  } catch (const Error& e) {
    out = {{}, e.kind()};
  }
  return out;
}

// Values of one order beside those of another, `place[i]` telling where the i-th went.
std::string difference_of_orders(const Outcome& a, const Outcome& b,
                                 const std::vector<size_t>& place) {
  if (a.error != b.error) return "one order fails, or fails otherwise";
  for (size_t i = 0; i < a.values.size(); ++i)
    if (const std::string d = difference(a.values[i], b.values[place[i]]); !d.empty())
      return fmt::format("value {}: {}", i, d);
  return {};
}

}  // namespace

// Which kernels there are, and what each costs, follows from the values: not from the order of
// operands, nor from that of what is asked for.
TEST(fuzz, programs_order_changes_no_work) {
  const ProgramFeatures features = features_on();
  const uint64_t seed = test_seed();
  int64_t failures = 0;
  check_isolated(
      test_cases(1000), 200,
      [&](int64_t i) {
        std::mt19937_64 random(seed + static_cast<uint64_t>(i));
        std::vector<UOp> values;
        const Program program = random_program(random, features);
        for (const Step& step : program.steps)
          if (step.kind == Step::Kind::Make && step.graphs[0].has_concrete_shape())
            values.push_back(step.graphs[0]);
        if (values.empty()) return std::string();
        const auto expected = counted_work(values);
        for (int k = 0; k < 3; ++k) {
          std::shuffle(values.begin(), values.end(), random);
          const UOp other = with_swapped_operands(tuple(values), random);
          const auto got = counted_work({other.src().begin(), other.src().end()});
          if (got != expected)
            return fmt::format("work {} of {}, work {} of {}", fmt::join(expected, " "),
                               to_text(tuple(values)), fmt::join(got, " "), to_text(other));
        }
        // And what they compute, in an order of its own, bit for bit.
        const uint64_t contents = random();
        const std::vector<UOp> given = over_memory(values, program, contents),
                               again = over_memory(values, program, contents);
        std::vector<size_t> place(given.size());
        std::iota(place.begin(), place.end(), size_t{0});
        std::shuffle(place.begin(), place.end(), random);
        std::vector<UOp> shuffled(given.size());
        for (size_t k = 0; k < given.size(); ++k) shuffled[place[k]] = again[k];
        if (given.empty()) return std::string();
        const UOp other = with_swapped_operands(tuple(shuffled), random);
        const Outcome one = outcome_of(given),
                      two = outcome_of({other.src().begin(), other.src().end()});
        const std::string d = difference_of_orders(one, two, place);
        return d.empty() ? d
                         : fmt::format("{} of {}, {}", d, to_text(tuple(given)), to_text(other));
      },
      [&](int64_t i, const std::string& problem) {
        ADD_FAILURE() << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i)
                      << " KOINE_TEST_CASES=1: " << problem;
        return ++failures < 3;
      });
}

}  // namespace koine::test

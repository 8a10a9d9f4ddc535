// What a program that fails is made into: a fault is planted, since no other one is known.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "check.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "programs_reduce.hpp"
#include "reduce.hpp"

namespace koine::test {
namespace {

// Whether a graph folds what a square root was taken of.
bool folds_a_root(const UOp& graph) {
  for (const UOp& u : toposort(graph)) {
    if (!u.is(Op::Reduce)) continue;
    for (const UOp& below : toposort(u))
      if (below.is(Op::Sqrt)) return true;
  }
  return false;
}
bool folds_a_root(const Program& program) {
  for (const Step& s : program.steps)
    for (const UOp& g : s.graphs)
      if (folds_a_root(g)) return true;
  return false;
}
// Such a program counts as wrong, as long as it runs.
std::string planted(const Program& program, const Settings& settings) {
  const std::string real = problem_of(program, settings);
  return !real.empty() || !folds_a_root(program) ? real : "step 0: value 0: element 0 is 1, not 2";
}

int64_t nodes_of(const Program& program) {
  int64_t n = 0;
  for (const Step& s : program.steps)
    for (const UOp& g : s.graphs) n += graph_size(g);
  return n;
}

// The first seed of a large program with the fault.
uint64_t seed_of_large_fault(const ProgramFeatures& features) {
  for (uint64_t seed = test_seed(); seed < test_seed() + 20000; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_program(random, features);
    if (nodes_of(program) >= 60 && folds_a_root(program)) return seed;
  }
  throw std::runtime_error("no program folds a root");
}

// The graphs of a text of steps, each read back alone.
std::vector<UOp> parsed_graphs(const std::string& text) {
  std::vector<UOp> out;
  std::string graph, line;
  std::istringstream lines(text);
  while (std::getline(lines, line)) {
    const bool head = line.starts_with("step ");
    if ((head || line.starts_with("%0 ")) && !graph.empty()) {
      out.push_back(parse(graph));
      graph.clear();
    }
    if (!head) graph += line + "\n";
  }
  if (!graph.empty()) out.push_back(parse(graph));
  return out;
}

// What the compiler says about statements inside of a function; empty where it takes them.
std::string compiler_says(const std::vector<std::string>& bodies) {
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("koine_cpp_{}", getpid());
  std::filesystem::create_directories(folder);
  {
    std::ofstream out(folder / "program.cpp");
    out << "#include \"koine/ir/build.hpp\"\n#include \"koine/koine.hpp\"\nusing namespace "
           "koine;\n";
    for (size_t i = 0; i < bodies.size(); ++i)
      out << "void f" << i << "() {\n" << bodies[i] << "}\n";
  }
  const std::string command = fmt::format(
      "c++ -std=c++20 -fsyntax-only -w -Isrc {0}/program.cpp 2> {0}/said", folder.string());
  const bool taken = std::system(command.c_str()) == 0;
  std::stringstream said;
  said << std::ifstream(folder / "said").rdbuf();
  std::filesystem::remove_all(folder);
  return taken ? "" : "refused: " + said.str().substr(0, 4000);
}

}  // namespace

TEST(fuzz, programs_a_failure_is_reduced_and_printed) {
  const ProgramFeatures features = features_on();
  const uint64_t seed = seed_of_large_fault(features);
  const auto failure = reduced_failure(seed, features, planted);
  ASSERT_TRUE(failure.has_value());
  const Program& small = failure->program;
  EXPECT_LE(nodes_of(small), 10) << text_of(small);
  EXPECT_TRUE(folds_a_root(small));
  EXPECT_EQ(planted(small, failure->settings), failure->problem);
  EXPECT_EQ(kind_of(failure->problem), "difference");

  std::vector<UOp> graphs;
  for (const Step& s : small.steps) graphs.insert(graphs.end(), s.graphs.begin(), s.graphs.end());
  EXPECT_EQ(parsed_graphs(text_of(small)), graphs) << text_of(small);

  const std::string cpp = cpp_of(small);
  for (const char* name : {"Op::Sqrt", "Op::Reduce"})
    EXPECT_NE(cpp.find(name), std::string::npos) << cpp;
  EXPECT_EQ(compiler_says({cpp}), "") << cpp;

  const std::string report = report_of(seed, failure);
  for (const std::string& part :
       {fmt::format("KOINE_TEST_SEED={} KOINE_TEST_CASES=1 fuzz_test", seed),
        text_of(failure->settings), failure->problem, text_of(small), cpp})
    EXPECT_NE(report.find(part), std::string::npos) << part << "\nis not in\n" << report;
}

// Of every kind of step, whatever the seed.
TEST(fuzz, programs_printed_as_cpp_and_text_are_read_back) {
  const ProgramFeatures features = features_on();
  std::vector<std::string> bodies;
  std::set<Step::Kind> kinds;
  for (uint64_t i = 0; i < 100 || kinds.size() <= static_cast<size_t>(Step::Kind::Run); ++i) {
    std::mt19937_64 random(test_seed() + i);
    const Program program = random_program(random, features);
    std::vector<UOp> graphs;
    for (const Step& s : program.steps) {
      kinds.insert(s.kind);
      graphs.insert(graphs.end(), s.graphs.begin(), s.graphs.end());
    }
    EXPECT_EQ(parsed_graphs(text_of(program)), graphs) << text_of(program);
    bodies.push_back(cpp_of(program));
  }
  EXPECT_EQ(compiler_says(bodies), "");
}

}  // namespace koine::test

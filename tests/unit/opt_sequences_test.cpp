// Row O7: any legal sequence of edits on a random kernel leaves its value, in strict mode bit for
// bit while no lanes fold, in default mode within the stated bound, interpreted and compiled.
#include <algorithm>
#include <map>

#include "check.hpp"
#include "graphs.hpp"
#include "kernels.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "random_edits.hpp"

namespace koine::test {
namespace {

// Random sequences under one mode, for loops and for groups of threads: empty, or what went wrong.
// `compared` counts those that hold an edit and ran.
std::string problem_of(const UOp& graph, const BoundedArray& expected, bool strict,
                       std::mt19937_64& random, int64_t& compared) {
  const OptionScope mode(options_of(draw_settings(random, "CPU", strict)));
  const Callified program =
      callify({graph}, {buffer_from_host(graph.shape(), graph.dtype(), "CPU", nullptr)});
  const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));
  if (kernels.size() != 1) return "";
  const Edits for_loops = random_edits(kernels[0].ast, random, generic_target(strict)),
              for_groups = random_edits(kernels[0].ast, random, simt_target(strict));
  for (const char* device : {"INTERP", "CPU", "SIMT"}) {
    Settings settings = draw_settings(random, device, strict);
    settings.device = device;
    const Edits& edits = settings.device == "SIMT" ? for_groups : for_loops;
    if (strict && edits.reorders && folds_floats(graph)) continue;
    const OptionScope scope(options_of(settings));
    std::string problem;
    try {
      problem = difference(expected, run_kernels(kernels, program, {0, edits.list}));
    } catch (const std::exception& e) {
      problem = e.what();
    }
    if (!problem.empty())
      return fmt::format("{}: opts {}: {}", text_of(settings), edits.text(), problem);
    // INTERP and CPU run the same ones.
    if (settings.device != "INTERP" && !edits.list.empty()) ++compared;
  }
  return "";
}

}  // namespace

TEST(opts, spec_O7_random_sequences_keep_values) {
  const int64_t cases = test_cases(600);
  int64_t compared = 0;
  for (int64_t i = 0; i < cases; ++i) {
    const uint64_t seed = test_seed() + static_cast<uint64_t>(i);
    std::mt19937_64 random(seed);
    const UOp graph = random_graph(random);
    if (!graph.has_concrete_shape() || graph.numel() == 0) continue;
    for (const bool strict : {true, false}) {
      const Bindings bindings = bindings_of(graph);
      BoundedArray expected = strict ? BoundedArray{interpret(graph, bindings), {}}
                                     : interpret_bounded(graph, bindings);
      Array& value = expected.value;
      for (size_t k = 0; k < value.valid.size(); ++k)  // fresh memory holds 0 there
        if (value.valid[k] == 0) value.data[k] = 0;
      value.valid.clear();
      ASSERT_EQ(problem_of(graph, expected, strict, random, compared), "")
          << "KOINE_TEST_SEED=" << seed << " KOINE_TEST_CASES=1\n"
          << to_text(graph);
    }
  }
  RecordProperty("sequences", std::to_string(compared));
  EXPECT_TRUE(compared >= 1000 || cases < 600) << compared << " sequences of edits were compared";
}

// Seed 1018937: lanes of a fold along an axis that its value does not depend on were those of
// another.
TEST(opts, spec_O1f_lanes_fold_along_axes_that_their_value_lacks) {
  for (const DType d : {DType::UInt64, DType::Float32})
    for (const AxisType type : {AxisType::GroupReduce, AxisType::Unroll}) {
      const UOp graph = reduce(
          Op::Mul, expand(reshape(leaf({4}, d), shape_of({1, 4})), shape_of({2, 4})), {0, 1});
      const BoundedArray expected = interpret_bounded(graph, bindings_of(graph));
      const Callified program =
          callify({graph}, {buffer_from_host(graph.shape(), d, "CPU", nullptr)});
      const std::vector<Kernel> kernels = kernels_of(rangeify(program.body));
      ASSERT_EQ(kernels.size(), 1);
      ASSERT_EQ(kernel_ranges(kernels[0].ast).size(), 2);
      for (const char* device : {"INTERP", "CPU"}) {
        Options o = options();
        o.device = device;
        const OptionScope scope(o);
        const std::vector<Opt> edits{{OptOp::Split, 0, 2, type}, {OptOp::Split, 1, 2, type}};
        EXPECT_EQ(difference(expected, run_kernels(kernels, program, {0, edits})), "")
            << device << " " << dtype_name(d) << " " << axis_type_name(type);
      }
    }
}

// Sequences that hold none of an edit say nothing of it. TC, which few graphs allow, has its own in
// tensor_cores.spec_O7_*.
TEST(opts, random_sequences_hold_every_edit) {
  std::map<std::string, int> drawn;
  int longest = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    std::mt19937_64 random(test_seed() + static_cast<uint64_t>(i));
    const UOp graph = random_graph(random);
    if (!graph.has_concrete_shape() || graph.numel() == 0) continue;
    const std::vector<Kernel> kernels = schedule({contiguous(graph)});
    if (kernels.size() != 1 || !kernels[0].ast.is(Op::Sink)) continue;
    const Target target = i % 4 == 0 ? generic_target(false) : simt_target(false);
    const Edits edits = random_edits(kernels[0].ast, random, target);
    if (edits.list.size() == 6) ++longest;
    for (const Opt& o : edits.list) {
      std::string what = opt_text(o).substr(0, opt_text(o).find('('));
      if (o.op == OptOp::Split) what += fmt::format(" {}", axis_type_name(o.target));
      ++drawn[what];
    }
  }
  std::string all;
  for (const auto& [what, n] : drawn) all += fmt::format("{} {}, ", n, what);
  fmt::print("{}{} of six\n", all, longest);
  for (const char* what :
       {"Split THREAD", "Split GLOBAL", "Split LOCAL", "Split UPCAST", "Split LOOP", "Split UNROLL",
        "Split GROUP_REDUCE", "Split REDUCE", "Padto", "Swap", "Nolocals", "Stage"})
    EXPECT_GE(drawn[what], 5) << what;
  EXPECT_GE(longest, 50);
}

}  // namespace koine::test

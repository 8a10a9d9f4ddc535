// Row O7: any legal sequence of edits on a random kernel leaves its value, in strict mode bit for
// bit while no lanes fold, in default mode within the stated bound, interpreted and compiled.
#include <algorithm>

#include "check.hpp"
#include "graphs.hpp"
#include "kernels.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {
namespace {

struct Edits {
  std::vector<Opt> list;
  bool reorders = false;  // a sum takes its elements in another order
  std::string text() const {
    std::string out;
    for (const Opt& o : list) out += opt_text(o) + " ";
    return out;
  }
};

Edits random_edits(UOp ast, std::mt19937_64& random, const Target& target) {
  const Groups& groups = target.groups;
  Edits edits;
  for (int step = 0; step < 6; ++step) {
    const auto axes = static_cast<int64_t>(kernel_ranges(ast).size());
    if (axes == 0) break;
    Opt opt{edits.list.empty() && random() % 4 == 0 ? OptOp::TC : static_cast<OptOp>(random() % 3),
            static_cast<int>(random() % static_cast<uint64_t>(axes)),
            1 + static_cast<int64_t>(random() % 4), static_cast<AxisType>(random() % 9),
            random() % 2 == 0};
    if (!groups && (opt.target == AxisType::Global || opt.target == AxisType::Local))
      opt.target = AxisType::Upcast;
    if (groups && opt.target == AxisType::Global && random() % 2 == 0) opt.amount = 0;
    opt.tc = {-1, static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 2)};
    if (opt.op == OptOp::Swap)
      opt.amount = static_cast<int64_t>(random() % static_cast<uint64_t>(axes));
    try {
      const UOp edited = apply_opt(ast, opt, target);
      // Ranges of reductions in another order, or lanes that fold, change the order of a sum.
      // So does unrolling the outer part of one.
      const AxisType moved = kernel_ranges(ast)[static_cast<size_t>(opt.axis)].as<RangeArg>().type;
      edits.reorders = edits.reorders ||
                       (opt.op == OptOp::Split && opt.target == AxisType::GroupReduce) ||
                       (opt.op == OptOp::Split && opt.target == AxisType::Unroll && opt.top) ||
                       (opt.op == OptOp::Swap && moved != AxisType::Loop);
      ast = edited;
      edits.list.push_back(opt);
    } catch (const Error&) {
    }
  }
  return edits;
}

bool folds_floats(const UOp& graph) {
  const NodeList below = toposort(graph);
  return std::any_of(below.begin(), below.end(),
                     [](const UOp& u) { return u.is(Op::Reduce) && is_float(u.dtype()); });
}

// One random sequence under one mode: empty, or what went wrong.
std::string problem_of(const UOp& graph, const BoundedArray& expected, bool strict,
                       std::mt19937_64& random) {
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
  }
  return "";
}

}  // namespace

TEST(opts, spec_O7_random_sequences_keep_values) {
  const int64_t cases = test_cases(600);
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
      ASSERT_EQ(problem_of(graph, expected, strict, random), "")
          << "KOINE_TEST_SEED=" << seed << " KOINE_TEST_CASES=1\n"
          << to_text(graph);
    }
  }
}

}  // namespace koine::test

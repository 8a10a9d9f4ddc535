#include "random_edits.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/graph.hpp"

namespace koine::test {

std::string Edits::text() const {
  std::string out;
  for (const Opt& o : list) out += opt_text(o) + " ";
  return out;
}

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
    if (groups && !edits.list.empty() && random() % 4 == 0) opt.op = OptOp::Stage;
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
      const auto is_loop = [&, ranges = kernel_ranges(ast)](int64_t axis) {
        return ranges[static_cast<size_t>(axis)].as<RangeArg>().type == AxisType::Loop;
      };
      edits.reorders = edits.reorders ||
                       (opt.op == OptOp::Split && opt.target == AxisType::GroupReduce) ||
                       (opt.op == OptOp::Split && opt.target == AxisType::Unroll && opt.top) ||
                       (opt.op == OptOp::Swap && !(is_loop(opt.axis) && is_loop(opt.amount)));
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

}  // namespace koine::test

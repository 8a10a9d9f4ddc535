#include "random_edits.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine::test {

std::string Edits::text() const {
  std::string out;
  for (const Opt& o : list) out += opt_text(o) + " ";
  return out;
}

namespace {

template <class T>
const T& one_of(const std::vector<T>& all, std::mt19937_64& random) {
  return all[random() % all.size()];
}

// What divides an axis of known size, but 1; 2 to 4 where nothing does, which a Padto mends.
int64_t factor_of(const UOp& axis, std::mt19937_64& random) {
  std::vector<int64_t> divisors;
  if (axis.src(0).is(Op::Const))
    for (int64_t d = 2; d <= std::min<int64_t>(const_int(axis.src(0)), 32); ++d)
      if (const_int(axis.src(0)) % d == 0) divisors.push_back(d);
  return divisors.empty() ? 2 + static_cast<int64_t>(random() % 3) : one_of(divisors, random);
}

// A split that may well be legal.
Opt likely_split(int number, const UOp& axis, bool groups, std::mt19937_64& random) {
  static const std::vector<AxisType> folds{AxisType::GroupReduce, AxisType::GroupReduce,
                                           AxisType::Unroll, AxisType::Reduce},
      loops{AxisType::Upcast, AxisType::Thread, AxisType::Loop},
      of_groups{AxisType::Global, AxisType::Local, AxisType::Local, AxisType::Upcast,
                AxisType::Loop};
  const bool is_fold = is_reduction(axis.as<RangeArg>().type);
  const AxisType to = one_of(is_fold ? folds : groups ? of_groups : loops, random);
  const bool all = to == AxisType::Global && random() % 2 == 0;
  return {OptOp::Split, number, all ? 0 : factor_of(axis, random), to, random() % 2 == 0};
}

// Any edit at all.
Opt draw_edit(const std::vector<UOp>& axes, bool first, bool groups, std::mt19937_64& random) {
  const auto axis = static_cast<int>(random() % axes.size());
  if (random() % 2 == 0) return likely_split(axis, axes[static_cast<size_t>(axis)], groups, random);
  Opt opt{first && random() % 4 == 0 ? OptOp::TC : static_cast<OptOp>(random() % 3), axis,
          1 + static_cast<int64_t>(random() % 4), static_cast<AxisType>(random() % 9),
          random() % 2 == 0};
  if (groups && !first && random() % 4 == 0)
    opt.op = random() % 2 == 0 ? OptOp::Stage : OptOp::Nolocals;
  if (!groups && (opt.target == AxisType::Global || opt.target == AxisType::Local))
    opt.target = AxisType::Upcast;
  opt.tc = {-1, static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 2)};
  if (opt.op == OptOp::Swap) opt.amount = static_cast<int64_t>(random() % axes.size());
  return opt;
}

}  // namespace

Edits random_edits(UOp ast, std::mt19937_64& random, const Target& target) {
  Edits edits;
  const size_t wanted = 1 + random() % 6;
  for (int attempt = 0; attempt < 24 && edits.list.size() < wanted; ++attempt) {
    const std::vector<UOp> axes = kernel_ranges(ast);
    if (axes.empty()) break;
    const Opt opt = draw_edit(axes, edits.list.empty(), bool{target.groups}, random);
    const UOp edited = apply_if_legal(ast, opt, target);
    if (!edited) continue;
    // Lanes that fold, the outer part of an unrolled sum, or its ranges in another order.
    const auto is_loop = [&](int64_t axis) {
      return axes[static_cast<size_t>(axis)].as<RangeArg>().type == AxisType::Loop;
    };
    edits.reorders = edits.reorders || reorders(opt) ||
                     (opt.op == OptOp::Swap && !(is_loop(opt.axis) && is_loop(opt.amount)));
    ast = edited;
    edits.list.push_back(opt);
  }
  return edits;
}

std::vector<Opt> legal_splits(const UOp& ast, std::initializer_list<int64_t> amounts,
                              const Target& target) {
  std::vector<Opt> out;
  const auto axes = static_cast<int>(kernel_ranges(ast).size());
  for (int axis = 0; axis < axes; ++axis)
    for (const int64_t amount : amounts)
      for (int type = 0; type < axis_type_count; ++type)
        for (const bool top : {false, true}) {
          const Opt opt{OptOp::Split, axis, amount, static_cast<AxisType>(type), top};
          if (can_apply(ast, opt, target)) out.push_back(opt);
        }
  return out;
}

bool reorders(const Opt& opt) {
  return opt.op == OptOp::Split &&
         (opt.target == AxisType::GroupReduce || (opt.target == AxisType::Unroll && opt.top));
}

bool folds_floats(const UOp& graph) {
  const NodeList below = toposort(graph);
  return std::any_of(below.begin(), below.end(),
                     [](const UOp& u) { return u.is(Op::Reduce) && is_float(u.dtype()); });
}

}  // namespace koine::test

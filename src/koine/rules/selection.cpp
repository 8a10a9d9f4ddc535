#include "koine/rules/selection.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// Reads one element of a tensor graph as a scalar of index arithmetic. What comes from memory
// stands in it as an Index at its place.
class ElementReader {
 public:
  explicit ElementReader(int64_t next_range) : next_range_(next_range) {}

  UOp read(const UOp& node, const Indices& at) {
    if (++visits_ > most_visits) return unknown(node, at);
    if (is_elementwise(node.op())) {
      std::vector<UOp> src;
      for (const UOp& s : node.src()) src.push_back(read(s, aligned(s, at)));
      return UOp::make(node.op(), src, node.arg());
    }
    switch (node.op()) {
      case Op::Const:
        return node;
      case Op::Contiguous:
      case Op::ContiguousBackward:
      case Op::Detach:
        return read(node.src(0), at);
      case Op::Reduce:
        return folded(node, at);
      case Op::Pad:
        if (node.src().size() == 3) return unknown(node, at);
        [[fallthrough]];
      case Op::Permute:
      case Op::Flip:
      case Op::Expand:
      case Op::Reshape:
      case Op::Shrink: {
        UOp inside;
        const Indices from = moved(node, at, inside);
        const UOp value = read(node.src(0), from);
        return is_true(inside) ? value : where(inside, value, read(node.src(3), {}));
      }
      default:
        return unknown(node, at);
    }
  }

 private:
  static constexpr int most_visits = 200;  // masks are small; the reader recurses

  static UOp unknown(const UOp& node, const Indices& at) {
    return at.empty() ? node : index(node, at);
  }

  UOp folded(const UOp& node, Indices at) {
    const ReduceArg& arg = node.as<ReduceArg>();
    std::vector<UOp> ranges;
    for (const int64_t k : arg.axes) {
      const auto axis = static_cast<size_t>(k);
      const UOp size = node.src(0).dim(axis);
      if (is_const(size, 0)) return unknown(node, at);
      if (is_const(size, 1)) continue;
      ranges.push_back(range(next_range_++, size, AxisType::Reduce));
      at[axis] = ranges.back();
    }
    const UOp body = rewrite(read(node.src(0), at), kernel_rules(false));
    return ranges.empty() ? body
                          : rewrite(reduce_ranges(arg.op, body, ranges), kernel_rules(false));
  }

  int64_t next_range_;
  int visits_ = 0;
};

// Whether a condition over a value of a shape is a position along one of its axes compared with
// an index, where a sum over `axes` picks by that axis (gather) or by the index (scatter).
bool is_one_hot(const UOp& condition, const UOp& shape, const Ints& axes) {
  Indices at;
  for (size_t k = 0; k < shape.src().size(); ++k)
    at.push_back(is_const(shape.src(k), 1)
                     ? index_const(0)
                     : range(static_cast<int64_t>(k), shape.src(k), AxisType::Loop));
  ElementReader reader(static_cast<int64_t>(at.size()));
  UOp element = rewrite(reader.read(condition, aligned(condition, at)), kernel_rules(false));
  element = rewrite(without_promises(element), kernel_rules(false));
  for (const UOp& part : conjuncts(element))
    for (size_t k = 0; k < at.size(); ++k) {
      if (!at[k].is(Op::Range)) continue;
      const UOp index = equal_to(part, at[k]);
      if (!index || depends_on(index, at[k])) continue;
      auto is_picked = [&](int64_t axis) {
        const UOp& r = at[static_cast<size_t>(axis)];
        return static_cast<size_t>(axis) == k || (r.is(Op::Range) && depends_on(index, r));
      };
      auto is_single = [&](int64_t axis) { return !at[static_cast<size_t>(axis)].is(Op::Range); };
      if (std::any_of(axes.begin(), axes.end(), is_picked) ||
          std::all_of(axes.begin(), axes.end(), is_single))
        return true;
    }
  return false;
}

// The condition behind a mask: cast from bool, then perhaps moved. Null for other values.
UOp condition_of(const UOp& mask) {
  std::vector<UOp> movements;
  UOp at = mask;
  for (; at.is(Op::Permute) || at.is(Op::Reshape) || at.is(Op::Expand) || at.is(Op::Flip) ||
         at.is(Op::Shrink);
       at = at.src(0))
    movements.push_back(at);
  if (!at.is(Op::Cast)) return {};
  while (at.is(Op::Cast)) at = at.src(0);
  if (at.dtype() != DType::Bool) return {};
  for (; !movements.empty(); movements.pop_back()) at = with_source(movements.back(), 0, at);
  return at;
}

}  // namespace

UOp one_hot_selection(const UOp& reduce) {
  const ReduceArg& arg = reduce.as<ReduceArg>();
  if (arg.op != Op::Add || arg.axes.empty()) return {};
  std::vector<DType> casts;
  UOp product = reduce.src(0);
  for (; product.is(Op::Cast); product = product.src(0)) casts.push_back(product.dtype());
  if (!product.is(Op::Mul) || !is_float(product.dtype())) return {};
  for (size_t side = 0; side < 2; ++side) {
    const UOp condition = condition_of(product.src(side));
    if (!condition || !is_one_hot(condition, product.shape(), arg.axes)) continue;
    const UOp& value = product.src(1 - side);
    UOp picked = where(condition, value, constant_int(value.dtype(), 0));
    for (size_t i = casts.size(); i-- > 0;) picked = cast(picked, casts[i]);
    return with_sources(reduce, std::vector<UOp>{picked});
  }
  return {};
}

const RuleSet<>& selection_rules() {
  static const auto& rules = *new const RuleSet<>{
      rule("one-hot product", node(Op::Reduce),
           [](const Match& m) { return one_hot_selection(m.root()); }),
  };
  return rules;
}

}  // namespace koine

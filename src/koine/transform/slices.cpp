#include "koine/transform/slices.hpp"

#include <optional>
#include <vector>

#include "koine/ir/build.hpp"
#include "koine/transform/compose.hpp"

namespace koine {
namespace {

UOp below_views(UOp u) {
  while (u.is(Op::Reshape) || u.is(Op::Expand) || u.is(Op::Cast)) u = UOp(u.src(0));
  return u;
}

// What of a condition `position < n` holds for all places of a slice: whether it does; nothing:
// that is not known, or differs.
class Slice {
 public:
  Slice(const UOp& value, const UOp& begin, const UOp& size)
      : rank_(value.rank()), begin_(begin), size_(size) {}

  static bool is_by_place(const UOp& condition) {
    return condition.is(Op::CmpLt) && is_integer(condition.src(0).dtype()) &&
           below_views(condition.src(1)).is(Op::Const);
  }

  std::optional<bool> of(const UOp& condition) {
    const UOp limit = below_views(condition.src(1));
    const std::optional<size_t> axis = axis_of_positions(condition.src(0));
    if (!axis || !is_integer(limit.dtype())) return std::nullopt;
    const UOp &from = begin_.src(*axis), &size = size_.src(*axis);
    if (!from.is(Op::Const) || !size.is(Op::Const)) return std::nullopt;
    if (const_int(from) + const_int(size) <= const_int(limit)) return true;
    return const_int(from) >= const_int(limit) ? std::optional(false) : std::nullopt;
  }

 private:
  // The axis along which a value counts 0, 1, ...
  std::optional<size_t> axis_of_positions(UOp u) {
    while (u.is(Op::Expand)) u = UOp(u.src(0));
    const UOp row = u.is(Op::Reshape) ? UOp(u.src(0)) : u;
    if (row.rank() != 1 || !row.dim(0).is(Op::Const) || u.rank() > rank_) return std::nullopt;
    std::optional<size_t> axis;
    for (size_t i = 0; i < u.rank(); ++i) {
      if (is_const(u.dim(i), 1)) continue;
      if (axis) return std::nullopt;
      axis = i;
    }
    if (!axis) return std::nullopt;
    if (!(row == positions_)) {  // a join asks for the same ones again and again
      const UOp counted = iota(row.dim(0), row.dtype());
      if (!(row == counted)) return std::nullopt;
      positions_ = counted;
    }
    return *axis + (rank_ - u.rank());
  }

  size_t rank_;
  UOp begin_, size_, positions_;
};

// As many choices are no work worth memory (`has_many_parts`).
constexpr size_t most_choices = 15;

UOp slice_of_choice(const UOp& shrunk) {
  const UOp &begin = shrunk.src(1), &size = shrunk.src(2), shape = shrunk.src(0).shape();
  UOp value = shrunk.src(0);
  Slice slice(value, begin, size);
  std::vector<UOp> kept;  // choices, outermost first
  bool left_out = false;
  while (value.is(Op::Where) && value.shape() == shape && Slice::is_by_place(value.src(0))) {
    const std::optional<bool> holds = slice.of(value.src(0));
    if (!holds) kept.push_back(value);
    if (kept.size() > most_choices) return {};
    left_out = left_out || holds;
    value = broadcast_to(value.src(holds.value_or(true) ? 1 : 2), shape);
  }
  if (!left_out) return {};
  auto sliced = [&](const UOp& u) { return koine::shrink(broadcast_to(u, shape), begin, size); };
  UOp out = sliced(value);
  for (; !kept.empty(); kept.pop_back())
    out = where(sliced(kept.back().src(0)), out, sliced(kept.back().src(2)));
  return out;
}

}  // namespace

const RuleSet<>& slice_rules() {
  static const auto& rules = *new const RuleSet<>(RuleSet<>{
      rule("shrink(choice by place)", node(Op::Shrink, {node_with(Op::Where, {}), any(0), any(1)}),
           [](const Match& m) { return slice_of_choice(m.root()); }),
  });
  return rules;
}

}  // namespace koine

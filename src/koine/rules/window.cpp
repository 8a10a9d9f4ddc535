#include "koine/rules/window.hpp"

#include <algorithm>
#include <vector>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// What divided by `step`, and rounded down, bounds a Range: from above, or, as the first value that
// is too small, from below.
struct Bound {
  UOp numerator;
  int64_t step;
  UOp part;  // the condition that says so
};
struct Bounds {
  std::vector<Bound> upper, lower;
};

// From a comparison of index scalars, or its negation.
void add_bound(const UOp& part, const UOp& range, Bounds& out) {
  UOp c = part;
  bool negated = false;
  while (c.is(Op::CmpNe) && is_const(c.src(1), 1) && c.src(0).dtype() == DType::Bool) {
    negated = !negated;
    c = UOp(c.src(0));
  }
  if (!c.is(Op::CmpLt) || c.src(0).dtype() != DType::Index) return;
  UOp below_zero = sub(c.src(0), c.src(1));
  if (negated) below_zero = sub(index_const(-1), below_zero);
  int64_t step = 0;
  UOp rest;
  if (!linear_coefficient(simplify_index(below_zero), range, step, rest)) return;
  if (step > 0) out.upper.push_back({sub(index_const(-1), rest), step, part});
  if (step < 0) out.lower.push_back({rest, -step, part});
}

// A conjunction without some of its parts.
UOp without(const std::vector<UOp>& parts, std::initializer_list<UOp> known) {
  UOp rest = constant_bool(true);
  for (const UOp& part : parts)
    if (std::find(known.begin(), known.end(), part) == known.end())
      rest = is_const(rest, 1) ? part : bit_and(rest, part);
  return rest;
}

}  // namespace

std::optional<Window> window_of(const UOp& condition, const UOp& range) {
  const std::vector<UOp> parts = conjuncts(condition);
  for (const UOp& part : parts)
    if (const UOp at = equal_to(part, range); at && !depends_on(at, range))
      return Window{at, 1, without(parts, {part})};
  if (!range.src(0).is(Op::Const)) return std::nullopt;
  Bounds bounds;
  for (const UOp& part : parts) add_bound(part, range, bounds);
  // Those of the Range itself.
  bounds.upper.push_back({sub(range.src(0), index_const(1)), 1, {}});
  bounds.lower.push_back({index_const(-1), 1, {}});
  std::optional<Window> out;
  int64_t fewest = const_int(range.src(0));
  for (const Bound& u : bounds.upper)
    for (const Bound& l : bounds.lower) {
      const UOp width = simplify_index(sub(u.numerator, l.numerator));
      if (u.step != l.step || !width.is(Op::Const)) continue;
      const int64_t count = (const_int(width) + u.step - 1) / u.step;
      if (count < 1 || count >= fewest) continue;
      fewest = count;
      // None of them is above the upper bound; none is below the lower one where steps fit.
      const bool exact = const_int(width) % u.step == 0;
      out = Window{simplify_index(idiv(u.numerator, index_const(u.step))), count,
                   without(parts, {u.part, exact ? l.part : u.part})};
    }
  return out;
}

}  // namespace koine

#include "koine/lower/use.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/cost.hpp"

namespace koine {

Use Use::at_place(Indices place) const {
  Use out = *this;
  out.at = std::move(place);
  return out;
}

Dependence::Dependence(const Use& use) {
  for (const UOp& index : use.at) add(index);
  if (use.guard) add(use.guard);
}
bool Dependence::on(const UOp& loop) const {
  return std::find(used_.begin(), used_.end(), loop.node()) != used_.end();
}
void Dependence::add(const UOp& index) {
  used_.insert(used_.end(), index.ranges().begin(), index.ranges().end());
}

std::vector<UOp> loops_around(const Use& use) {
  const Dependence place(use);
  std::vector<UOp> out = use.loops;
  while (!out.empty() && !place.on(out.back())) out.pop_back();
  return out;
}

double times_computed(const Use& use) {
  double out = 1;
  for (const UOp& loop : loops_around(use)) out *= largest(loop.src(0));
  return out;
}

bool data_decides(const Use& use) {
  return std::any_of(use.at.begin(), use.at.end(), [](const UOp& index) {
    constexpr OpMask memory = mask_of(Op::Param) | mask_of(Op::Buffer);
    if ((index.node()->ops_below & memory) == 0) return false;
    const NodeList below = toposort(index);
    return std::any_of(below.begin(), below.end(), [](const UOp& u) {
      return u.is(Op::Buffer) || (u.is(Op::Param) && !is_variable(u));
    });
  });
}

Use moved_to_source(const UOp& movement, const Use& use) {
  UOp inside;
  Use out = use.at_place(moved(movement, use.at, inside));
  out.guard = conjunction(use.guard, inside);
  return out;
}

Use start_of_row(const Ints& axes, Use use) {
  for (const int64_t axis : axes) use.at[static_cast<size_t>(axis)] = index_const(0);
  return use;
}

std::vector<UOp> whole_axes(const UOp& value, const Use& use) {
  std::vector<UOp> out(value.rank());
  for (size_t i = 0; i < value.rank(); ++i) {
    const UOp& index = use.at[i];
    if (!index.is(Op::Range) || !(index.src(0) == value.dim(i))) continue;
    const Use others = start_of_row({static_cast<int64_t>(i)}, use);
    if (!Dependence(others).on(index)) out[i] = index;
  }
  return out;
}

}  // namespace koine

#include "koine/lower/use.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/cost.hpp"
#include "koine/rules/simplify.hpp"

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

namespace {

bool reads_data(const UOp& index) {
  constexpr OpMask memory = mask_of(Op::Param) | mask_of(Op::Buffer);
  if ((index.node()->ops_below & memory) == 0) return false;
  const NodeList below = toposort(index);
  return std::any_of(below.begin(), below.end(), [](const UOp& u) {
    return u.is(Op::Buffer) || (u.is(Op::Param) && !is_variable(u));
  });
}

// Places along an axis, from `base` + `first` to `base` + `last`.
struct Stretch {
  UOp base;
  __int128 first, last;
};

// Without Variables, which may stand anywhere: places beside one that stands in the loops' start.
// A place under a condition may lie outside where that does not hold, and nothing is read there.
std::optional<Stretch> stretch_of(const UOp& at, int64_t size) {
  const Interval all = at.bounds();
  if ((at.node()->ops_below & mask_of(Op::Param)) == 0)
    return Stretch{index_const(0), std::max<__int128>(all.low, 0),
                   std::min<__int128>(all.high, size - 1)};
  if (all.low < 0 || all.high >= size) return std::nullopt;
  if (reads_data(at)) return Stretch{index_const(0), all.low, all.high};
  Substitution at_start;
  for (const Node* loop : at.ranges()) at_start.emplace(UOp::share(loop), index_const(0));
  const UOp base = simplify(substitute(at, at_start)), rest = simplify(sub(at, base));
  if ((rest.node()->ops_below & mask_of(Op::Param)) != 0) return std::nullopt;
  return Stretch{base, rest.bounds().low, rest.bounds().high};
}

std::optional<Stretch> stretch_read(const std::vector<Use>& uses, size_t axis, int64_t size) {
  std::optional<Stretch> out;
  for (const Use& use : uses) {
    const auto stretch = stretch_of(use.at[axis], size);
    if (!stretch || (out && !(stretch->base == out->base))) return std::nullopt;
    if (!out) out = stretch;
    out->first = std::min(out->first, stretch->first);
    out->last = std::max(out->last, stretch->last);
  }
  return out;
}

}  // namespace

PartRead part_read(const UOp& value, const std::vector<Use>& uses, std::optional<size_t> whole) {
  PartRead out;
  std::vector<UOp> offset, shape;
  for (size_t i = 0; i < value.rank(); ++i) {
    UOp size = value.dim(i), from = index_const(0);
    if (size.is(Op::Const)) {
      const auto stretch = stretch_read(uses, i, const_int(size));
      const __int128 count = stretch ? stretch->last - stretch->first + 1 : const_int(size);
      const __int128 most = const_int(size);
      if (count > 0 && 4 * count <= 3 * most && (i != whole || count == 1)) {
        from = simplify(add(stretch->base, index_const(static_cast<int64_t>(stretch->first))));
        size = index_const(static_cast<int64_t>(count));
        out.much_less = true;
      }
    }
    out.elements *= largest(size);
    offset.push_back(from);
    shape.push_back(size);
  }
  if (!out.much_less) return out;
  out.offset = stack(offset);
  out.shape = stack(shape);
  return out;
}

bool data_decides(const Use& use) { return std::any_of(use.at.begin(), use.at.end(), reads_data); }

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

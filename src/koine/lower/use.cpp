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

double times_computed(const Use& use) { return turns_of(loops_around(use)); }

namespace {

constexpr OpMask memory_or_variable = mask_of(Op::Param) | mask_of(Op::Buffer);

// Whether some memory, or some Variable, lies below a place.
template <class Condition>
bool lies_below(const UOp& index, const Condition& condition) {
  if ((index.node()->ops_below & memory_or_variable) == 0) return false;
  const NodeList below = toposort(index);
  return std::any_of(below.begin(), below.end(), condition);
}
bool reads_variable(const UOp& index) {
  return lies_below(index, [](const UOp& u) { return is_variable(u); });
}

}  // namespace

namespace {

// Whether an axis holds the places in windows that share elements: e mod n, where steps of a sum go
// over the same e as steps of the loop around it.
bool is_in_shared_windows(const UOp& place, const UOp& loop, const Use& use) {
  const UOp at = simplify_index(place);
  int64_t along = 0;
  UOp rest;
  if (!at.is(Op::Mod) || !linear_coefficient(at.src(0), loop, along, rest)) return false;
  return std::ranges::any_of(use.loops, [&](const UOp& r) {
    int64_t step = 0;
    return r.as<RangeArg>().type == AxisType::Reduce &&
           linear_coefficient(at.src(0), r, step, rest) && step > 0 &&
           static_cast<double>(along) < static_cast<double>(step) * largest(r.src(0));
  });
}

}  // namespace

Ints order_read(const UOp& value, const Use& use) {
  const auto size = [&](size_t axis) { return largest(value.dim(axis)); };
  std::vector<bool> in_front(value.rank());
  size_t first = value.rank();  // before which those stand
  for (const UOp& loop : use.loops) {
    if (loop.as<RangeArg>().type != AxisType::Loop) continue;
    std::vector<size_t> along;
    for (size_t i = 0; i < value.rank(); ++i)
      if (size(i) > 1 && depends_on(use.at[i], loop)) along.push_back(i);
    if (along.size() < 2) continue;
    const size_t longest = *std::ranges::max_element(along, {}, size);
    for (const size_t axis : along)
      if (axis != longest && is_in_shared_windows(use.at[axis], loop, use)) {
        in_front[axis] = true;
        first = std::min(first, longest);
      }
  }
  if (first == value.rank()) return {};
  Ints out;
  for (size_t i = 0; i < value.rank(); ++i) {
    for (size_t j = 0; i == first && j < value.rank(); ++j)
      if (in_front[j]) out.push_back(static_cast<int64_t>(j));
    if (!in_front[i]) out.push_back(static_cast<int64_t>(i));
  }
  return out;
}

bool reads_data(const UOp& index) {
  return lies_below(
      index, [](const UOp& u) { return u.is(Op::Buffer) || (u.is(Op::Param) && !is_variable(u)); });
}

namespace {

// Places along an axis, from `base` + `first` to `base` + `last`.
struct Stretch {
  UOp base;
  __int128 first, last;
};

// Variables may stand anywhere: what they are part of is the base, and what loops and data add to
// it lies within bounds.
std::optional<Stretch> stretch_beside_variables(const UOp& at) {
  if (!reads_variable(at)) return Stretch{index_const(0), at.bounds().low, at.bounds().high};
  if (at.ranges().empty() && !reads_data(at)) return Stretch{at, 0, 0};
  if (at.is(Op::Assume)) return stretch_beside_variables(at.src(0));
  if (at.is(Op::Add)) {
    const auto a = stretch_beside_variables(at.src(0)), b = stretch_beside_variables(at.src(1));
    if (!a || !b) return std::nullopt;
    return Stretch{add(a->base, b->base), a->first + b->first, a->last + b->last};
  }
  const bool scales = at.is(Op::Mul) || at.is(Op::Idiv);
  if (!scales || !at.src(1).is(Op::Const) || const_int(at.src(1)) <= 0) return std::nullopt;
  const auto inner = stretch_beside_variables(at.src(0));
  if (!inner || inner->first != static_cast<int64_t>(inner->first)) return std::nullopt;
  const UOp& by = at.src(1);
  if (at.is(Op::Mul))
    return Stretch{mul(inner->base, by), inner->first * const_int(by), inner->last * const_int(by)};
  // How far the quotient goes depends on where between two multiples it begins.
  const UOp start = add(inner->base, index_const(static_cast<int64_t>(inner->first)));
  return Stretch{idiv(start, by), 0,
                 (inner->last - inner->first + const_int(by) - 1) / const_int(by)};
}

// A place under a condition may lie outside where that does not hold, and nothing is read there.
std::optional<Stretch> stretch_of(const UOp& at, int64_t size) {
  const Interval all = at.bounds();
  if ((at.node()->ops_below & mask_of(Op::Param)) == 0)
    return Stretch{index_const(0), std::max<__int128>(all.low, 0),
                   std::min<__int128>(all.high, size - 1)};
  if (all.low < 0 || all.high >= size) return std::nullopt;
  auto out = stretch_beside_variables(at);
  if (!out || out->last - out->first >= size) return std::nullopt;
  // The part is computed under no condition: where its places would begin before the axis, or end
  // behind it, they are the first or the last ones.
  out->base = simplify(without_promises(out->base));
  const auto first_base = static_cast<int64_t>(-out->first),
             last_base = static_cast<int64_t>(size - 1 - out->last);
  if (out->base.bounds().high > last_base)
    out->base = simplify(minimum(out->base, index_const(last_base)));
  if (out->base.bounds().low < first_base)
    out->base = simplify(maximum(out->base, index_const(first_base)));
  return out;
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

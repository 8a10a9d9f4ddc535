#include "koine/lower/joins.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/index.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

bool is_positive_zero(const UOp& fill) {
  UOp u = fill;
  while (u.is(Op::Cast)) u = UOp(u.src(0));
  return u.is(Op::Const) && u.as<ConstArg>().bits == 0;
}

// A Pad along one axis, which all Pads of a join share.
bool add_pad(Join& join, const UOp& pad, const UOp& shown, bool onto_zero) {
  if (!pad.is(Op::Pad) || !(pad.shape() == join.value.shape())) return false;
  const UOp &source = pad.src(0), &offsets = pad.src(1);
  if (onto_zero && (pad.src().size() != 4 || !is_positive_zero(pad.src(3)))) return false;
  int64_t axis = -1;
  for (size_t i = 0; i < pad.rank(); ++i) {
    if (source.dim(i) == pad.dim(i)) continue;
    if (axis >= 0) return false;
    axis = static_cast<int64_t>(i);
  }
  if (axis < 0 || (!join.parts.empty() && axis != join.axis)) return false;
  join.axis = axis;
  const auto i = static_cast<size_t>(axis);
  // As the sum makes it of -0.
  const bool rounds = onto_zero && is_float(source.dtype());
  join.parts.push_back(
      {source, rounds ? add(source, pad.src(3)) : source, offsets.src(i), source.dim(i), shown});
  join.inner.push_back(pad);
  return true;
}

bool read_cat(Join& join) {
  UOp rest = join.value;
  for (; rest.is(Op::Where); rest = UOp(rest.src(1))) {
    join.inner.push_back(rest);
    if (!add_pad(join, rest.src(2), rest.src(0), false)) return false;
  }
  return add_pad(join, rest, {}, false);
}

bool read_sum(Join& join) {
  std::vector<const UOp*> pending{&join.value};
  while (!pending.empty()) {
    const UOp& u = *pending.back();
    pending.pop_back();
    if (!u.is(Op::Add)) {
      if (!add_pad(join, u, {}, true)) return false;
      continue;
    }
    join.inner.push_back(u);
    for (const UOp& s : u.src()) pending.push_back(&s);
  }
  return true;
}

bool read_stack(Join& join) {
  const UOp& value = join.value;
  const bool permuted = value.is(Op::Permute);
  const UOp& stacked = permuted ? value.src(0) : value;
  if (!stacked.is(Op::Stack) || stacked.rank() == 0) return false;
  Ints order(stacked.rank());
  std::iota(order.begin(), order.end(), 0);
  if (permuted) order = value.as<Ints>();
  join.axis = std::find(order.begin(), order.end(), 0) - order.begin();
  join.inner = {value, stacked};
  std::vector<UOp> sizes(stacked.shape().src().begin(), stacked.shape().src().end());
  sizes[0] = index_const(1);
  for (const UOp& part : stacked.src()) {
    const UOp row = reshape(part, stack(sizes));
    join.parts.push_back({part,
                          permuted ? permute(row, {order.begin(), order.end()}) : row,
                          index_const(static_cast<int64_t>(join.parts.size())),
                          index_const(1),
                          {}});
  }
  return true;
}

// Whether each part begins where another ends.
bool fill_the_axis(const Join& join) {
  absl::flat_hash_map<const Node*, const Join::Part*> by_start;
  for (const Join::Part& part : join.parts)
    if (!is_const(part.size, 0) && !by_start.emplace(simplify(part.from).node(), &part).second)
      return false;
  UOp at = index_const(0);
  for (size_t k = 0; k < by_start.size(); ++k) {
    const auto next = by_start.find(at.node());
    if (next == by_start.end()) return false;
    at = simplify(add(at, next->second->size));
  }
  return at == simplify(join.value.dim(static_cast<size_t>(join.axis)));
}

// The conditions of a join, whose places are pushed down to what they share once.
class Conditions {
 public:
  explicit Conditions(const Join& join)
      : axis_(join.axis),
        leaves_([](const UOp&) { return false; }),
        indexer_(leaves_, true, static_cast<int64_t>(join.value.rank())) {
    for (size_t i = 0; i < join.value.rank(); ++i)
      at_.push_back(range(static_cast<int64_t>(i), join.value.dim(i), AxisType::Loop));
  }

  /// A condition at all places from one along the axis on.
  UOp at(const UOp& condition, const UOp& from, const UOp& size) {
    const UOp everywhere = indexer_.element(condition, aligned(condition, at_));
    const UOp along = add(range(axis_, size, AxisType::Loop), from);
    return rewrite(substitute(everywhere, {{at_[static_cast<size_t>(axis_)], along}}),
                   kernel_rules(true));
  }

 private:
  int64_t axis_;
  Leaves leaves_;
  Indexer indexer_;
  Indices at_;
};

}  // namespace

UOp Join::slice(const UOp& memory, const Part& part) const {
  return koine::slice(memory, static_cast<size_t>(axis), part.from, part.size);
}

std::optional<Join> join_of(const UOp& value) {
  Join out{value, 0, {}, {}};
  const bool is_join = value.is(Op::Where) ? read_cat(out)
                       : value.is(Op::Add) ? read_sum(out)
                                           : read_stack(out);
  if (!is_join || !fill_the_axis(out)) return std::nullopt;
  std::stable_sort(
      out.parts.begin(), out.parts.end(),
      [](const Join::Part& a, const Join::Part& b) { return largest(a.size) < largest(b.size); });
  return out;
}

bool has_many_parts(const Join& join) {
  constexpr size_t most_parts_in_place = 16;
  return join.parts.size() > most_parts_in_place;
}

bool shows_its_parts(const Join& join) {
  Conditions conditions(join);
  return std::all_of(join.parts.begin(), join.parts.end(), [&](const Join::Part& part) {
    return !part.shown || (is_true(conditions.at(part.shown, index_const(0), part.from)) &&
                           is_false(conditions.at(part.shown, part.from, part.size)));
  });
}

bool is_marked_part(const UOp& source) {
  const auto* reason = std::get_if<std::string>(&source.arg());
  return source.is(Op::Contiguous) && reason != nullptr && *reason == part_of_a_join;
}

}  // namespace koine

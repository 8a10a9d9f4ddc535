#include "koine/lower/forwarding.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/loop_order.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// A Store of the first kernel, and what the second one loads of it: the loops that stand there in
// place of those of the Store.
struct Stored {
  PlacedStore placed;
  std::vector<std::pair<UOp, Indices>> loads;
  size_t common;  // so many loops are those of the Store in all of them
};

// The loops by which a Load walks over what loops store, each of them by one as long; null: it does
// not.
std::optional<Indices> loops_of_load(const UOp& load, const UOp& store,
                                     std::span<const UOp> loops) {
  const UOp &from = load.src(0), &to = store.src(0);
  Indices out(loops.begin(), loops.end());
  if (from == to) return out;
  if (!(from.src(0) == to.src(0))) return std::nullopt;
  const UOp &place = from.src(1), &stored = to.src(1);
  Substitution moved;
  for (UOp& loop : out) {
    const int64_t step = step_of(stored, loop);
    if (step == 0) return std::nullopt;
    if (step_of(place, loop) == step) continue;
    const auto ranges = place.ranges();
    const auto other = std::find_if(ranges.begin(), ranges.end(), [&](const Node* r) {
      const UOp range = UOp::share(r);
      return range.src(0) == loop.src(0) && step_of(place, range) == step;
    });
    if (other == ranges.end()) return std::nullopt;
    moved.emplace(loop, UOp::share(*other));
    loop = UOp::share(*other);
  }
  if (!(simplify_index(substitute(stored, moved)) == place)) return std::nullopt;
  return out;
}

// Whether an element of a value costs more than a Load, of memory or of a row.
bool is_computed(const UOp& value) {
  bool out = false;
  toposort(value, [&](const UOp& u) {
    out = out || is_operation(u) || u.is(Op::Reduce);
    return !u.is(Op::After);
  });
  return out;
}

// Whether something below a value has loops or rows of its own inside of these.
bool has_loops_inside(const UOp& value, std::span<const UOp> loops) {
  const NodeList below = toposort(value);
  return std::any_of(below.begin(), below.end(), [&](const UOp& u) {
    return (u.is(Op::Reduce) || u.is(Op::End)) &&
           std::any_of(loops.begin(), loops.end(),
                       [&](const UOp& loop) { return depends_on(u, loop); });
  });
}

class Forwarder {
 public:
  Forwarder(const Nest& first, const Nest& second)
      : loops_(first.loops),
        next_range_(std::max(first.next_range, second.next_range)),
        next_row_(std::max(first.next_row, second.next_row)) {
    out_.common = std::min(first.loops.size(), second.loops.size());
    for (const PlacedStore& s : first.stores) stored_.push_back({s, {}, s.depth});
  }

  std::optional<Forwarding> run(const Nest& second) {
    for (const UOp& load : second.loads)
      if (!find(load)) return std::nullopt;
    for (const Stored& stored : stored_)
      if (!forward(stored)) return std::nullopt;
    // Who else has such a value reads its row.
    for (PlacedStore& s : out_.stores) s.store = substitute(s.store, in_rows_);
    for (auto& [load, value] : out_.values) value = substitute(value, in_rows_);
    return std::move(out_);
  }

 private:
  // Which Store a Load reads; false: one, but another element.
  bool find(const UOp& load) {
    bool elsewhere = false;
    for (Stored& stored : stored_) {
      const auto& [store, depth] = stored.placed;
      if (slot_of(store) != slot_of(load)) continue;
      elsewhere = true;
      const auto around = std::span(loops_).first(depth);
      auto at = loops_of_load(load, store, around);
      if (!at) continue;
      const auto same = std::mismatch(at->begin(), at->end(), around.begin()).first - at->begin();
      stored.common = std::min(stored.common, static_cast<size_t>(same));
      stored.loads.emplace_back(load, std::move(*at));
      return true;
    }
    return !elsewhere;
  }

  bool forward(const Stored& stored) {
    const std::span<const UOp> loops(loops_);
    const auto& [store, depth] = stored.placed;
    const UOp value = substitute(store.src(1), in_rows_);
    const auto along = loops.subspan(stored.common, depth - stored.common);
    if (!along.empty() && has_loops_inside(value, along)) return false;
    const bool varies = std::any_of(along.begin(), along.end(),
                                    [&](const UOp& loop) { return depends_on(value, loop); });
    if (!varies || !is_computed(value)) {
      for (const auto& [load, at] : stored.loads) take(load, value, loops.first(depth), at);
      out_.stores.push_back({koine::store(store.src(0), value), depth});
      return true;
    }
    if (std::any_of(along.begin(), along.end(),
                    [](const UOp& loop) { return !loop.src(0).is(Op::Const); }))
      return false;
    double bytes = item_size(value.dtype());
    for (const UOp& loop : along) bytes *= largest(loop.src(0));
    if (bytes > most_local_bytes) return false;
    const UOp row = filled_row(value, along);
    auto in_row = [&](const Indices& at) { return load_at(row, along, at); };
    const UOp own = in_row({along.begin(), along.end()});
    out_.stores.push_back({koine::store(store.src(0), own), depth});
    in_rows_.emplace(store.src(1), own);
    for (const auto& [load, at] : stored.loads) {
      const Indices inside(at.begin() + static_cast<std::ptrdiff_t>(stored.common), at.end());
      const UOp element = in_row(inside);
      out_.values.emplace(load, load.src().size() == 3
                                    ? koine::load(element.src(0), load.src(1), load.src(2))
                                    : element);
    }
    out_.common = std::min(out_.common, stored.common);
    out_.has_rows = true;
    return true;
  }

  void take(const UOp& load, const UOp& value, std::span<const UOp> loops, const Indices& at) {
    Substitution moved;
    for (size_t i = 0; i < at.size(); ++i)
      if (!(at[i] == loops[i])) moved.emplace(loops[i], at[i]);
    const UOp here = moved.empty() ? value : substitute(value, moved);
    out_.values.emplace(load,
                        load.src().size() == 3 ? where(load.src(2), here, load.src(1)) : here);
  }

  static UOp load_at(const UOp& row, std::span<const UOp> along, const Indices& at) {
    std::vector<UOp> sizes;
    for (const UOp& loop : along) sizes.push_back(loop.src(0));
    return load(index(row, {flat_index(stack(sizes), at)}));
  }

  // LOCAL memory that loops of its own have filled with the values along these.
  UOp filled_row(const UOp& value, std::span<const UOp> along) {
    int64_t size = 1;
    Substitution moved;
    std::vector<UOp> loops;
    for (const UOp& loop : along) {
      size *= const_int(loop.src(0));
      loops.push_back(range(next_range_++, loop.src(0), AxisType::Loop));
      moved.emplace(loop, loops.back());
    }
    const UOp row = UOp::make(Op::Buffer, {shape_of({size})},
                              BufferArg{next_row_++, value.dtype(), {}, AddrSpace::Local});
    const UOp address = load_at(row, along, loops).src(0);
    return after(row, {end(koine::store(address, substitute(value, moved)), loops)});
  }

  const std::vector<UOp>& loops_;
  int64_t next_range_, next_row_;
  std::vector<Stored> stored_;
  Substitution in_rows_;  // values of the first, and their elements of rows
  Forwarding out_;
};

}  // namespace

std::optional<Forwarding> forward(const Nest& first, const Nest& second) {
  return Forwarder(first, second).run(second);
}

}  // namespace koine

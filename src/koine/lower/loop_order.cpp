#include "koine/lower/loop_order.hpp"

#include <absl/container/flat_hash_set.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/ranges.hpp"

namespace koine {

int64_t step_of(const UOp& place, const UOp& loop) {
  int64_t out = 0;
  UOp rest;
  return linear_coefficient(place, loop, out, rest) ? out : 0;
}

namespace {

// Stores first: what one kernel stores and another one reads says most.
std::vector<UOp> accesses_of(const Nest& nest) {
  std::vector<UOp> out;
  for (const auto& [store, depth] : nest.stores) out.push_back(store);
  out.insert(out.end(), nest.loads.begin(), nest.loads.end());
  return out;
}

// The loop of `wide` in place of each of `narrow`, where they take the same steps; empty: none.
std::vector<UOp> alike(const UOp& place, std::span<const UOp> narrow, const UOp& other,
                       std::span<const UOp> wide) {
  std::vector<UOp> out;
  for (const UOp& loop : narrow) {
    const int64_t step = step_of(place, loop);
    const auto same = std::ranges::find_if(wide, [&](const UOp& l) {
      return step != 0 && l.src(0) == loop.src(0) && !is_among(out, l) && step_of(other, l) == step;
    });
    if (same == wide.end()) return {};
    out.push_back(*same);
  }
  return out;
}

}  // namespace

std::vector<UOp> loops_in_order_of(const Placed& narrow, const Placed& wide) {
  const std::vector<UOp> accesses = accesses_of(wide.nest);
  auto memory = [](const Placed& of, const UOp& access) {
    return of.buffers[static_cast<size_t>(slot_of(access))];
  };
  for (const UOp& a : accesses_of(narrow.nest))
    for (const UOp& b : accesses) {
      if (!(memory(narrow, a) == memory(wide, b)) || (a.is(Op::Store) && b.is(Op::Store))) continue;
      std::vector<UOp> out =
          alike(a.src(0).src(1), narrow.nest.loops, b.src(0).src(1), wide.nest.loops);
      if (out.empty()) continue;
      for (const UOp& loop : wide.nest.loops)
        if (!is_among(out, loop)) out.push_back(loop);
      return out;
    }
  return {};
}

bool has_free_order(const Nest& nest) {
  return !nest.is_running && nest.rows.empty() &&
         std::ranges::all_of(nest.stores,
                             [&](const PlacedStore& s) { return s.depth == nest.loops.size(); }) &&
         (nest.kernel.node()->ops_below & mask_of(Op::Reduce)) == 0 &&
         std::ranges::all_of(nest.loops,
                             [](const UOp& loop) { return loop.src(0).ranges().empty(); });
}

UOp in_loop_order(const Nest& nest, std::span<const UOp> order, const Nest& narrow) {
  int64_t next = std::max(nest.next_range, narrow.next_range);
  Substitution renamed;
  std::vector<UOp> loops;
  for (size_t i = 0; i < order.size(); ++i) {
    const RangeArg& arg = order[i].as<RangeArg>();
    loops.push_back(i < narrow.loops.size() ? narrow.loops[i]
                                            : range(next++, order[i].src(0), arg.type));
    renamed.emplace(order[i], loops.back());
  }
  std::vector<PlacedStore> stores;
  for (const auto& [store, depth] : nest.stores)
    stores.push_back({substitute(store, renamed), depth});
  return nested(loops, stores);
}

bool rows_fit(const Nest& nest, size_t outer) {
  const std::span<const UOp> loops(nest.loops);
  const double columns = turns_of(loops.first(outer)), length = turns_of(loops.subspan(outer));
  double bytes = 0;   // of a column, in all that the kernel goes over
  int64_t apart = 1;  // a power of two: lines of a cache that lie so far apart share few places
  bool beside = false;
  absl::flat_hash_set<int64_t> seen;
  auto note = [&](const UOp& access, DType dtype) {
    const UOp& place = access.src(0).src(1);
    if (place.ranges().size() <= outer || !seen.insert(slot_of(access)).second) return;
    bytes += length * static_cast<double>(item_size(dtype));
    for (const UOp& loop : loops.first(outer)) beside = beside || step_of(place, loop) == 1;
    for (const UOp& loop : loops.subspan(outer)) {
      const int64_t step = step_of(place, loop);
      apart = std::max(apart, (step & -step) * item_size(dtype));
    }
  };
  for (const UOp& l : nest.loads) note(l, l.dtype());
  for (const auto& [s, depth] : nest.stores) note(s, s.src(1).dtype());
  const double lanes = beside ? lanes_of_columns : 1;
  const double kept =
      beside ? most_bytes_of_rows / std::max(1.0, apart / 1024.0) : most_bytes_of_rows;
  return bytes * lanes <= kept && (columns >= lanes * enough_parts ||
                                   estimate_of(nest.kernel).steps < least_steps_for_threads);
}

}  // namespace koine

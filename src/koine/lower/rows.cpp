#include "koine/lower/rows.hpp"

#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/repeated_work.hpp"

namespace koine {
namespace {

// Whether a place goes along these axes by loops of its own, inside of all others it depends on.
bool walks_rows(const UOp& u, const Use& use, const Ints& axes,
                absl::flat_hash_set<const Node*>& walked) {
  const std::vector<UOp> whole = whole_axes(u, use);
  const size_t outer = loops_around(start_of_row(axes, use)).size();
  for (const int64_t axis : axes) {
    const UOp& along = whole[static_cast<size_t>(axis)];
    if (!along || !walked.insert(along.node()).second) return false;
    const auto at = std::find(use.loops.begin(), use.loops.end(), along);
    if (at == use.loops.end() || static_cast<size_t>(at - use.loops.begin()) < outer) return false;
  }
  return true;
}

}  // namespace

std::optional<Row> row_of(const ValueFacts& facts, const UOp& u, const std::vector<Use>& uses,
                          double free_bytes) {
  if (uses.size() < 2 || !is_elementwise(u.op()) || !facts.reads_memory(u) ||
      facts.is_chosen_by_place(u) || facts.picks(u))
    return std::nullopt;
  if (cost_between_folds(facts, u) < 1) return std::nullopt;
  const Use& first = uses[0];
  Row out{{}, static_cast<double>(item_size(u.dtype())), {}};
  for (size_t i = 0; i < u.rank(); ++i)
    if (std::any_of(uses.begin(), uses.end(),
                    [&](const Use& use) { return !(use.at[i] == first.at[i]); }))
      out.axes.push_back(static_cast<int64_t>(i));
  absl::flat_hash_set<const Node*> walked;
  for (const Use& use : uses)
    if (!(use.kernel == first.kernel && use.guard == first.guard) || use.folded_on ||
        !walks_rows(u, use, out.axes, walked))
      return std::nullopt;
  for (const int64_t axis : out.axes) out.bytes *= largest(u.dim(static_cast<size_t>(axis)));
  if (out.bytes > free_bytes) return std::nullopt;
  out.reason = fmt::format("a row is read by {} loops", uses.size());
  return out;
}

std::vector<Use> where_rows_are_filled(const UOp& u, const Ints& axes, const std::vector<Use>& uses,
                                       int64_t& next_range) {
  std::vector<Use> out, starts;
  for (const Use& use : uses) {
    Use start = start_of_row(axes, use);
    if (std::any_of(starts.begin(), starts.end(), [&](const Use& other) {
          return other.kernel == start.kernel && other.at == start.at;
        }))
      continue;
    starts.push_back(start);
    start.loops = loops_around(start);
    for (const int64_t axis : axes) {
      const auto i = static_cast<size_t>(axis);
      if (is_const(u.dim(i), 1)) continue;
      start.at[i] = range(next_range++, u.dim(i), AxisType::Reduce);
      start.loops.push_back(start.at[i]);
    }
    out.push_back(std::move(start));
  }
  return out;
}

}  // namespace koine

#include "koine/lower/group_heuristic.hpp"

#include <algorithm>

#include "koine/ir/graph.hpp"
#include "koine/lower/scan.hpp"

namespace koine {
namespace {

// Threads of a group where nothing else says how many: some warps, which hide each other's waits.
constexpr int64_t threads_of_group = 128;
// Fewer results than this leave most of a GPU idle, unless threads fold together.
constexpr int64_t enough_results = 4096;

// A loop whose turns threads may share. Threads along one that a row is read in, and not made in,
// would each make that row again.
bool is_free_loop(const Plan& plan, const UOp& axis) {
  if (type_of(axis) != AxisType::Loop || is_running_loop(plan.ast(), axis)) return false;
  const std::vector<UOp> fills = row_fills(plan.ast());
  return !is_listed(fills, axis) && std::all_of(fills.begin(), fills.end(), [&](const UOp& fill) {
    return depends_on(fill, axis);
  });
}

// Threads of a group along an axis: as many as divide it, or the last ones overlap.
void locals_along(Plan& plan, const UOp& axis, int64_t most) {
  const int64_t n = size_of(axis), warp = plan.target().groups.warp;
  if (n < 2) return;
  if (const int64_t even = is_symbolic(axis) ? 1 : divisor(n, most); even >= std::min(n, warp))
    return side_by_side(plan, plan.position(axis), even, AxisType::Local);
  side_by_side(plan, plan.position(axis), std::min(most, n), AxisType::Local);
}

// A tile of a product: a group has threads over rows and columns, and each computes some of both.
void tile_of_group(Plan& plan, const Contraction& c) {
  constexpr int64_t each = 4, along_rows = 8, along_columns = 16;
  int rows = plan.position(c.rows), columns = plan.position(c.columns);
  if (columns < rows && plan.try_all({{OptOp::Swap, columns, rows}})) std::swap(columns, rows);
  // The later axis first: splitting it does not move the earlier one. Innermost parts first.
  for (const auto& [at, threads] :
       {std::pair{columns, along_columns}, std::pair{rows, along_rows}}) {
    const UOp axis = plan.axes()[static_cast<size_t>(at)];
    if (size_of(axis) >= each * threads) side_by_side(plan, at, each, AxisType::Upcast);
    locals_along(plan, plan.axes()[static_cast<size_t>(at)], threads);
  }
}

int64_t results_of(const Plan& plan) {
  int64_t out = 1;
  for (const UOp& axis : plan.axes())
    if (is_free_loop(plan, axis)) out *= std::clamp<int64_t>(size_of(axis), 1, enough_results);
  return std::min(out, enough_results);
}

// A long reduction axis, of which threads of a group take parts. A strict fold goes on in order.
void fold_together(Plan& plan, const Accesses& accesses) {
  if (plan.target().strict || results_of(plan) >= enough_results) return;
  const UOp axis = lane_axis(accesses, plan.axes(), [&](const UOp& a) {
    return type_of(a) == AxisType::Reduce && may_fold_lanes(plan.ast(), a);
  });
  const int64_t least = plan.target().groups.warp;
  if (axis && size_of(axis) >= 2 * least)
    side_by_side(plan, plan.position(axis), std::min(size_of(axis) / 2, 2 * threads_of_group),
                 AxisType::GroupReduce);
}

// The axis along which a group has threads: elements beside each other, else the last that may be.
UOp axis_of_threads(const Plan& plan, const Accesses& accesses) {
  const auto is_free = [&](const UOp& a) { return is_free_loop(plan, a); };
  const std::vector<UOp> axes = plan.axes();
  if (const UOp lanes = lane_axis(accesses, axes, is_free)) return lanes;
  const auto last = std::find_if(axes.rbegin(), axes.rend(), is_free);
  return last == axes.rend() ? UOp() : *last;
}

}  // namespace

void choose_group_opts(Plan& plan, const Accesses& accesses) {
  if (const auto contraction = find_contraction(plan, accesses);
      contraction && !contraction->folded) {
    tile_of_group(plan, *contraction);
  } else {
    const Edited before{plan.ast(), {}};
    if (!accesses.reduces.empty()) fold_together(plan, accesses);
    if (plan.ast() == before.ast)
      if (const UOp along = axis_of_threads(plan, accesses))
        locals_along(plan, along, threads_of_group);
  }
  for (int at = 0; at < static_cast<int>(plan.axes().size()); ++at)
    if (is_free_loop(plan, plan.axes()[static_cast<size_t>(at)]))
      plan.try_all({{OptOp::Split, at, 0, AxisType::Global, false}});
}

}  // namespace koine

#include "koine/lower/group_heuristic.hpp"

#include <algorithm>

#include "koine/ir/graph.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/lower/scan.hpp"
#include "koine/lower/tensor_core.hpp"

namespace koine {
namespace {

// Threads of a group where nothing else says how many: some warps, which hide each other's waits.
constexpr int64_t threads_of_group = 128;
// Threads that fold a long row together, as two axes: each folds the parts of 16 others twice.
constexpr int64_t side = 16, threads_of_row = side * side;
// A row of so many elements has work for that many threads; a shorter one is a warp's.
constexpr int64_t least_long_row = 2048;
// Rows that a group has of those, and rows of a column's part that its threads take beside each
// other.
constexpr int64_t rows_of_group = 8;
// Steps of a product's sum whose factors lie in LOCAL memory at once, and on a tensor core.
constexpr int64_t steps_of_product = 16, steps_on_core = 64;

// A loop whose turns threads may share. Threads along one that a row is read in, and not made in,
// would each make that row again.
bool is_free_loop(const Plan& plan, const UOp& axis) {
  if (type_of(axis) != AxisType::Loop || is_running_loop(plan.ast(), axis)) return false;
  const std::vector<UOp> fills = row_fills(plan.ast());
  return !is_listed(fills, axis) && std::all_of(fills.begin(), fills.end(), [&](const UOp& fill) {
    return depends_on(fill, axis);
  });
}

// What is left of loops becomes the grid.
void grid_of(Plan& plan) {
  for (int at = 0; at < static_cast<int>(plan.axes().size()); ++at)
    if (is_free_loop(plan, plan.axes()[static_cast<size_t>(at)]))
      plan.try_all({{OptOp::Split, at, 0, AxisType::Global, false}});
}

// Threads of a group along an axis: as many as divide it, or the last ones overlap.
void locals_along(Plan& plan, const UOp& axis, int64_t most) {
  const int64_t n = size_of(axis), warp = plan.target().groups.warp;
  if (n < 2) return;
  if (const int64_t even = is_symbolic(axis) ? 1 : divisor(n, most); even >= std::min(n, warp))
    return side_by_side(plan, plan.position(axis), even, AxisType::Local);
  side_by_side(plan, plan.position(axis), std::min(most, n), AxisType::Local);
}

// Elements along an axis that one access takes; 1: each alone.
int64_t wide_lanes(const Plan& plan, const UOp& axis) {
  const int64_t lanes = plan.target().wide_bytes / widest_item(plan.ast());
  return lanes > 1 && divides(lanes, axis) ? lanes : 1;
}

int64_t results_of(const Plan& plan, int64_t most) {
  int64_t out = 1;
  for (const UOp& axis : plan.axes())
    if (is_free_loop(plan, axis))
      out = std::min(out * std::clamp<int64_t>(size_of(axis), 1, most), most);
  return out;
}

// --- products ------------------------------------------------------------------------------------

// The factors of a product go through LOCAL memory, so many steps of its innermost sum at a time,
// or half or a quarter of them: fewer are not worth the wait.
void through_local_memory(Plan& plan, int64_t most) {
  const std::vector<UOp> axes = plan.axes();
  const auto last = std::find_if(axes.rbegin(), axes.rend(),
                                 [](const UOp& a) { return type_of(a) == AxisType::Reduce; });
  if (last == axes.rend() || is_symbolic(*last)) return;
  const int at = plan.position(*last);
  for (int64_t steps = most; 4 * steps >= most && steps > 1; steps /= 2)
    if (size_of(*last) % steps == 0 &&
        plan.try_all({{OptOp::Split, at, steps, AxisType::Reduce}, {OptOp::Stage, at + 1}}))
      return;
}

// A group of 16 by 16 threads has a tile of a product, and each of them some rows and columns of
// it. Threads beside each other have columns beside each other.
void tile_of_group(Plan& plan, const Contraction& c) {
  int rows = plan.position(c.rows), columns = plan.position(c.columns);
  if (columns < rows && plan.try_all({{OptOp::Swap, columns, rows}})) std::swap(columns, rows);
  const auto size_at = [&](int at) { return size_of(plan.axes()[static_cast<size_t>(at)]); };
  const int64_t m = size_at(rows), n = size_at(columns),
                others = results_of(plan, INT32_MAX) / (m * n),
                busy = plan.target().groups.multiprocessors;
  // As many elements for each thread as leave all of the machine a group.
  int64_t each = 8;
  while (each > 1 && (std::min(m, n) < each * side ||
                      others * (m / (each * side)) * (n / (each * side)) < busy))
    each /= 2;
  const int64_t of_rows = m < each * side ? 8 : side;
  // The later axis first: splitting it does not move the earlier one. Threads first: what a thread
  // has lies as far apart as they take.
  // Columns that one access takes lie beside each other.
  const int64_t wide = c.folded ? 1 : wide_lanes(plan, plan.axes()[static_cast<size_t>(columns)]),
                together = each % wide == 0 && n % (wide * side) == 0 ? wide : 1;
  side_by_side(plan, columns, together, AxisType::Upcast);
  for (const auto& [at, threads, more] :
       {std::tuple{columns, side, each / together}, {rows, of_rows, each}}) {
    locals_along(plan, plan.axes()[static_cast<size_t>(at)], threads);
    if (size_at(at) >= more) side_by_side(plan, at, more, AxisType::Upcast);
  }
  through_local_memory(plan, steps_of_product);
}

// --- folds ---------------------------------------------------------------------------------------

// Threads along an axis of a row. A warp is one axis, more are two: both fold in few steps.
bool share_row(Plan& plan, int at, int64_t threads) {
  const UOp axis = plan.axes()[static_cast<size_t>(at)];
  const AxisType type = type_of(axis) == AxisType::Reduce ? AxisType::GroupReduce : AxisType::Local;
  const int64_t inner = threads == threads_of_row ? side : threads;
  std::vector<Opt> edits;
  if (!divides(threads, axis)) edits.push_back({OptOp::Padto, at, threads});
  for (const int64_t part : {inner, threads / inner})
    if (part > 1) edits.push_back({OptOp::Split, at, part, type, false});
  return plan.try_all(edits);
}

// Where the loops of a row stand, which the threads of a group go over together: those that fill
// it, those that fold it, and those that store what is made of both.
std::vector<int> loops_of_row(const Plan& plan, const Accesses& accesses) {
  const auto runs_along = [](const std::vector<UOp>& addresses, const UOp& axis) {
    return std::ranges::any_of(addresses, [&](const UOp& a) { return stride(a, axis) == 1; });
  };
  const auto is_inside = [&](const UOp& axis) {  // of no fold and no row
    return std::ranges::none_of(accesses.reduces,
                                [&](const UOp& r) { return depends_on(r.src(0), axis); }) &&
           std::ranges::none_of(accesses.fills, [&](const UOp& f) { return depends_on(f, axis); });
  };
  std::vector<int> fills, others;
  const std::vector<UOp> axes = plan.axes();
  for (size_t at = 0; at < axes.size(); ++at) {
    const UOp& axis = axes[at];
    if (!runs_along(accesses.loads, axis) && !runs_along(accesses.stores, axis) &&
        !runs_along(accesses.in_rows, axis))
      continue;
    const bool loop = type_of(axis) == AxisType::Loop && !is_running_loop(plan.ast(), axis);
    if (loop && is_listed(accesses.fills, axis))
      fills.push_back(static_cast<int>(at));
    else if ((loop && is_inside(axis)) ||
             (type_of(axis) == AxisType::Reduce && may_fold_lanes(plan.ast(), axis)))
      others.push_back(static_cast<int>(at));
  }
  fills.insert(fills.end(), others.begin(), others.end());
  return fills;
}

// The threads of a group take a row together, or warps of it one each. A strict fold goes on in
// order, one by one.
bool rows_together(Plan& plan, const Accesses& accesses) {
  if (plan.target().strict) return false;
  std::vector<int> row = loops_of_row(plan, accesses);
  const int64_t warp = plan.target().groups.warp;
  int64_t length = 0;
  for (const int at : row) {
    const UOp axis = plan.axes()[static_cast<size_t>(at)];
    if (type_of(axis) == AxisType::Reduce) length = std::max(length, size_of(axis));
    if (type_of(axis) == AxisType::Loop && is_symbolic(axis)) return false;
  }
  if (length < 2 * warp) return false;
  const int64_t threads = length < least_long_row ? warp : threads_of_row;
  Plan shared = plan;  // all or nothing
  grid_of(shared);
  for (size_t i = 0; i < row.size(); ++i) {
    const size_t before = shared.axes().size();
    if (!share_row(shared, row[i], threads)) return false;
    const auto more = static_cast<int>(shared.axes().size() - before);
    for (int& other : row)
      if (other > row[i]) other += more;
  }
  // Several warps, each with a row.
  const std::vector<UOp> axes = shared.axes();
  for (size_t at = axes.size(); threads == warp && at-- > 0;)
    if (type_of(axes[at]) == AxisType::Global && !is_symbolic(axes[at])) {
      const int64_t rows = divisor(size_of(axes[at]), rows_of_group);
      if (rows > 1)
        shared.try_all({{OptOp::Split, static_cast<int>(at), rows, AxisType::Local, false}});
      break;
    }
  return plan.become(std::move(shared));
}

// Neighbouring columns for neighbouring threads, and beside each other threads that take turns in
// the rows.
bool columns_together(Plan& plan, const UOp& along, const Accesses& accesses) {
  constexpr int64_t threads_of_processor = 1024;
  const Groups& groups = plan.target().groups;
  if (plan.target().strict || accesses.reduces.size() != 1 || !accesses.fills.empty() ||
      results_of(plan, INT32_MAX) >= groups.multiprocessors * threads_of_processor)
    return false;
  const int at = plan.position(along);
  for (const UOp& axis : plan.axes())
    if (type_of(axis) == AxisType::Reduce && size_of(axis) >= 8 * rows_of_group &&
        may_fold_lanes(plan.ast(), axis) && plan.position(axis) > at) {
      side_by_side(plan, plan.position(axis), rows_of_group, AxisType::GroupReduce);
      locals_along(plan, plan.axes()[static_cast<size_t>(at)], groups.warp);
      return true;
    }
  return false;
}

// --- tensor cores --------------------------------------------------------------------------------

// Parts of a loop over the tiles of a core: for the registers of a warp, and for the warps of a
// group. As many as divide it, while enough groups are left.
void parts_of_tiles(Plan& plan, int at, int64_t registers, int64_t warps) {
  const UOp axis = plan.axes()[static_cast<size_t>(at)];
  if (type_of(axis) != AxisType::Loop || is_symbolic(axis)) return;
  const int64_t in_registers = divisor(size_of(axis), registers);
  side_by_side(plan, at, in_registers, AxisType::Upcast);
  const int64_t tiles = size_of(axis) / in_registers;
  if (const int64_t n = divisor(tiles, warps); n > 1) side_by_side(plan, at, n, AxisType::Local);
}

void tile_of_warps(Plan& plan, int rows, int columns) {
  const auto tiles = [&](int at) {
    const UOp axis = plan.axes()[static_cast<size_t>(at)];
    return type_of(axis) == AxisType::Loop ? size_of(axis) : 1;
  };
  // Fewer tiles for each warp where else multiprocessors would be idle.
  const int64_t all = tiles(rows) * tiles(columns), busy = plan.target().groups.multiprocessors;
  constexpr int64_t warps = 4, most_rows = 4, most_columns = 8;
  int64_t fewer = 1;
  while (fewer < 4 && all * fewer * fewer < busy * warps * most_rows * most_columns) fewer *= 2;
  for (const bool later : {columns > rows, columns < rows})
    later ? parts_of_tiles(plan, columns, most_columns / fewer, 2)
          : parts_of_tiles(plan, rows, most_rows / fewer, 2);
}

// A product on the first tensor core of the machine that fits. A warp has a tile of several, and a
// group several warps. How a core rounds is its own, so strict programs have those alone that fold
// in order, and these are no instructions.
bool on_tensor_core(Plan& plan, const Accesses& accesses) {
  if (plan.target().strict || accesses.reduces.size() != 1) return false;
  const std::vector<UOp> axes = plan.axes();
  const auto& cores = plan.target().tensor_cores;
  for (size_t at = 0; at < axes.size(); ++at)
    for (size_t i = 0; type_of(axes[at]) == AxisType::Reduce && i < cores.size(); ++i) {
      if (cores[i]->software || cores[i]->threads() < 2) continue;
      for (const int opt : {0, 2}) {
        const CoreChoice choice{static_cast<int>(i), opt, 1};
        const auto fit = find_core(plan.ast(), axes[at], choice, plan.target());
        const CoreFit* found = std::get_if<CoreFit>(&fit);
        if (found == nullptr || size_of(found->rows) < 2 * found->core->m ||
            size_of(found->columns) < 2 * found->core->n || size_of(axes[at]) < found->core->k)
          continue;
        const int rows = plan.position(found->rows), columns = plan.position(found->columns);
        if (!plan.try_all({{OptOp::TC, static_cast<int>(at), 0, AxisType::Loop, false, choice}}))
          continue;
        const int64_t steps = steps_on_core / found->core->k;
        tile_of_warps(plan, rows, columns);
        through_local_memory(plan, steps);
        return true;
      }
    }
  return false;
}

// Neighbouring elements for each thread, where one access takes them all and enough threads are
// left.
void wide_elements(Plan& plan, const UOp& along, const Accesses& accesses) {
  constexpr int64_t threads_of_processor = 2048;
  const int64_t lanes = wide_lanes(plan, along),
                busy = plan.target().groups.multiprocessors * threads_of_processor;
  const auto is_apart = [&](const UOp& address) {
    const auto step = stride(address, along);
    return !step || (*step != 0 && *step != 1);
  };
  if (lanes < 2 || results_of(plan, INT32_MAX) < busy * lanes ||
      std::ranges::any_of(accesses.loads, is_apart) ||
      std::ranges::any_of(accesses.stores, is_apart))
    return;
  side_by_side(plan, plan.position(along), lanes, AxisType::Upcast);
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

void choose_threads_in_order(Plan& plan) {
  const std::vector<UOp> axes = plan.axes();
  for (int at = static_cast<int>(axes.size()); at-- > 0;) {
    const UOp& axis = axes[static_cast<size_t>(at)];
    if (type_of(axis) != AxisType::Global || is_symbolic(axis)) continue;
    const int64_t threads = divisor(size_of(axis), threads_of_group);
    if (threads > 1 && plan.try_all({{OptOp::Split, at, threads, AxisType::Local, false}})) return;
  }
}

void choose_group_opts(Plan& plan, const Accesses& accesses) {
  if (on_tensor_core(plan, accesses)) return grid_of(plan);
  if (const auto contraction = most_run_along(contractions_of(plan, accesses))) {
    tile_of_group(plan, *contraction);
    return grid_of(plan);
  }
  if (!accesses.reduces.empty() && rows_together(plan, accesses)) return grid_of(plan);
  if (const UOp along = axis_of_threads(plan, accesses))
    if (accesses.reduces.empty() || !columns_together(plan, along, accesses)) {
      const int at = plan.position(along);
      if (accesses.reduces.empty() && accesses.fills.empty()) wide_elements(plan, along, accesses);
      locals_along(plan, plan.axes()[static_cast<size_t>(at)], threads_of_group);
    }
  grid_of(plan);
}

}  // namespace koine

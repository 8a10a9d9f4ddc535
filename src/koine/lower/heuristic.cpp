#include "koine/lower/heuristic.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "koine/base/rounding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/epilogue.hpp"
#include "koine/lower/factor_panels.hpp"
#include "koine/lower/group_heuristic.hpp"
#include "koine/lower/kernel_plan.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/lower/scan.hpp"

namespace koine {
namespace {

// Lanes of a vector along an axis of n elements: a power of two, as registers have them.
int64_t lanes_along(int64_t n, int64_t lanes) {
  while (lanes > n) lanes /= 2;
  return lanes;
}

// Rows and columns (in vectors) of a tile of a product: accumulators, one row of B and one value of
// A fit into the registers. The best tile loads least for each FMA and computes little twice.
struct Tile {
  int64_t rows = 1, columns = 1;
  double cost = std::numeric_limits<double>::infinity();  // of all rows and columns, in FMAs
};
Tile best_tile(int64_t rows, int64_t columns, int64_t registers) {
  constexpr int64_t most_rows = 12, most_columns = 6;
  constexpr double in_flight = 11;   // FMAs at once that hide their latency, with some room
  constexpr double of_a_load = .25;  // what a load costs beside an FMA
  Tile out;
  for (int64_t c = 1; c <= std::min(columns, most_columns); ++c)
    for (int64_t r = 1; r <= std::min(rows, most_rows); ++r) {
      if (r * c + c + 1 > registers) continue;
      const auto fmas = static_cast<double>(r * c);
      const auto work = static_cast<double>(rounded_up(rows, r) * rounded_up(columns, c));
      const double loads = static_cast<double>(r + c) / fmas;
      const double cost = work * (std::max(1.0, in_flight / fmas) + of_a_load * loads);
      if (cost < out.cost) out = {r, c, cost};
    }
  return out;
}

// Where the loops over the tiles of a product stand (-1: one tile is all there is), and how many
// columns a tile has.
struct TileLoops {
  int rows = -1, columns = -1;
  int64_t width = 1;
};

bool makes_much(const UOp& ast) {
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Store) && makes_much_of_folds(u.src(1))) return true;
  return false;
}

// A tile whose lanes fold, where much is made of its results: with the tiles beside it, in the
// innermost loop, it has as many columns as there are lanes, which `epilogue_in_loop` then computes
// at once.
TileLoops tile_beside_others(Plan& plan, const Contraction& c, int rows_at, int columns_at,
                             int64_t lanes) {
  constexpr int64_t side = 4;
  const int64_t m = size_of(c.rows), n = size_of(c.columns), rows = std::min(m, side);
  std::vector<Opt> edits{{OptOp::Split, columns_at, side, AxisType::Upcast, false}};
  if (n > lanes && lanes > side)
    edits.push_back({OptOp::Split, columns_at, lanes / side, AxisType::Loop, false});
  if (!plan.try_all(edits)) return {};
  side_by_side(plan, rows_at, rows, AxisType::Upcast);
  return {m > rows ? rows_at : -1,
          n <= lanes             ? -1
          : m > rows && rows > 1 ? columns_at + 1
                                 : columns_at,
          lanes};
}

int64_t lanes_of(const Target& target, DType dtype) {
  return target.lanes(is_small_float(dtype) ? 4 : item_size(dtype));
}

Tile tile_of(const Contraction& c, int64_t vector, const Target& target) {
  // Of a symbolic number of rows there may be few.
  constexpr int64_t some_rows = 4;
  const int64_t m = size_of(c.rows);
  return best_tile(is_symbolic(c.rows) ? std::min(m, some_rows) : m,
                   rounded_up(size_of(c.columns), vector) / vector, target.vector_registers);
}

// The contraction with the cheaper tile, where either factor may have the lanes. Results that do
// not lie along the columns are taken out of their vectors and stored one by one.
std::optional<Contraction> cheapest_contraction(const Plan& plan, const Accesses& a) {
  constexpr double of_a_store = 2;  // for each lane, beside an FMA of all
  const std::vector<Contraction> all = contractions_of(plan, a);
  if (all.size() < 2 || !all[0].has_lanes() || !all[1].has_lanes()) return most_run_along(all);
  const int64_t lanes = lanes_of(plan.target(), a.reduces[0].dtype());
  double steps = 1;
  for (const UOp& r : reduced_ranges(a.reduces[0])) steps *= static_cast<double>(size_of(r));
  const auto cost_of = [&](const Contraction& c) {
    const int64_t m = size_of(c.rows), n = size_of(c.columns);
    const double each = tile_of(c, lanes_along(n, lanes), plan.target()).cost /
                        static_cast<double>(std::max<int64_t>(m * n, 1));
    const bool stored_along = std::ranges::any_of(
        a.stores, [&](const UOp& address) { return stride(address, c.columns) == 1; });
    return each + (stored_along ? 0 : of_a_store / std::max(steps, 1.0));
  };
  return cost_of(all[1]) < cost_of(all[0]) ? all[1] : all[0];
}

TileLoops register_tile(Plan& plan, const Contraction& c, DType dtype) {
  const int64_t lanes = lanes_of(plan.target(), dtype);
  int rows_at = plan.position(c.rows), columns_at = plan.position(c.columns);
  // The lanes are the last axis.
  if (columns_at < rows_at && plan.try_all({{OptOp::Swap, columns_at, rows_at}}))
    std::swap(columns_at, rows_at);
  const int64_t m = size_of(c.rows), n = size_of(c.columns);
  const int64_t vector = c.folded ? 1 : lanes_along(n, lanes);
  const Tile tile = tile_of(c, vector, plan.target());
  // The later axis first: splitting it does not move the earlier one.
  if (c.folded) {
    const int64_t folding = lanes_along(size_of(c.folded), lanes);
    side_by_side(plan, plan.position(c.folded), folding, AxisType::GroupReduce);
    if (folding >= 4 && n % folding == 0 && !is_symbolic(c.columns) && makes_much(plan.ast()))
      return tile_beside_others(plan, c, rows_at, columns_at, folding);
  }
  side_by_side(plan, columns_at, vector, AxisType::Upcast);
  if (n > vector) side_by_side(plan, columns_at, tile.columns, AxisType::Upcast);
  side_by_side(plan, rows_at, tile.rows, AxisType::Upcast);
  const bool many_rows = m > tile.rows, many_columns = n > tile.columns * vector;
  return {many_rows ? rows_at : -1,
          !many_columns                ? -1
          : many_rows && tile.rows > 1 ? columns_at + 1
                                       : columns_at,
          tile.columns * vector};
}

constexpr int64_t block_elements = 1 << 16;  // 256 KiB of float32

// Rows of B in a block of it that stays in the second-level cache: all of them where these fit with
// the columns of one tile, and else as many as fit with those of two. Rows that lie a power of two
// apart share few places of a cache, so that fewer of them fit, however short.
int64_t rows_of_block(int64_t k, const TileLoops& loops, int64_t pitch) {
  const int64_t most = 2 * block_elements, apart = pitch & -pitch;
  if (k * std::max(loops.width, apart) <= most) return k;
  const int64_t columns = loops.columns < 0 ? loops.width : 2 * loops.width;
  return std::min(block_elements / columns, std::max<int64_t>(most / apart, 1));
}

// Takes the columns in blocks, outside of the rows: all rows of A pass over a block of B before the
// next one.
void block_columns(Plan& plan, const TileLoops& loops, int64_t rows_of_b) {
  if (loops.rows < 0 || loops.columns < 0) return;
  const std::vector<UOp> axes = plan.axes();
  for (int at = loops.rows + 1; at < loops.columns; ++at)  // a loop over other columns' B
    if (type_of(axes[static_cast<size_t>(at)]) == AxisType::Loop) return;
  if (is_symbolic(axes[static_cast<size_t>(loops.columns)])) return;
  const int64_t tiles = size_of(axes[static_cast<size_t>(loops.columns)]);
  const int64_t fit = std::max<int64_t>(block_elements / (rows_of_b * loops.width), 1);
  if (tiles <= fit) return;
  std::vector<Opt> edits;
  if (const int64_t together = divisor(tiles, fit); together > 1)
    edits.push_back({OptOp::Split, loops.columns, together, AxisType::Loop, false});
  for (int at = loops.columns; at > loops.rows; --at) edits.push_back({OptOp::Swap, at, at - 1});
  plan.try_all(edits);
}

// Blocks the reduction. The outer part of it then stands outside of the output loops, with partial
// sums in the output.
void block_reduction(Plan& plan, int64_t rows, int64_t most) {
  constexpr int64_t most_blocks = 128;
  const std::vector<UOp> axes = plan.axes();
  int at = -1;
  for (size_t i = 0; i < axes.size(); ++i)
    if (type_of(axes[i]) == AxisType::Reduce) {
      if (at >= 0) return;  // one reduction axis only
      at = static_cast<int>(i);
    }
  if (at < 0 || is_symbolic(axes[static_cast<size_t>(at)])) return;
  const int64_t k = size_of(axes[static_cast<size_t>(at)]);
  // The partial sums are added one by one: few long blocks are more exact than many short ones.
  const int64_t least = std::max({int64_t{32}, std::min<int64_t>(k / 48, 400), k / most_blocks});
  const int64_t block = divisor(k, std::max(most, least));
  if (rows < 64 || 3 * block < 2 * least || block == k) return;
  int first = 0;
  while (type_of(axes[static_cast<size_t>(first)]) == AxisType::Thread) ++first;
  std::vector<Opt> edits{{OptOp::Split, at, block, AxisType::Reduce, false}};
  for (; at > first; --at) edits.push_back({OptOp::Swap, at, at - 1});
  plan.try_all(edits);  // unless the output cannot hold partial sums
}

// How many lanes may each load for themselves, from places that follow no steps along an axis: the
// time that LLVM takes for them grows by their third power.
int64_t lanes_to_load(const Plan& plan, const UOp& axis, int64_t lanes) {
  constexpr int64_t most_loads = 128, least = 4;
  const std::vector<UOp> loads = survey(plan.ast()).loads;
  const auto apart = std::ranges::count_if(loads, [&](const UOp& address) {
    return depends_on(address, axis) && !stride(address, axis);
  });
  while (lanes > least && lanes * apart > most_loads) lanes /= 2;
  return lanes;
}

// Lanes along one axis: UPCAST of a loop, GROUP_REDUCE of a reduction. As many vectors as nearly
// fit the axis, or half as many that fit.
void vector_lanes(Plan& plan, const UOp& axis, int64_t lanes, int64_t unrolled) {
  const int64_t n = size_of(axis);
  if (n < 2) return;
  int64_t width = lanes_to_load(plan, axis, lanes_along(n, lanes * unrolled));
  if (is_symbolic(axis)) {
    while (width > lanes && !divides(width, axis)) width /= 2;
  } else {
    while (width > lanes && (rounded_up(n, width) - n) * 12 > n) width /= 2;
    if (width > lanes && n % width != 0 && n % (width / 2) == 0) width /= 2;
  }
  const bool reduces = type_of(axis) == AxisType::Reduce;
  side_by_side(plan, plan.position(axis), width,
               reduces ? AxisType::GroupReduce : AxisType::Upcast);
}

// How many vectors of an elementwise body stand side by side. Four hide the latency of a short
// body; two are enough for the long ones, whose code takes longer to compile.
int64_t vectors_at_once(const UOp& ast) {
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Sin) || u.is(Op::Pow)) return 2;
  return 4;
}

// Whether the folds along an axis have lanes along another one, or stand inside of folds that have:
// theirs would be multiplied by these.
bool has_lanes(const UOp& ast, const UOp& axis) {
  auto is_lane = [](const RangeArg& r) { return r.type == AxisType::GroupReduce; };
  for (const UOp& u : toposort(ast)) {
    const std::span<const UOp> folded = u.is(Op::Reduce) ? reduced_ranges(u) : u.src().first(0);
    if (std::find(folded.begin(), folded.end(), axis) == folded.end()) continue;
    for (const UOp& r : folded)
      if (is_lane(r.as<RangeArg>())) return true;
    for (const Node* open : u.ranges())
      if (is_lane(std::get<RangeArg>(open->arg))) return true;
  }
  return false;
}

// Lanes along the loops of reduces and of fills that run along memory or along a row; all of the
// same number, so that they share the axis of the lanes.
void lanes_inside(Plan& plan, int64_t lanes, int64_t vectors) {
  // One axis each, found again after every edit by its place.
  for (size_t i = 0; i < plan.axes().size(); ++i) {
    const UOp axis = plan.axes()[i];
    const Accesses now = survey(plan.ast());
    const bool fills = type_of(axis) == AxisType::Loop && is_listed(now.fills, axis);
    // Lanes of a strict fold would reorder it.
    const bool folds = type_of(axis) == AxisType::Reduce && !plan.target().strict &&
                       may_fold_lanes(plan.ast(), axis) && !has_lanes(plan.ast(), axis);
    if (!(fills || folds) || size_of(axis) < lanes) continue;
    auto runs_along = [&](const std::vector<UOp>& addresses) {
      return std::any_of(addresses.begin(), addresses.end(),
                         [&](const UOp& address) { return stride(address, axis) == 1; });
    };
    if (!runs_along(now.loads) && !runs_along(now.in_rows)) continue;
    const size_t before = plan.axes().size();
    vector_lanes(plan, axis, lanes, vectors);
    i += plan.axes().size() - before;
  }
}

bool is_loop_around(const UOp& axis, const std::vector<UOp>& inner) {
  return type_of(axis) == AxisType::Loop &&
         std::all_of(inner.begin(), inner.end(), [&](const UOp& u) { return depends_on(u, axis); });
}

// The innermost loop around all of these that has lanes enough; null where there is none.
UOp loop_around_all(const std::vector<UOp>& inner, const std::vector<UOp>& axes, int64_t lanes) {
  const auto around = std::find_if(axes.rbegin(), axes.rend(), [&](const UOp& axis) {
    return size_of(axis) >= lanes && is_loop_around(axis, inner);
  });
  return around == axes.rend() ? UOp() : *around;
}

// Lanes of a kernel that holds rows: across them where more of memory runs along a loop around all
// rows, and else along them, in each loop that walks over one.
void lanes_of_rows(Plan& plan, const Accesses& accesses, int64_t lanes, int64_t vectors) {
  const std::vector<UOp> axes = plan.axes();
  auto is_around = [&](const UOp& axis) {
    return std::any_of(accesses.fills.begin(), accesses.fills.end(),
                       [&](const UOp& fill) { return depends_on(fill, axis); });
  };
  auto is_loop = [&](const UOp& axis) {
    return type_of(axis) == AxisType::Loop && !is_listed(accesses.fills, axis);
  };
  auto runs_along = [&](const std::vector<UOp>& addresses, bool around) {
    return std::count_if(addresses.begin(), addresses.end(), [&](const UOp& address) {
      return std::any_of(axes.begin(), axes.end(), [&](const UOp& axis) {
        const bool enough = around || size_of(axis) >= lanes;
        return enough && is_around(axis) == around && stride(address, axis) == 1;
      });
    });
  };
  auto count = [&](bool around) {
    return runs_along(accesses.loads, around) + runs_along(accesses.stores, around);
  };
  UOp across =
      lane_axis(accesses, axes, [&](const UOp& a) { return is_loop_around(a, accesses.fills); });
  const auto along = count(false);
  // Rows are short, and many: these stand side by side.
  const bool many = along == 0 && !across;
  if (many) across = loop_around_all(accesses.fills, axes, lanes);
  if (across && (along == 0 || count(true) > along)) {
    const UOp before = plan.ast();
    for (int64_t at_once = many ? 1 : vectors; at_once > 0; at_once /= 2) {
      vector_lanes(plan, across, lanes, at_once);
      if (!(plan.ast() == before)) return;  // the rows of all lanes fit
    }
  }
  const UOp stored =
      lane_axis(accesses, axes, [&](const UOp& a) { return is_loop(a) && !is_around(a); });
  if (stored) vector_lanes(plan, stored, lanes, vectors);
  lanes_inside(plan, lanes, vectors);
}

// Where the lanes go along one axis and a load along another, as in a transposition, the loop over
// that other one is innermost: what is in a line of memory is read in steps that follow each other.
void lines_inside(Plan& plan) {
  const std::vector<UOp> axes = plan.axes();
  const auto first_lane = std::find_if(axes.begin(), axes.end(),
                                       [](const UOp& a) { return becomes_shape(type_of(a)); });
  const int innermost = static_cast<int>(first_lane - axes.begin()) - 1;
  if (first_lane == axes.end() || innermost < 1) return;
  constexpr int64_t some_lines = 16;
  const Accesses now = survey(plan.ast());
  for (int at = 0; at < innermost; ++at) {
    const UOp& axis = axes[static_cast<size_t>(at)];
    const bool along = std::any_of(now.loads.begin(), now.loads.end(), [&](const UOp& address) {
      return stride(address, axis) == 1 && depends_on(address, *first_lane);
    });
    if (!along || type_of(axis) != AxisType::Loop || size_of(axis) < some_lines) continue;
    std::vector<Opt> edits;
    for (int from = at; from < innermost; ++from) edits.push_back({OptOp::Swap, from, from + 1});
    plan.try_all(edits);
    return;
  }
}

void lanes_everywhere(Plan& plan, const Accesses& accesses) {
  const int64_t lanes = plan.target().lanes(widest_item(plan.ast()));
  if (lanes < 2) return;
  const int64_t vectors = vectors_at_once(plan.ast());
  if (!accesses.fills.empty()) return lanes_of_rows(plan, accesses, lanes, vectors);
  const std::vector<UOp> axes = plan.axes();
  const UOp loop = lane_axis(accesses, axes, [&](const UOp& a) {
    return type_of(a) == AxisType::Loop && !is_running_loop(plan.ast(), a);
  });
  // A loop that runs along memory inside the reduces serves them too.
  const bool reduces = !accesses.reduces.empty();
  bool loop_in_reduces = loop && reduces;
  for (const UOp& r : accesses.reduces)
    loop_in_reduces = loop_in_reduces && depends_on(r.src(0), loop);
  if (loop && (!reduces || loop_in_reduces)) {
    // Prefer a reduction axis when the inputs run along it and not along the loop.
    const UOp reduced = lane_axis(accesses, axes, [&](const UOp& a) {
      return type_of(a) == AxisType::Reduce && size_of(a) >= lanes;
    });
    // What is read once for all steps of a fold does not count.
    size_t depth = 0;
    for (const UOp& address : accesses.loads) depth = std::max(depth, address.ranges().size());
    int along_loop = 0, along_reduce = 0;
    for (const UOp& address : accesses.loads) {
      if (address.ranges().size() < depth) continue;
      along_loop += stride(address, loop) == 1;
      along_reduce += reduced && stride(address, reduced) == 1;
    }
    if (!reduced || along_loop >= along_reduce || plan.target().strict) {
      const bool short_rows = reduces && !reduced && along_loop == 0;
      vector_lanes(plan, loop, lanes, short_rows ? 1 : vectors);
      if (!reduces) lines_inside(plan);
      return;
    }
  }
  if (loop && reduces && !loop_in_reduces) {
    // Rows are short: many of them side by side. Additions alone are fast one by one.
    const bool adds = std::ranges::all_of(
        accesses.reduces, [](const UOp& r) { return r.as<ReduceArg>().op == Op::Add; });
    if (size_of(loop) < lanes && !adds)
      if (const UOp across = loop_around_all(accesses.reduces, axes, lanes))
        return vector_lanes(plan, across, lanes, 1);
    vector_lanes(plan, loop, lanes, 1);
  }
  // Eight sums at once hide the latency of an addition; more than 64 gain nothing.
  const int64_t sums = std::min<int64_t>(8, std::max<int64_t>(64 / lanes, 1));
  lanes_inside(plan, lanes, loop && !loop_in_reduces ? 1 : sums);
}

// Parts of an axis that threads take. A symbolic size is rounded up to them, where it may have two
// elements for each.
int64_t chunks_of(const UOp& axis, int64_t most) {
  if (!is_symbolic(axis)) return divisor(size_of(axis), most);
  return size_of(axis) >= 2 * most ? most : 1;
}

// The outermost loops are shared out, as many as it takes, in chunks that depend on the shape
// alone, never on the number of threads (amendment C32).
void threads(Plan& plan, const KernelEstimate& work, AxisType along = AxisType::Loop) {
  if (!plan.target().has_threads || work.steps < least_steps_for_threads) return;
  int64_t chunks = 1;
  int outermost = 0;  // where the next THREAD axis goes
  for (int at = 0; chunks < enough_parts && at < static_cast<int>(plan.axes().size()); ++at) {
    const UOp axis = plan.axes()[static_cast<size_t>(at)];
    // Loops inside of a tile's rows go over what these read again.
    if (type_of(axis) == AxisType::Reduce || (type_of(axis) == AxisType::Upcast && chunks > 1))
      return;
    // A running fold goes on along one loop: parts of it would each begin anew.
    if (type_of(axis) != along || is_running_loop(plan.ast(), axis)) continue;
    // Threads inside of a row would each fill it.
    const std::vector<UOp> fills = row_fills(plan.ast());
    if (!std::all_of(fills.begin(), fills.end(),
                     [&](const UOp& fill) { return depends_on(fill, axis); }))
      return;
    const int64_t n = chunks_of(axis, most_parts / chunks);
    if (n < 2) continue;
    std::vector<Opt> edits;
    if (!divides(n, axis)) edits.push_back({OptOp::Padto, at, n});
    edits.push_back({OptOp::Split, at, n, AxisType::Thread, true});
    for (int from = at; from > outermost; --from) edits.push_back({OptOp::Swap, from, from - 1});
    if (!plan.try_all(edits)) continue;
    if (size_of(axis) > n) ++at;  // the rest of the axis
    ++outermost;
    chunks *= n;
  }
}

// Of a fold along several axes the short ones that gates test stand outside: a gate is computed
// once for all steps of the others, such as those of a padded window for all channels.
void gates_outside(Plan& plan) {
  constexpr int64_t most_steps = 16;
  if (plan.target().strict) return;
  std::vector<UOp> tested, folded;
  for (const UOp& u : toposort(plan.ast())) {
    if (u.is(Op::Reduce))
      for (const UOp& r : reduced_ranges(u))
        if (type_of(r) == AxisType::Reduce) folded.push_back(r);
    if (!u.is(Op::Load) || u.src().size() != 3) continue;
    for (const Node* r : u.src(2).ranges()) tested.push_back(UOp::share(r));
  }
  std::vector<bool> is_tested;
  const std::vector<UOp> axes = plan.axes();
  for (const UOp& axis : axes)
    is_tested.push_back(is_among(tested, axis) && is_among(folded, axis) &&
                        size_of(axis) <= most_steps);
  std::vector<Opt> edits;
  for (size_t i = 0; i < axes.size(); ++i)
    for (size_t at = i;
         is_tested[at] && at > 0 && !is_tested[at - 1] && type_of(axes[at - 1]) == AxisType::Reduce;
         --at) {
      edits.push_back({OptOp::Swap, static_cast<int>(at), static_cast<int>(at) - 1});
      is_tested[at] = false;
      is_tested[at - 1] = true;
    }
  if (!edits.empty()) plan.try_all(edits);
}

// Columns of a factor in panels are two axes: the panel, outside of the rows, which all pass over
// it before the next one, and the columns in it.
void loops_over_panels(Plan& plan, const Accesses& now) {
  for (int at = 0; at < static_cast<int>(plan.axes().size()); ++at) {
    const UOp axis = plan.axes()[static_cast<size_t>(at)];
    if (type_of(axis) != AxisType::Loop || is_symbolic(axis)) continue;
    for (const UOp& address : now.loads) {
      int64_t width = 0;
      for (const UOp& u : toposort(address))
        if (u.is(Op::Mod) && u.src(0) == axis && u.src(1).is(Op::Const))
          width = const_int(u.src(1));
      if (width < 2 || size_of(axis) % width != 0) continue;
      std::vector<Opt> edits{{OptOp::Split, at, width, AxisType::Loop, false}};
      const std::vector<UOp> axes = plan.axes();
      const int64_t steps = size_of(reduced_ranges(now.reduces[0])[0]);
      const bool outside = steps * size_of(axis) > most_elements_beside_rows;
      for (int from = at;
           outside && from > 0 && !depends_on(address, axes[static_cast<size_t>(from) - 1]); --from)
        edits.push_back({OptOp::Swap, from, from - 1});
      plan.try_all(edits);
      return;
    }
  }
}

// A register tile, in blocks that the caches keep.
void tile_product(Plan& plan, const Contraction& c, const UOp& reduction,
                  const KernelEstimate& work) {
  int64_t k = 1;
  for (const UOp& r : reduced_ranges(reduction)) k *= std::max<int64_t>(size_of(r), 1);
  const TileLoops loops = register_tile(plan, c, reduction.dtype());
  const int64_t block = rows_of_block(k, loops, c.pitch);
  block_columns(plan, loops, block);
  threads(plan, work);
  if (!c.folded) block_reduction(plan, size_of(c.rows), block);
}

// Lanes and threads of a kernel that keeps its order, but for the turns of its GLOBAL loops.
void global_loops(Plan& plan, const Accesses& accesses) {
  const UOp lane =
      lane_axis(accesses, plan.axes(), [](const UOp& a) { return type_of(a) == AxisType::Global; });
  const int64_t lanes = plan.target().lanes(widest_item(plan.ast()));
  if (lane) vector_lanes(plan, lane, lanes, vectors_at_once(plan.ast()));
  threads(plan, estimate_of(plan.ast()), AxisType::Global);
}

}  // namespace

Edited choose_opts(const UOp& ast, const Target& target) {
  const Accesses written = survey(ast);
  Plan plan(ast, target);
  if (keeps_its_order(ast, written)) {
    target.groups ? choose_threads_in_order(plan) : global_loops(plan, written);
    return std::move(plan).take();
  }
  if (written.reduces.size() == 1) loops_over_panels(plan, written);
  if (target.groups) {
    choose_group_opts(plan, survey(plan.ast()));
    return std::move(plan).take();
  }
  gates_outside(plan);
  const Accesses accesses = survey(plan.ast());
  const KernelEstimate work = estimate_of(ast);
  if (const auto contraction = cheapest_contraction(plan, accesses)) {
    tile_product(plan, *contraction, accesses.reduces[0], work);
    return std::move(plan).take();
  }
  lanes_everywhere(plan, accesses);
  threads(plan, work);
  return std::move(plan).take();
}

}  // namespace koine

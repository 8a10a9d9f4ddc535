#include "koine/lower/stage.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/kernel_plan.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// A number that the threads of a group count with: one of them, of a lane, or of an element.
bool counts_in_group(const UOp& u) {
  if (u.is(Op::Special)) return u.as<std::string>().starts_with("lidx");
  if (!u.is(Op::Range)) return false;
  const AxisType type = type_of(u);
  return type == AxisType::Local || type == AxisType::Warp || type == AxisType::Upcast;
}

// The steps of a sum that a tile holds: of its innermost loop, and what is unrolled in it.
std::vector<UOp> steps_of_tile(const UOp& reduce) {
  std::vector<UOp> out;
  UOp inner;
  for (const UOp& r : reduced_ranges(reduce)) {
    if (type_of(r) == AxisType::Unroll) out.push_back(r);
    if (type_of(r) == AxisType::Reduce && (!inner || inner.as<RangeArg>().id < r.as<RangeArg>().id))
      inner = r;
  }
  if (inner && inner.src(0).is(Op::Const)) out.insert(out.begin(), inner);
  return out;
}

int64_t count_of(const UOp& number) { return const_int(number.src(0)); }

int64_t product_of(const std::vector<UOp>& numbers) {
  int64_t out = 1;
  for (const UOp& u : numbers) out *= count_of(u);
  return out;
}

// What a tile has places for: the steps of the sum, and what the group counts with beside them,
// outermost first. Neighbouring threads have neighbouring places, and what one access takes lies
// together.
struct StagedTile {
  std::vector<UOp> steps, others;
  bool steps_inside;  // a tensor core takes neighbouring steps

  const std::vector<UOp>& inner() const { return steps_inside ? steps : others; }
  const std::vector<UOp>& outer() const { return steps_inside ? others : steps; }
  int64_t row() const { return product_of(inner()); }
  /// Elements from a row to the next: so that threads that read along rows, or store across them,
  /// find other banks.
  int64_t pitch(DType dtype) const {
    const int64_t apart = (steps_inside ? 32 : 16) / item_size(dtype);
    return row() % apart == 0 ? row() + apart : row();
  }
  int64_t size(DType dtype) const { return product_of(outer()) * pitch(dtype); }
  /// Of given numbers in place of those that it counts with.
  UOp place(const Substitution& numbers, DType dtype) const {
    const auto along = [&](const std::vector<UOp>& axes) {
      UOp out = index_const(0);
      for (const UOp& a : axes) out = add(mul(out, a.src(0)), numbers.at(a));
      return out;
    };
    return simplify_index(add(mul(along(outer()), index_const(pitch(dtype))), along(inner())));
  }
};

StagedTile tile_of(const UOp& load, const UOp& reduce) {
  StagedTile out{{}, {}, !reduce.as<ReduceArg>().core.empty()};
  for (const UOp& r : steps_of_tile(reduce))
    if (depends_on(load, r)) out.steps.push_back(r);
  std::vector<UOp> elements, threads;
  for (const UOp& u : toposort(load)) {
    if (!counts_in_group(u)) continue;
    KOINE_INVARIANT(u.src(0).is(Op::Const), "a group of a size that is no constant");
    (u.is(Op::Range) && type_of(u) == AxisType::Upcast ? elements : threads).push_back(u);
  }
  const auto by_id = [](const UOp& u) { return u.as<RangeArg>().id; };
  std::ranges::sort(elements, {}, by_id);
  // Numbers of threads count fastest along the first.
  std::ranges::sort(threads, [&](const UOp& a, const UOp& b) {
    if (a.op() != b.op()) return a.is(Op::Special);
    return a.is(Op::Special) ? a.as<std::string>() > b.as<std::string>() : by_id(a) < by_id(b);
  });
  if (!elements.empty()) {
    out.others.assign(elements.begin(), elements.end() - 1);
    threads.push_back(elements.back());
  }
  out.others.insert(out.others.end(), threads.begin(), threads.end());
  return out;
}

// Fills tiles of one kernel.
class Stage {
 public:
  Stage(const UOp& ast, const Target& target) : target_(target), next_range_(next_range_of(ast)) {
    std::vector<UOp> warps;
    for (const UOp& u : toposort(ast)) {
      if (u.is(Op::Buffer)) next_buffer_ = std::max(next_buffer_, u.as<BufferArg>().slot + 1);
      if (u.is(Op::Special) && counts_in_group(u)) threads_.push_back(u);
      if (u.is(Op::Range) && type_of(u) == AxisType::Warp) warps.push_back(u);
    }
    if (!warps.empty())
      threads_.push_back(
          UOp::make(Op::Special, {index_const(product_of(warps))}, index_in_group_name(0)));
    std::ranges::sort(threads_, {}, [](const UOp& u) { return u.as<std::string>(); });
  }

  UOp staged(const UOp& reduce) {
    const std::vector<UOp> loads = staged_loads(reduce);
    if (loads.empty() || threads_.empty()) return reduce;
    const std::vector<UOp> steps = steps_of_tile(reduce);
    std::vector<UOp> loops;  // around a tile
    for (const UOp& l : loads)
      for (const Node* r : l.ranges()) {
        const UOp loop = UOp::share(r);
        if (!counts_in_group(loop) && !is_among(steps, loop) && !is_among(loops, loop))
          loops.push_back(loop);
      }
    std::ranges::sort(loops, {}, [](const UOp& r) { return r.as<RangeArg>().id; });
    std::vector<UOp> tiles, fills, places;
    for (const UOp& l : loads) {
      const StagedTile tile = tile_of(l, reduce);
      Substitution same;
      for (const auto* axes : {&tile.steps, &tile.others})
        for (const UOp& a : *axes) same.emplace(a, a);
      places.push_back(tile.place(same, l.dtype()));
      tiles.push_back(UOp::make(Op::Buffer, {shape_of({tile.size(l.dtype())})},
                                BufferArg{next_buffer_++, l.dtype(), {}, AddrSpace::Local}));
      // All have read what a tile held before.
      UOp memory = tiles.back();
      if (!loops.empty()) {
        std::vector<UOp> waits{UOp::make(Op::Group, {})};
        waits.insert(waits.end(), loops.begin(), loops.end());
        memory = after(memory, {UOp::make(Op::Barrier, waits)});
      }
      fills.push_back(filled(l, tile, memory));
    }
    const UOp filled = UOp::make(Op::Barrier, {fills.size() == 1 ? fills[0] : group(fills)});
    Substitution in_tile;
    for (size_t i = 0; i < loads.size(); ++i)
      in_tile.emplace(loads[i], load(index(after(tiles[i], {filled}), {places[i]})));
    ReduceArg arg = reduce.as<ReduceArg>();
    arg.staged = false;
    std::vector<UOp> src(reduce.src().begin(), reduce.src().end());
    src[0] = substitute(src[0], in_tile);
    return UOp::make(Op::Reduce, src, arg);
  }

 private:
  // A loop of a thread's part of a fill; its one step where there is one.
  UOp part(int64_t size, AxisType type, std::vector<UOp>& parts) {
    if (size == 1) return index_const(0);
    parts.push_back(range(next_range_++, index_const(size), type));
    return parts.back();
  }

  // The threads fill a tile: each takes neighbours in memory, by one access, and where the tile has
  // neighbours along another axis, several of those, so that it stores neighbours too.
  UOp filled(const UOp& load, const StagedTile& tile, const UOp& memory) {
    const std::vector<Axis> axes = axes_in_memory(load, tile);
    const std::vector<UOp>& inner = tile.inner();
    const bool across = axes[0].step == 1 && !is_among(inner, axes[0].number);
    size_t beside = 0;  // axes that count neighbours, as one
    int64_t run = 1;
    for (; beside < axes.size() && axes[beside].step == run; ++beside) {
      if (across && is_among(inner, axes[beside].number)) break;
      run *= count_of(axes[beside].number);
    }
    const int64_t threads = product_of(threads_), lanes = lanes_of(load, run),
                  vectors = product_of(tile.steps) * product_of(tile.others) / lanes,
                  mine = (vectors + threads - 1) / threads,
                  rows = across ? std::gcd(lanes_of(load, tile.row()), bit_floor(mine)) : 1,
                  blocks = vectors / rows, parts = (blocks + threads - 1) / threads;
    std::vector<UOp> loops;
    constexpr int64_t most_at_once = 16;  // registers that wait for memory
    UOp number = part(parts, parts <= most_at_once ? AxisType::Unroll : AxisType::Loop, loops);
    const UOp row = part(rows, AxisType::Unroll, loops),
              lane = part(lanes, AxisType::Unroll, loops);
    for (size_t i = threads_.size(); i-- > 0;)
      number = add(mul(number, threads_[i].src(0)), threads_[i]);
    UOp gate;
    if (parts * threads != blocks) {
      gate = lt(number, index_const(blocks));
      number = minimum(number, index_const(blocks - 1));
    }
    const auto next = [](UOp& rest, int64_t size) {
      const UOp out = simplify_index(mod(rest, index_const(size)));
      rest = simplify_index(idiv(rest, index_const(size)));
      return out;
    };
    const auto scaled = [](const UOp& n, int64_t by, const UOp& low) {
      return simplify_index(add(mul(n, index_const(by)), low));
    };
    // Across: some threads beside each other along memory, others along the rows of the tile.
    constexpr int64_t vectors_beside = 4;  // on an H100 faster than 1, 2 and all
    const int64_t first = across ? divisor(run / lanes, vectors_beside) : run / lanes;
    UOp in_run = next(number, first);
    Substitution numbers, in_memory;
    if (across) {
      UOp in_row = scaled(next(number, tile.row() / rows), rows, row);
      in_run = scaled(next(number, run / lanes / first), first, in_run);
      for (size_t i = inner.size(); i-- > 0;)
        numbers.emplace(inner[i], next(in_row, count_of(inner[i])));
    }
    const UOp place = scaled(in_run, lanes, lane);
    UOp digits = place;
    for (size_t i = 0; i < axes.size(); ++i) {
      const UOp& axis = axes[i].number;
      if (i < beside) in_memory.emplace(axis, i == 0 ? place : index_const(0));
      if (numbers.contains(axis)) continue;
      numbers.emplace(axis, next(i < beside ? digits : number, count_of(axis)));
    }
    for (const auto& [axis, at] : numbers) in_memory.try_emplace(axis, at);
    const UOp value = rewrite(substitute(load, in_memory), symbolic_rules());
    const UOp stored = store(index(memory, {tile.place(numbers, load.dtype())}), value, gate);
    return loops.empty() ? stored : end(stored, loops);
  }

  struct Axis {
    UOp number;
    int64_t step;  // in memory; the largest number: not known
  };
  // What a tile counts with, by their steps in memory.
  std::vector<Axis> axes_in_memory(const UOp& load, const StagedTile& tile) const {
    std::vector<Axis> out;
    for (const auto* list : {&tile.others, &tile.steps})
      for (const UOp& a : *list) {
        // What counts threads is no Range: one stands for it.
        const UOp stands = range(next_range_, a.src(0), AxisType::Loop);
        const UOp address = substitute(load.src(0), {{a, stands}});
        const int64_t step = load.src().size() == 1 ? stride(address, stands).value_or(0) : 0;
        out.push_back({a, step > 0 ? step : INT64_MAX});
      }
    std::ranges::stable_sort(out, {}, &Axis::step);
    return out;
  }

  static int64_t bit_floor(int64_t n) {
    return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(n)));
  }

  // Neighbours of so many that one access takes.
  int64_t lanes_of(const UOp& load, int64_t run) const {
    int64_t lanes = std::max<int64_t>(target_.wide_bytes / item_size(load.dtype()), 1);
    while (run % lanes != 0) lanes /= 2;
    return lanes;
  }

  const Target& target_;
  std::vector<UOp> threads_;  // the numbers of a thread in its group, the fastest first
  int64_t next_range_, next_buffer_ = 0;
};

}  // namespace

std::vector<UOp> staged_loads(const UOp& reduce) {
  const std::vector<UOp> steps = steps_of_tile(reduce);
  std::vector<UOp> out;
  for (const UOp& u : toposort(reduce.src(0))) {
    if (!u.is(Op::Load) || !is_address(u.src(0)) || !accessed_buffer(u).is(Op::Param)) continue;
    const NodeList below = toposort(u);
    if (std::ranges::any_of(below, [&](const UOp& b) { return b.is(Op::Load) && !(b == u); }))
      continue;
    if (std::ranges::any_of(steps, [&](const UOp& s) { return depends_on(u, s); }))
      out.push_back(u);
  }
  return out;
}

int64_t staged_bytes(const UOp& reduce) {
  int64_t out = 0;
  for (const UOp& l : staged_loads(reduce))
    out += tile_of(l, reduce).size(l.dtype()) * item_size(l.dtype());
  return out;
}

UOp stage_operands(const UOp& ast, const Target& target) {
  const auto is_staged = [](const UOp& u) { return u.is(Op::Reduce) && u.as<ReduceArg>().staged; };
  if (std::ranges::none_of(toposort(ast), is_staged)) return ast;
  Stage stage(ast, target);
  return transform_graph(ast, [&](const UOp&, const UOp& node) {
    return is_staged(node) ? stage.staged(node) : node;
  });
}

}  // namespace koine

#include "koine/lower/epilogue.hpp"

#include <algorithm>
#include <optional>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/kernel_plan.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

bool is_vector_axis(const UOp& r) {
  return r.is(Op::Range) && type_of(r) == AxisType::Upcast && r.src(0).is(Op::Const);
}

// The one fold of a kernel, and the one Store, with the End around it.
struct FoldNest {
  UOp reduce, stored, closing;
};
std::optional<FoldNest> fold_nest_of(const UOp& ast) {
  FoldNest out;
  for (const UOp& u : toposort(ast)) {
    const bool other = u.is(Op::Buffer) || u.is(Op::Special) || u.is(Op::Barrier) ||
                       u.is(Op::AtomicAdd) || u.is(Op::Wmma);
    UOp* place = u.is(Op::Reduce)  ? &out.reduce
                 : u.is(Op::Store) ? &out.stored
                 : u.is(Op::End)   ? &out.closing
                                   : nullptr;
    if (other || (place != nullptr && *place)) return std::nullopt;
    if (place != nullptr) *place = u;
  }
  if (!out.reduce || !out.stored || !out.closing || out.closing.src(0) != out.stored)
    return std::nullopt;
  return out;
}

// How results lie in LOCAL memory, and how the second loop goes over it: each axis of the tile in
// terms of that loop's.
struct TileInMemory {
  std::vector<UOp> axes, loops;
  Substitution again;
  int64_t size = 1;
  UOp place;
};

class TileMaker {
 public:
  explicit TileMaker(const UOp& ast) : next_range_(next_range_of(ast)) {}

  // Nothing: no tile whose lanes can go along the output.
  std::optional<TileInMemory> of(const UOp& ast, const FoldNest& nest) {
    const UOp& address = nest.stored.src(0);
    std::vector<UOp> axes;
    UOp lanes, innermost;
    for (const UOp& r : kernel_ranges(ast)) {
      const bool around = is_among(nest.closing.src(), r);
      if (around && is_vector_axis(r)) axes.push_back(r);
      if (around && type_of(r) == AxisType::Loop) innermost = r;
      if (becomes_shape(type_of(r)) && type_of(r) != AxisType::Unroll) lanes = r;
    }
    if (axes.empty() || stride(address, axes.back()) != 1) return std::nullopt;
    if (lanes == axes.back()) return axes.size() < 2 ? std::nullopt : std::optional(whole(axes));
    // The lanes fold: those along the output take neighbouring tiles as well.
    const int64_t columns = size_of(axes.back());
    if (columns == size_of(lanes)) return whole(axes);
    if (!innermost || stride(address, innermost) != columns || !innermost.src(0).is(Op::Const) ||
        size_of(innermost) * columns != size_of(lanes))
      return std::nullopt;
    return across(axes, innermost, size_of(lanes));
  }

 private:
  // An axis of the tile that the second loop goes along.
  void add(TileInMemory& tile, const UOp& axis, AxisType type) {
    const UOp loop = range(next_range_++, axis.src(0), type);
    tile.axes.push_back(axis);
    tile.loops.push_back(loop);
    tile.again.emplace(axis, loop);
    append(tile, axis, size_of(axis));
  }
  static void append(TileInMemory& tile, const UOp& number, int64_t size) {
    tile.place = tile.place ? add_index(mul(tile.place, index_const(size)), number) : number;
    tile.size *= size;
  }
  static UOp add_index(const UOp& a, const UOp& b) { return simplify_index(koine::add(a, b)); }

  TileInMemory whole(const std::vector<UOp>& axes) {
    TileInMemory out;
    for (const UOp& axis : axes)
      add(out, axis, axis == axes.back() ? AxisType::Upcast : AxisType::Loop);
    return out;
  }
  TileInMemory across(const std::vector<UOp>& axes, const UOp& innermost, int64_t lanes) {
    TileInMemory out;
    for (size_t i = 0; i + 1 < axes.size(); ++i) add(out, axes[i], AxisType::Loop);
    const UOp& column = axes.back();
    const UOp lane = range(next_range_++, index_const(lanes), AxisType::Upcast);
    const UOp columns = column.src(0);
    out.axes.insert(out.axes.end(), {innermost, column});
    out.loops.push_back(lane);
    out.again.emplace(innermost, binary(Op::Idiv, lane, columns));
    out.again.emplace(column, binary(Op::Mod, lane, columns));
    append(out, innermost, size_of(innermost));
    append(out, column, size_of(column));
    return out;
  }

  int64_t next_range_;
};

}  // namespace

bool makes_much_of_folds(const UOp& stored) {
  constexpr double least = 12;
  if (stored.is(Op::Reduce)) return false;  // what it folds does not count
  return element_cost(stored, [](const UOp& n) {
           return n.is(Op::Load) || n.is(Op::Reduce) || n.dtype() == DType::Index;
         }) >= least;
}

UOp epilogue_in_loop(const UOp& ast) {
  const std::optional<FoldNest> nest = fold_nest_of(ast);
  if (!nest || !makes_much_of_folds(nest->stored.src(1))) return ast;
  const std::optional<TileInMemory> tile = TileMaker(ast).of(ast, *nest);
  if (!tile) return ast;
  const UOp memory = UOp::make(Op::Buffer, {shape_of({tile->size})},
                               BufferArg{0, nest->reduce.dtype(), {}, AddrSpace::Local});
  const UOp filled =
      after(memory, {end(store(index(memory, {tile->place}), nest->reduce), tile->axes)});
  const UOp place = simplify_index(substitute(tile->place, tile->again));
  Substitution again = tile->again;
  again.emplace(nest->reduce, load(index(filled, {place})));
  std::vector<UOp> src;
  for (const UOp& s : nest->stored.src()) src.push_back(simplify(substitute(s, again)));
  std::vector<UOp> around;
  for (const UOp& r : nest->closing.src().subspan(1))
    if (!is_among(tile->axes, r)) around.push_back(r);
  const UOp inside = end(with_sources(nest->stored, src), tile->loops);
  return sink(std::vector<UOp>{around.empty() ? inside : end(inside, around)});
}

}  // namespace koine

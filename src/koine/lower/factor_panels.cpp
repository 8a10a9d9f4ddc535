#include "koine/lower/factor_panels.hpp"

#include <algorithm>
#include <optional>

#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/rules/places.hpp"

namespace koine {
namespace {

// Measured on products of float32: with fewer rows the copy costs as much as it saves.
constexpr int64_t least_rows = 256, least_columns = 16, least_steps = 16;
constexpr int64_t least_elements = 1 << 16;  // 256 KiB of float32: less stays in a cache as it lies

// Columns of a panel, some vectors that a register tile takes; 0: all there are, few or odd ones.
int64_t panel_width(int64_t columns) {
  constexpr int64_t most = 96;
  for (const int64_t width : {int64_t{64}, most, int64_t{80}, int64_t{48}, int64_t{32}})
    if (columns > most && columns % width == 0) return width;
  return 0;
}

// Of a sum over products with one axis to sum over: axes of the factor.
struct Axes {
  size_t steps, columns;
};

// The size of a factor along an axis of its product; of what broadcasts 1, of no constant 0.
int64_t size_along(const UOp& u, size_t axis, const UOp& product) {
  const size_t lacks = product.rank() - u.rank();
  if (axis < lacks) return 1;
  const UOp& size = u.dim(axis - lacks);
  return size.is(Op::Const) ? const_int(size) : 0;
}

// The axes where `factor` has the columns and `other` the rows.
std::optional<Axes> axes_of(const UOp& sum, const UOp& factor, const UOp& other) {
  const UOp& product = sum.src(0);
  const size_t none = product.rank();
  Axes out{none, none};
  int64_t rows = 1;
  for (const int64_t axis : sum.as<ReduceArg>().axes) {
    const auto i = static_cast<size_t>(axis);
    if (is_const(product.dim(i), 1)) continue;
    if (out.steps != none) return std::nullopt;
    out.steps = i;
  }
  if (out.steps == none || size_along(factor, out.steps, product) < least_steps)
    return std::nullopt;
  for (size_t i = 0; i < none; ++i) {
    if (i == out.steps || is_const(product.dim(i), 1)) continue;
    out.columns = i;  // the last one
    if (size_along(factor, i, product) == 1) rows *= size_along(other, i, product);
  }
  const bool many = rows >= least_rows && out.columns != none &&
                    size_along(factor, out.columns, product) >= least_columns &&
                    size_along(other, out.columns, product) == 1;
  if (!many) return std::nullopt;
  const size_t lacks = none - factor.rank();
  return Axes{out.steps - lacks, out.columns - lacks};
}

// What a value shows, below views and casts, at a place of it.
struct Shown {
  UOp base;
  Indices at;
};
Shown shown_by(UOp node, Indices at) {
  while (is_view(node.op()) || node.is(Op::Cast)) {
    UOp inside;
    if (is_view(node.op())) at = moved(node, at, inside);
    node = UOp(node.src(0));
  }
  return {node, at};
}

// Whether neighbours along an axis of a value are neighbours in what it shows.
bool lies_along(const UOp& value, size_t axis) {
  Indices at;
  for (size_t i = 0; i < value.rank(); ++i)
    at.push_back(range(static_cast<int64_t>(i), value.dim(i), AxisType::Loop));
  const UOp along = at[axis];
  const Shown shown = shown_by(value, at);
  if (shown.base.is(Op::Const)) return false;
  int64_t step = 0;
  UOp rest;
  const UOp place = simplify_index(flat_index(shown.base.shape(), shown.at));
  return linear_coefficient(place, along, step, rest) && step == 1;
}

// What is made of folds is computed as it is, in a kernel with their loops, before the copy.
UOp over_folds_in_memory(const UOp& value) {
  if (is_view(value.op()) || value.is(Op::Cast))
    return with_source(value, 0, over_folds_in_memory(value.src(0)));
  const bool folds = value.is(Op::Reduce) || (value.node()->ops_below & mask_of(Op::Reduce)) != 0;
  if (!folds || value.is(Op::Contiguous)) return value;
  return UOp::make(Op::Contiguous, {value}, std::string("a factor that is copied"));
}

// The same value from memory in which its axes stand in another order.
UOp copied(const UOp& value, const Ints& order, const char* reason) {
  Ints back(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return permute(UOp::make(Op::Contiguous, {permute(value, order)}, std::string(reason)), back);
}

// All axes, these at last.
Ints ordered(size_t rank, std::initializer_list<size_t> last) {
  Ints out;
  for (size_t i = 0; i < rank; ++i)
    if (std::find(last.begin(), last.end(), i) == last.end())
      out.push_back(static_cast<int64_t>(i));
  out.insert(out.end(), last.begin(), last.end());
  return out;
}

// The rows of a panel follow each other: what else there is, the panels, the steps of the sum, the
// columns of a panel.
UOp in_panels(const UOp& factor, const Axes& axes, int64_t width) {
  const size_t panel = axes.columns, column = panel + 1,
               step = axes.steps < panel ? axes.steps : axes.steps + 1;
  std::vector<UOp> sizes;
  for (size_t i = 0; i < factor.rank(); ++i) sizes.emplace_back(factor.dim(i));
  sizes[panel] = index_const(const_int(factor.dim(panel)) / width);
  sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(column), index_const(width));
  const UOp split = reshape(over_folds_in_memory(factor), stack(sizes));
  return reshape(copied(split, ordered(sizes.size(), {panel, step, column}), "panels of a factor"),
                 factor.shape());
}

// The other factor, whose rows all panels meet again: each lies along the sum, so that a step of it
// is no step to another page.
UOp along_steps(const UOp& factor, size_t step) {
  if (lies_along(factor, step)) return factor;
  return copied(over_folds_in_memory(factor), ordered(factor.rank(), {step}), "rows of a factor");
}

}  // namespace

UOp copy_factors_into_panels(const UOp& program) {
  return transform_graph(program, [](const UOp& original, const UOp& node) {
    if (!original.is(Op::Reduce) || original.as<ReduceArg>().op != Op::Add) return node;
    const UOp& product = node.src(0);
    if (!product.is(Op::Mul) || !is_float(product.dtype())) return node;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const UOp& factor = product.src(side);
      const auto axes = axes_of(node, factor, product.src(1 - side));
      if (!axes) continue;
      const int64_t columns = const_int(factor.dim(axes->columns)), width = panel_width(columns);
      const int64_t elements = columns * const_int(factor.dim(axes->steps));
      if ((width == 0 || elements < least_elements) && !lies_along(factor, axes->steps)) continue;
      std::vector<UOp> factors(product.src().begin(), product.src().end());
      factors[side] = in_panels(factor, *axes, width == 0 ? columns : width);
      UOp& other = factors[1 - side];
      const size_t step = axes->steps + product.rank() - factor.rank();
      if (width > 0 && elements > most_elements_beside_rows && columns >= least_rows &&
          size_along(other, step, product) >= least_steps)
        other = along_steps(other, step + other.rank() - product.rank());
      return with_source(node, 0, with_sources(product, factors));
    }
    return node;
  });
}

}  // namespace koine

#include "koine/lower/factor_panels.hpp"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/index.hpp"
#include "koine/lower/kernel_plan.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// Measured on products of float32: with fewer rows the copy costs as much as it saves.
constexpr int64_t least_rows = 256, least_columns = 16, least_steps = 16;
constexpr int64_t least_elements = 1 << 16;  // 256 KiB of float32: less stays in a cache as it lies
// Beside windows, where lanes are lacking otherwise: a kernel more costs a percent of the products.
constexpr int64_t least_window_rows = 32;
constexpr double least_products = 1 << 22;
constexpr int64_t most_elements_of_a_panel = 7 << 16;  // 1.75 MiB stay in a cache of 2

// Columns of a panel, some vectors that a register tile takes; 0: all there are, few or odd ones.
int64_t panel_width(int64_t columns) {
  constexpr int64_t most = 96;
  for (const int64_t width : {int64_t{64}, most, int64_t{80}, int64_t{48}, int64_t{32}})
    if (columns > most && columns % width == 0) return width;
  return 0;
}

// Of a sum over products: axes of the factor, those to sum over in their order.
struct Axes {
  std::vector<size_t> steps;
  size_t columns;
  int64_t length = 1;  // of the sum
  bool beside_windows() const { return steps.size() > 1; }
};

// The size of a factor along an axis of its product; of what broadcasts 1, of no constant 0.
int64_t size_along(const UOp& u, size_t axis, const UOp& product) {
  const size_t lacks = product.rank() - u.rank();
  if (axis < lacks) return 1;
  const UOp& size = u.dim(axis - lacks);
  return size.is(Op::Const) ? const_int(size) : 0;
}

// A factor without the axes that it is spread along.
UOp before_expanding(UOp factor) {
  while (factor.is(Op::Expand)) factor = UOp(factor.src(0));
  return factor;
}

// The axes where `factor` has the columns and `other` the rows. Columns are the last axis; beside
// windows, which are summed over several axes, they are that of the channels.
std::optional<Axes> axes_of(const UOp& sum, const UOp& factor, const UOp& other) {
  const UOp& product = sum.src(0);
  const size_t none = product.rank();
  Axes out{{}, none};
  int64_t rows = 1;
  for (const int64_t axis : sum.as<ReduceArg>().axes) {
    const auto i = static_cast<size_t>(axis);
    if (is_const(product.dim(i), 1)) continue;
    if (size_along(factor, i, product) < 2) return std::nullopt;
    out.steps.push_back(i);
    out.length *= size_along(factor, i, product);
  }
  if (out.length < least_steps) return std::nullopt;
  for (size_t i = 0; i < none; ++i) {
    if (std::ranges::find(out.steps, i) != out.steps.end() || is_const(product.dim(i), 1)) continue;
    const int64_t own = size_along(factor, i, product), others = size_along(other, i, product);
    if (!out.beside_windows() || (own > 1 && others == 1)) out.columns = i;
    if (own == 1) rows *= others;
  }
  const double products = static_cast<double>(out.length) * elements_of(sum);
  const bool many = (out.beside_windows() ? rows >= least_window_rows && products >= least_products
                                          : rows >= least_rows) &&
                    out.columns != none &&
                    size_along(factor, out.columns, product) >= least_columns &&
                    size_along(other, out.columns, product) == 1;
  if (!many) return std::nullopt;
  const size_t lacks = none - factor.rank();
  for (size_t& step : out.steps) step -= lacks;
  out.columns -= lacks;
  return out;
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
  if (shown.base.is(Op::Const) || shown.base.is(Op::Index)) return false;
  int64_t step = 0;
  UOp rest;
  const UOp place = simplify_index(flat_index(shown.base.shape(), shown.at));
  return linear_coefficient(place, along, step, rest) && step == 1;
}

// Whether neighbours along an axis of windows are neighbours in memory, so that their sum has
// lanes.
bool windows_run_along(const UOp& windows, size_t axis) {
  Leaves leaves([](const UOp& u) {
    return !is_elementwise(u.op()) && !is_movement(u.op()) &&
           (u.node()->ops_below & (mask_of(Op::Param) | mask_of(Op::Buffer))) != 0;
  });
  int64_t next_range = 0;
  std::vector<UOp> loops;
  const Indices at = open_loops(windows, next_range, loops);
  const UOp element = Indexer(leaves, false, next_range).element(windows, at);
  return runs_along(rewrite(element, kernel_rules(false)), at[axis]);
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
  return permute_back(UOp::make(Op::Contiguous, {permute(value, order)}, std::string(reason)),
                      order);
}

// All axes, these at last.
Ints ordered(size_t rank, std::span<const size_t> last) {
  Ints out;
  for (size_t i = 0; i < rank; ++i)
    if (std::ranges::find(last, i) == last.end()) out.push_back(static_cast<int64_t>(i));
  out.insert(out.end(), last.begin(), last.end());
  return out;
}

// The rows of a panel follow each other: what else there is, the panels, the steps of the sum, the
// columns of a panel.
UOp in_panels(const UOp& factor, const Axes& axes, int64_t width) {
  const size_t panel = axes.columns, column = panel + 1;
  std::vector<UOp> sizes;
  for (size_t i = 0; i < factor.rank(); ++i) sizes.emplace_back(factor.dim(i));
  sizes[panel] = index_const(const_int(factor.dim(panel)) / width);
  sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(column), index_const(width));
  std::vector<size_t> last{panel};
  for (const size_t step : axes.steps) last.push_back(step < panel ? step : step + 1);
  last.push_back(column);
  const UOp split = reshape(over_folds_in_memory(factor), stack(sizes));
  return reshape(copied(split, ordered(sizes.size(), last), "panels of a factor"), factor.shape());
}

// The other factor, whose rows all panels meet again: each lies along the sum, so that a step of it
// is no step to another page.
UOp along_steps(const UOp& factor, size_t step) {
  if (lies_along(factor, step)) return factor;
  return copied(over_folds_in_memory(factor), ordered(factor.rank(), {&step, 1}),
                "rows of a factor");
}

// The two of a product with copies, `factor` first; empty: as they lie they are as good.
std::vector<UOp> with_copies(const UOp& sum, const UOp& factor, const UOp& other) {
  const UOp& product = sum.src(0);
  const auto axes = axes_of(sum, factor, other);
  if (!axes) return {};
  const int64_t columns = const_int(factor.dim(axes->columns)), width = panel_width(columns),
                panel = width == 0 ? columns : width;
  const size_t step = axes->steps.back(), along = step + product.rank() - factor.rank(),
               step_of_other = along + other.rank() - product.rank();
  const int64_t elements = columns * axes->length;
  const bool in_blocks = !axes->beside_windows() && width > 0 && elements >= least_elements;
  if (!in_blocks && !lies_along(factor, step)) return {};
  if (axes->beside_windows() && axes->length * panel > most_elements_of_a_panel &&
      windows_run_along(other, step_of_other))
    return {};
  const bool rows_as_well = in_blocks && elements > most_elements_beside_rows &&
                            columns >= least_rows &&
                            size_along(other, along, product) >= least_steps;
  return {in_panels(factor, *axes, panel),
          rows_as_well ? along_steps(other, step_of_other) : other};
}

}  // namespace

UOp copy_factors_into_panels(const UOp& program) {
  return transform_graph(program, [](const UOp& original, const UOp& node) {
    if (!original.is(Op::Reduce) || original.as<ReduceArg>().op != Op::Add) return node;
    const UOp& product = node.src(0);
    if (!product.is(Op::Mul) || !is_float(product.dtype())) return node;
    const UOp own[] = {before_expanding(product.src(0)), before_expanding(product.src(1))};
    for (const size_t side : {size_t{0}, size_t{1}}) {
      std::vector<UOp> factors = with_copies(node, own[side], own[1 - side]);
      if (factors.empty()) continue;
      if (side == 1) std::swap(factors[0], factors[1]);
      for (size_t k = 0; k < 2; ++k)
        if (product.src(k).is(Op::Expand)) factors[k] = expand(factors[k], product.src(k).shape());
      return with_source(node, 0, with_sources(product, factors));
    }
    return node;
  });
}

}  // namespace koine

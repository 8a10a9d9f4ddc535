#include "koine/lower/tensor_core.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/kernel_plan.hpp"
#include "koine/lower/respell.hpp"
#include "koine/rules/wmma.hpp"

namespace koine {
namespace {

// Whether each value of a dtype is one of another.
bool holds(DType wide, DType narrow) {
  if (wide == narrow) return true;
  const bool integers = is_integer(wide) && is_integer(narrow) && narrow != DType::Index;
  if (integers) {
    const auto to = integer_range(wide), from = integer_range(narrow);
    return to.low <= from.low && from.high <= to.high;
  }
  const bool bytes = narrow == DType::Float8E4M3 || narrow == DType::Float8E5M2;
  return bytes && (wide == DType::Float16 || wide == DType::BFloat16);
}

bool is_loaded(const UOp& u) { return u.is(Op::Load) || (u.is(Op::Cast) && u.src(0).is(Op::Load)); }

// The innermost loop that one factor runs over and the other does not; of such the one that stores
// run along, if there is one.
UOp own_axis(const UOp& ast, const UOp& factor, const UOp& other, bool along_stores) {
  const Accesses accesses = survey(ast);
  UOp out;
  bool runs = false;
  for (const UOp& axis : kernel_ranges(ast)) {
    if (type_of(axis) != AxisType::Loop || !depends_on(factor, axis) || depends_on(other, axis))
      continue;
    const bool here = along_stores && std::ranges::any_of(accesses.stores, [&](const UOp& address) {
                        return stride(address, axis) == 1;
                      });
    if (runs && !here) continue;
    runs = here;
    out = axis;
  }
  return out;
}

bool depends_on_either(const UOp& value, const UOp& a, const UOp& b) {
  return (a && depends_on(value, a)) || (b && depends_on(value, b));
}

// A core on two factors, in this order; or why not.
std::variant<CoreFit, std::string> fit_of(const UOp& ast, const UOp& folded, const TensorCore& core,
                                          const UOp& a, const UOp& b, const UOp& counts, int opt) {
  if (!holds(core.a.dtype, a.dtype()) || !holds(core.b.dtype, b.dtype()))
    return fmt::format("it multiplies {} and {}, these are {} and {}", dtype_name(core.a.dtype),
                       dtype_name(core.b.dtype), dtype_name(a.dtype()), dtype_name(b.dtype()));
  if (opt < 1 && !(is_loaded(a) && is_loaded(b)))
    return std::string("a factor is computed (opt 1 takes that too)");
  const CoreFit fit{&core, folded, own_axis(ast, a, b, false), own_axis(ast, b, a, true)};
  if (!fit.columns || (!fit.rows && core.m > 1))
    return std::string("each factor needs a loop that the other does not run over");
  if (counts && depends_on_either(counts, fit.rows, fit.columns))
    return std::string("which products count depends on rows or columns");
  if (opt < 2)
    for (const auto& [axis, size] :
         {std::pair{fit.folded, core.k}, {fit.rows, core.m}, {fit.columns, core.n}})
      if (axis && !divides(size, axis))
        return fmt::format("the size {} of axis {} is no multiple of {} (opt 2 pads it)",
                           dim_text(axis.src(0)), axis.as<RangeArg>().id, size);
  return fit;
}

// Why a kernel is for no core at all; empty: one may fit.
std::string refusal_of_kernel(const UOp& ast, const UOp& folded) {
  const std::vector<UOp> axes = kernel_ranges(ast);
  for (size_t i = 0; i < axes.size(); ++i)
    if (type_of(axes[i]) != AxisType::Loop && type_of(axes[i]) != AxisType::Reduce)
      return fmt::format("it must be the first edit, and axis {} is {} already", i,
                         axis_type_name(type_of(axes[i])));
  if (type_of(folded) != AxisType::Reduce)
    return fmt::format("it takes a REDUCE axis, and this one is {}",
                       axis_type_name(type_of(folded)));
  const Accesses accesses = survey(ast);
  if (accesses.reduces.size() != 1 || !accesses.fills.empty() ||
      accesses.reduces[0].as<ReduceArg>().op != Op::Add)
    return fmt::format("the kernel has {} reduces{}: a tensor core computes one sum",
                       accesses.reduces.size(), accesses.fills.empty() ? "" : " and rows");
  if (std::ranges::count_if(toposort(ast), [](const UOp& u) { return u.is(Op::End); }) != 1)
    return "its loops are several nests";
  if (!factors_of(accesses.reduces[0]).x)
    return fmt::format(
        "what is summed is no product of two narrower factors that are converted to "
        "{}: a product of narrow floats is rounded before it is added",
        dtype_name(accesses.reduces[0].dtype()));
  return {};
}

}  // namespace

std::variant<CoreFit, std::string> find_core(const UOp& ast, const UOp& folded,
                                             const CoreChoice& choice, const Target& target) {
  if (std::string no = refusal_of_kernel(ast, folded); !no.empty()) return no;
  if (choice.mode != 1 && choice.mode != 2)
    return fmt::format("mode {}: expected 1, the tensor core, or 2, its axes alone", choice.mode);
  const auto count = static_cast<int>(target.tensor_cores.size());
  if (choice.core < -1 || choice.core >= count)
    return fmt::format("there is no tensor core {}: the target has {} (-1: the first that fits)",
                       choice.core, count);
  const UOp reduce = survey(ast).reduces[0];
  const Factors factors = factors_of(reduce);
  std::string reasons;
  for (int i = 0; i < count; ++i) {
    const TensorCore& core = *target.tensor_cores[static_cast<size_t>(i)];
    if (choice.core >= 0 && choice.core != i) continue;
    std::string reason = fmt::format("it sums in {}", dtype_name(core.accumulator.dtype));
    if (core.accumulator.dtype == reduce.dtype()) {
      std::optional<CoreFit> best;
      for (const bool swapped : {false, true}) {
        const UOp &a = swapped ? factors.y : factors.x, &b = swapped ? factors.x : factors.y;
        const auto fit = fit_of(ast, folded, core, a, b, factors.counts, choice.opt);
        if (const auto* found = std::get_if<CoreFit>(&fit)) {
          // Lanes along memory: the columns are the inner axis.
          const bool inner =
              best && found->columns.as<RangeArg>().id > best->columns.as<RangeArg>().id;
          if (!best || inner) best = *found;
        } else if (!swapped) {
          reason = std::get<std::string>(fit);
        }
      }
      if (best) return *best;
    }
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", core.name, reason);
  }
  return reasons.empty() ? std::string("the target has no tensor cores")
                         : "no tensor core fits: " + reasons;
}

UOp with_core(const UOp& ast, const CoreFit& fit, int mode) {
  constexpr int64_t room = 32;  // ids between those of two neighbouring axes
  const TensorCore& core = *fit.core;
  int64_t last_loop = 0;
  for (const UOp& r : kernel_ranges(ast))
    if (type_of(r) == AxisType::Loop) last_loop = std::max(last_loop, r.as<RangeArg>().id);
  Respelling changes;
  for (const UOp& r : kernel_ranges(ast)) {
    const UOp moved = range(r.as<RangeArg>().id * room, r.src(0), type_of(r));
    changes.emplace(r, Respelled{moved, {moved}});
  }
  // The loop over the parts of an axis; the place where a part begins.
  auto parts = [&](const UOp& axis, int size) -> Respelled {
    const UOp count = simplify_index(idiv(axis.src(0), index_const(size)));
    if (is_const(count, 1)) return {index_const(0), {}};
    const UOp part = range(axis.as<RangeArg>().id * room, count, type_of(axis));
    return {mul(part, index_const(size)), {part}};
  };
  Respelled rows = fit.rows ? parts(fit.rows, core.m) : Respelled{},
            columns = parts(fit.columns, core.n), folded = parts(fit.folded, core.k);
  int64_t next = last_loop * room;
  auto count_along = [&](std::span<const CoreAxis> axes, AxisType type) {
    for (const CoreAxis& axis : axes) {
      const UOp r = range(++next, index_const(axis.size), type);
      columns.ranges.push_back(r);
      UOp& place = (axis.along == 'm' ? rows : columns).value;
      place = add(place, mul(r, index_const(axis.step)));
    }
  };
  count_along(core.accumulator.threads, mode == 1 ? AxisType::Warp : AxisType::Local);
  count_along(core.accumulator.elements, AxisType::Upcast);
  const UOp step =
      range(fit.folded.as<RangeArg>().id * room + 1, index_const(core.k), AxisType::Unroll);
  folded.ranges.push_back(step);
  folded.value = add(folded.value, step);
  for (auto& [axis, to] :
       {std::pair{fit.rows, &rows}, {fit.columns, &columns}, {fit.folded, &folded}}) {
    if (!axis) continue;
    to->value = simplify_index(to->value);
    changes[axis] = *to;
  }
  const UOp out = with_lists_in_order(respell(ast, std::move(changes)));
  if (mode != 1) return out;
  return transform_graph(out, [&](const UOp&, const UOp& node) {
    if (!node.is(Op::Reduce)) return node;
    ReduceArg arg = node.as<ReduceArg>();
    arg.core = core.name;
    return UOp::make(Op::Reduce, node.src(), arg);
  });
}

bool has_axes_of_core(const UOp& ast) {
  const std::vector<UOp> ranges = kernel_ranges(ast);
  return std::ranges::none_of(toposort(ast), [&](const UOp& u) {
    return u.is(Op::Reduce) && !u.as<ReduceArg>().core.empty() && !sum_on_core(u, ranges);
  });
}

bool is_on_core(const UOp& ast) {
  return std::ranges::any_of(toposort(ast), [](const UOp& u) {
    return u.is(Op::Reduce) && !u.as<ReduceArg>().core.empty();
  });
}

}  // namespace koine

#include "koine/lower/optimize.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <variant>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/index_room.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/group_limits.hpp"
#include "koine/lower/heuristic.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/lower/respell.hpp"
#include "koine/lower/tensor_core.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// What an axis type may be split into (the spec's table, and C24 for CPUs).
std::vector<AxisType> legal_targets(AxisType from) {
  switch (from) {
    case AxisType::Loop:
      return {AxisType::Loop, AxisType::Upcast, AxisType::Thread, AxisType::Global,
              AxisType::Local};
    case AxisType::Global:
      return {AxisType::Local, AxisType::Thread, AxisType::Upcast, AxisType::Loop};
    case AxisType::Local:
      return {AxisType::Upcast};
    case AxisType::Thread:
      return {AxisType::Loop, AxisType::Upcast};
    case AxisType::Reduce:
      return {AxisType::Reduce, AxisType::GroupReduce, AxisType::Unroll};
    case AxisType::GroupReduce:
      return {AxisType::Unroll};
    default:
      return {};
  }
}

UOp with_id(const UOp& r, int64_t id) { return range(id, r.src(0), type_of(r)); }

// Ids 0, 1, 2, ... in nesting order: equal kernels become equal nodes (amendment C21).
UOp renumber(const UOp& ast) {
  const std::vector<UOp> now = kernel_ranges(ast);
  Respelling changes;
  for (size_t i = 0; i < now.size(); ++i) {
    const UOp fresh = with_id(now[i], static_cast<int64_t>(i));
    if (!(fresh == now[i])) changes.emplace(now[i], Respelled{fresh, {fresh}});
  }
  return changes.empty() ? ast : respell(ast, std::move(changes));
}

// Whether the length of another range depends on this one.
bool bounds_another(const UOp& ast, const UOp& axis) {
  const std::vector<UOp> ranges = kernel_ranges(ast);
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](const UOp& r) { return depends_on(r.src(0), axis); });
}

// Whether lanes, or other threads of a group, share what was one memory: its rows lie in it anew.
bool shares_memory(AxisType target) { return becomes_shape(target) || target == AxisType::Local; }

// Whether threads take the steps of an axis.
bool is_shared_out(AxisType target) {
  return target == AxisType::Thread || target == AxisType::Global || target == AxisType::Local ||
         target == AxisType::GroupReduce;
}

// Each lane has rows of its own, beside each other in memory that is so much larger.
UOp with_rows_for_lanes(const UOp& ast, const UOp& lanes) {
  absl::flat_hash_map<const Node*, UOp> wide;  // buffers
  for (const UOp& fill : row_fills(ast)) {
    const UOp& buffer = accessed_buffer(fill.src(0));
    if (!depends_on(fill, lanes) || wide.contains(buffer.node())) continue;
    const int64_t size = buffer.numel() * const_int(lanes.src(0));
    wide.emplace(buffer.node(), UOp::make(Op::Buffer, {shape_of({size})}, buffer.arg()));
  }
  if (wide.empty()) return ast;
  return transform_graph(ast, [&](const UOp& original, const UOp& node) {
    if (const auto it = wide.find(original.node()); it != wide.end()) return it->second;
    if (!is_address(original) || !wide.contains(buffer_at(original).node())) return node;
    const UOp place = add(mul(node.src(1), lanes.src(0)), lanes);
    return with_source(node, 1, simplify_index(place));
  });
}

// Whether memory goes on changing along an axis, step by step.
bool goes_on_along(const UOp& ast, const UOp& axis) {
  if ((ast.node()->ops_below & mask_of(Op::After)) == 0) return false;
  const NodeList nodes = toposort(ast);
  return std::any_of(nodes.begin(), nodes.end(), [&](const UOp& u) {
    return u.is(Op::After) && is_among(u.src().subspan(1), axis);
  });
}

// Whether memory that is read again as it goes on changing is stored into outside of an axis.
bool changes_outside(const UOp& ast, const UOp& axis) {
  if ((ast.node()->ops_below & mask_of(Op::After)) == 0) return false;
  absl::flat_hash_set<const Node*> changing;
  const NodeList nodes = toposort(ast);
  for (const UOp& u : nodes)
    if (u.is(Op::After) && u.src(0).is(Op::Param)) changing.insert(u.src(0).node());
  return std::any_of(nodes.begin(), nodes.end(), [&](const UOp& u) {
    return u.is(Op::Store) && changing.contains(accessed_buffer(u).node()) && !depends_on(u, axis);
  });
}

// Why an edit is not legal.
struct Refusal {
  ErrorKind kind;
  std::string reason;
};

// An edit of a kernel, its axis, and the number of all of an axis in place of the 0 that says so.
Opt with_amount(const Opt& opt, const UOp& axis) {
  Opt out = opt;
  if (opt.op == OptOp::Split && opt.amount == 0 && axis.src(0).is(Op::Const))
    out.amount = const_int(axis.src(0));
  return out;
}
// Whether it gives all of an axis of symbolic size another type.
bool takes_all(const Opt& opt) { return opt.op == OptOp::Split && opt.amount == 0; }
template <class... Args>
std::optional<Refusal> refuse(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) {
  return Refusal{kind, fmt::format(text, std::forward<Args>(args)...)};
}

// What stands for an axis after an edit computes with numbers of about its size, and of some times
// the amount of the edit.
std::optional<Refusal> refusal_of_numbers(const UOp& ast, const UOp& axis, const Opt& opt) {
  const double size = static_cast<double>(axis.src(0).bounds().high) + 1,
               amount = static_cast<double>(opt.amount);
  const GrownRange grown[] = {{axis, 2 * size + 8 * amount}};
  if (has_index_room(ast, grown)) return std::nullopt;
  return refuse(ErrorKind::Value,
                "{}: axis {} of size {}: indices that depend on it might leave 64 bits",
                opt.op == OptOp::Split ? "Split" : "Padto", opt.axis, dim_text(axis.src(0)));
}

std::vector<UOp> atomic_adds(const UOp& ast) {
  std::vector<UOp> out;
  if ((ast.node()->ops_below & mask_of(Op::AtomicAdd)) == 0) return out;
  for (const UOp& u : toposort(ast))
    if (u.is(Op::AtomicAdd)) out.push_back(u);
  return out;
}

std::optional<Refusal> refusal_of_split(const UOp& ast, const UOp& axis, const Opt& opt,
                                        const Groups& groups) {
  constexpr ErrorKind value = ErrorKind::Value;
  const AxisType from = type_of(axis);
  const std::vector<AxisType> legal = legal_targets(from);
  if (std::find(legal.begin(), legal.end(), opt.target) == legal.end()) {
    std::string list;
    for (const AxisType t : legal) list += fmt::format(" {}", axis_type_name(t));
    return refuse(value, "Split: axis {} is {}, which may not become {}; it may become:{}",
                  opt.axis, axis_type_name(from), axis_type_name(opt.target),
                  list.empty() ? " nothing" : list);
  }
  const UOp& bound = axis.src(0);
  if (takes_all(opt)) {
    if (opt.target != AxisType::Global)
      return refuse(value, "Split: axis {} of size {}: only GLOBAL takes all of a symbolic size",
                    opt.axis, dim_text(bound));
    if (!bound.ranges().empty())
      return refuse(value, "Split: axis {}: its length depends on other axes: it is no grid",
                    opt.axis);
    return std::nullopt;
  }
  if (opt.amount < 1)
    return refuse(value, "Split: axis {}: the factor {} must be positive", opt.axis, opt.amount);
  if (!is_const(simplify_index(mod(bound, index_const(opt.amount))), 0))
    return refuse(value, "Split: axis {} of size {} is not divisible by {}: use Padto first",
                  opt.axis, dim_text(bound), opt.amount);
  const bool threads_fold = groups && opt.target == AxisType::GroupReduce;
  if (becomes_shape(opt.target) && !threads_fold && opt.amount > 256)
    return refuse(value, "Split: axis {}: {} lanes are too many", opt.axis, opt.amount);
  for (const UOp& u : atomic_adds(ast)) {
    if (is_shared_out(opt.target) && (is_reduction(opt.target) || !depends_on(u, axis)))
      return refuse(value, "Split: axis {}: each thread along it would do the same AtomicAdd",
                    opt.axis);
    if (opt.target == AxisType::Upcast && !depends_on(u, axis))
      return refuse(value, "Split: axis {}: an AtomicAdd adds in each turn of it, and has no lanes",
                    opt.axis);
  }
  if (becomes_shape(opt.target) && !threads_fold)
    for (const UOp& u : toposort(ast))
      if ((u.is(Op::Ins) || u.is(Op::Custom)) && depends_on(u, axis))
        return refuse(value, "Split: axis {}: {} is of one element at a time", opt.axis,
                      op_name(u.op()));
  const std::vector<UOp> fills = row_fills(ast);
  const bool part_of_row = groups && opt.target == AxisType::Local;  // which the group shares
  if (!becomes_shape(opt.target) && !part_of_row && opt.target != from && is_listed(fills, axis))
    return refuse(value,
                  "Split: axis {}: it fills LOCAL memory, of which each thread has its own: it may "
                  "not become {}",
                  opt.axis, axis_type_name(opt.target));
  for (const UOp& fill : fills) {
    const UOp& buffer = accessed_buffer(fill.src(0));
    if (!shares_memory(opt.target) || !depends_on(fill, axis)) continue;
    if (buffer.numel() > most_local_bytes / item_size(buffer.dtype()) / opt.amount)
      return refuse(value,
                    "Split: axis {}: rows of {} {} elements for {} lanes do not fit into LOCAL "
                    "memory",
                    opt.axis, buffer.numel(), dtype_name(buffer.dtype()), opt.amount);
  }
  if (!may_fold_lanes(ast, axis) && is_reduction(opt.target) && opt.target != AxisType::Reduce)
    return refuse(value,
                  "Split: axis {}: a reduce of floats narrower than 32 bits rounds at each step "
                  "and folds one by one: sum in float32",
                  opt.axis);
  if (opt.target == AxisType::Upcast && bounds_another(ast, axis))
    return refuse(value,
                  "Split: axis {}: a running fold goes on along it, step by step: it may not "
                  "become UPCAST",
                  opt.axis);
  if (opt.target != from && goes_on_along(ast, axis))
    return refuse(value,
                  "Split: axis {}: what lies in memory goes on along it, step by step: it may not "
                  "become {}",
                  opt.axis, axis_type_name(opt.target));
  if (is_shared_out(opt.target) && !is_reduction(opt.target) && changes_outside(ast, axis))
    return refuse(
        value,
        "Split: axis {}: memory that goes on changing is stored into outside of it, by each "
        "of its threads",
        opt.axis);
  return refusal_of_numbers(ast, axis, opt);
}

UOp with_type(const UOp& r, AxisType type) { return range(r.as<RangeArg>().id, r.src(0), type); }

UOp split(const UOp& ast, const UOp& axis, const Opt& opt) {
  const AxisType from = type_of(axis);
  const UOp& bound = axis.src(0);
  if (takes_all(opt)) {
    const UOp all = with_type(axis, opt.target);
    return respell(ast, {{axis, {all, {all}}}});
  }
  const UOp factor = index_const(opt.amount);
  const UOp rest = simplify_index(idiv(bound, factor));
  const int64_t id = axis.as<RangeArg>().id;
  // Room between neighbouring ids: all ids are doubled.
  const UOp outer = range(2 * id, opt.top ? factor : rest, opt.top ? opt.target : from);
  const UOp inner = range(2 * id + 1, opt.top ? rest : factor, opt.top ? from : opt.target);
  Respelling changes;
  for (const UOp& r : kernel_ranges(ast)) {
    if (r == axis) continue;
    const UOp moved = with_id(r, 2 * r.as<RangeArg>().id);
    changes.emplace(r, Respelled{moved, {moved}});
  }
  std::vector<UOp> kept;
  for (const UOp& r : {outer, inner})
    if (!is_const(r.src(0), 1)) kept.push_back(r);
  auto at = [&](const UOp& r) { return is_const(r.src(0), 1) ? index_const(0) : r; };
  const UOp value = add(mul(at(outer), inner.src(0)), at(inner));
  changes.emplace(axis, Respelled{simplify_index(value), kept});
  const UOp out = respell(ast, std::move(changes));
  const UOp& lanes = opt.top ? outer : inner;
  return shares_memory(opt.target) && opt.amount > 1 ? with_rows_for_lanes(out, lanes) : out;
}

// An axis rounded up: its element that each value of the longer range stands for, and which of
// those values count.
struct Padded {
  UOp place, counts;
};

// Every place exists, so that no access needs a gate and lanes along memory stay lanes: the last
// part lies at the end of the axis, and what it shares with the part before it does not count. An
// axis that is shorter than a part stays at its last element.
Padded padded(const UOp& wide, int64_t size, int64_t multiple) {
  if (size < multiple) {
    const UOp last = index_const(size - 1);
    return {minimum(wide, last), lt(wide, index_const(size))};
  }
  const int64_t parts = const_int(wide.src(0)) / multiple, shared = parts * multiple - size;
  const UOp part = idiv(wide, index_const(multiple)), inner = mod(wide, index_const(multiple));
  const UOp start = minimum(mul(part, index_const(multiple)), index_const(size - multiple));
  return {add(start, inner),
          bit_or(lt(part, index_const(parts - 1)), lt(index_const(shared - 1), inner))};
}

// A load that happens only where `counts` holds.
UOp load_where(const UOp& node, const UOp& counts) {
  if (node.src().size() == 3) return load(node.src(0), node.src(1), bit_and(node.src(2), counts));
  return load(node.src(0), constant_int(node.dtype(), 0), counts);
}

// A load along a longer axis of symbolic size, which may be shorter than a part, so that none lies
// at its end: gated where lanes may run along the axis, and else of the last element again.
UOp load_within(const UOp& node, const UOp& wide, const UOp& size, const UOp& counts) {
  const UOp& address = node.src(0);
  int64_t step = 0;
  UOp rest;
  if (address.src().size() == 2 && linear_coefficient(address.src(1), wide, step, rest) &&
      step == 1)
    return load_where(node, counts);
  const Substitution nearest{{wide, minimum(wide, sub(size, index_const(1)))}};
  const UOp there = with_source(
      node, 0, with_source(address, 1, simplify_index(substitute(address.src(1), nearest))));
  if (node.src().size() < 3) return there;
  return with_source(there, 2, substitute(node.src(2), nearest));  // it speaks of the place
}

// A Reduce over a longer axis folds in only what counts. Whether it is a sum of one element, which
// keeps the sign of a zero, the longer axis does not say: the fold then starts from what does.
UOp fold_of_counted(const UOp& node, const UOp& axis, const UOp& wide, const UOp& counts) {
  const Op op = node.as<ReduceArg>().op;
  const std::span<const UOp> ranges = reduced_ranges(node);
  UOp start = start_of(node);
  if (!start) {
    std::vector<UOp> counted(ranges.begin(), ranges.end());
    std::replace(counted.begin(), counted.end(), wide, axis);
    start = fold_start(op, node.dtype(), counted);
    if (start.is(Op::Const)) start = {};  // the longer axis says the same
  }
  const UOp nothing = start ? neutral_of(op, node.dtype()) : identity_of(op, node.dtype());
  return reduce_ranges(op, where(counts, node.src(0), nothing), ranges, start);
}

std::optional<Refusal> refusal_of_padding(const UOp& ast, const UOp& axis, const Opt& opt) {
  const UOp& bound = axis.src(0);
  if (opt.amount < 1)
    return refuse(ErrorKind::Value, "Padto: axis {}: the multiple {} must be positive", opt.axis,
                  opt.amount);
  for (const UOp& u : atomic_adds(ast))
    if (depends_on(u, axis) || !is_reduction(type_of(axis)))
      return refuse(ErrorKind::Value, "Padto: axis {}: an AtomicAdd would add some elements twice",
                    opt.axis);
  if (goes_on_along(ast, axis))
    return refuse(ErrorKind::Value,
                  "Padto: axis {}: what lies in memory goes on along it, some steps twice",
                  opt.axis);
  if (bound.bounds().high > INT64_MAX - opt.amount)
    return refuse(ErrorKind::Value,
                  "Padto: axis {} of size {} has no multiple of {} in 63 bits above it", opt.axis,
                  dim_text(bound), opt.amount);
  return refusal_of_numbers(ast, axis, opt);
}

// The memory of others that a kernel stores into.
absl::flat_hash_set<const Node*> stored_memory(const UOp& ast) {
  absl::flat_hash_set<const Node*> out;
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Store) && is_address(u.src(0)) && !accessed_buffer(u).is(Op::Buffer))
      out.insert(accessed_buffer(u).node());
  return out;
}

// Rounds an axis up; what lies beyond is neither stored nor folded in, nor read where another part
// may be storing it.
UOp pad_to(const UOp& ast, const UOp& axis, int64_t multiple, bool in_groups) {
  const UOp& bound = axis.src(0);
  const UOp part = index_const(multiple),
            parts = simplify_index(idiv(add(bound, index_const(multiple - 1)), part)),
            rounded = simplify_index(mul(parts, part));
  if (rounded == bound) return ast;
  const UOp wide = range(axis.as<RangeArg>().id, rounded, type_of(axis));
  const bool symbolic = !bound.is(Op::Const);
  const auto [place, counts] =
      symbolic ? Padded{wide, lt(wide, bound)} : padded(wide, const_int(bound), multiple);
  const UOp longer = respell(ast, {{axis, {place, {wide}}}});
  // Another row of LOCAL memory, or the same element of a row once more, harms nobody but threads
  // that fill it together.
  absl::flat_hash_set<const Node*> of_rows;
  for (const UOp& fill : row_fills(longer))
    if ((!symbolic && !in_groups) || !depends_on(fill.src(0).src(0).src(1), wide))
      of_rows.insert(fill.src(0).node());
  const absl::flat_hash_set<const Node*> stored = stored_memory(longer);
  return transform_graph(longer, [&](const UOp& original, const UOp& node) -> UOp {
    if (node.is(Op::Load) && is_address(node.src(0)) && depends_on(node.src(0), wide)) {
      if (symbolic) return load_within(node, wide, bound, counts);
      if (stored.contains(accessed_buffer(node).node())) return load_where(node, counts);
    }
    if (node.is(Op::Store) && depends_on(node, wide) && !of_rows.contains(original.node()))
      return store(node.src(0), node.src(1),
                   node.src().size() == 3 ? bit_and(node.src(2), counts) : counts);
    if (!node.is(Op::Reduce) || !is_among(reduced_ranges(node), wide)) return node;
    return fold_of_counted(node, axis, wide, counts);
  });
}

// Whether a REDUCE axis may stand outside of the parallel ones: the partial results then live in
// the output, which must hold them unrounded and nothing else that the kernel reads.
bool keeps_partial_sums(const UOp& ast) {
  std::vector<UOp> reduces, stores, loads;
  for (const UOp& u : toposort(ast)) {
    if (u.is(Op::Reduce)) reduces.push_back(u);
    if (u.is(Op::Store)) stores.push_back(u);
    if (u.is(Op::Load)) loads.push_back(u);
  }
  if (reduces.size() != 1 || stores.size() != 1 || reduces[0].ranges().empty()) return false;
  const bool updates = std::any_of(loads.begin(), loads.end(), [&](const UOp& l) {
    return accessed_buffer(l) == accessed_buffer(stores[0]);
  });
  return !updates && stores[0].src(1).dtype() == reduces[0].dtype();
}

std::optional<Refusal> refusal_of_swap(const UOp& ast, const UOp& a, const UOp& b, const Opt& opt) {
  if (is_reduction(type_of(a)) != is_reduction(type_of(b)) && !keeps_partial_sums(ast))
    return refuse(ErrorKind::Value,
                  "Swap: axes {} ({}) and {} ({}): a reduction axis stands outside a parallel one "
                  "only in a kernel with one reduce whose output has its dtype and is not read",
                  opt.axis, axis_type_name(type_of(a)), opt.amount, axis_type_name(type_of(b)));
  if (!a.src(0).ranges().empty() || !b.src(0).ranges().empty())
    return refuse(ErrorKind::Value,
                  "Swap: axes {} and {}: one of them has a length that depends on other axes",
                  opt.axis, opt.amount);
  return std::nullopt;
}

UOp swap_axes(const UOp& ast, const UOp& a, const UOp& b) {
  const UOp x = with_id(a, b.as<RangeArg>().id), y = with_id(b, a.as<RangeArg>().id);
  return with_lists_in_order(respell(ast, {{a, {x, {x}}}, {b, {y, {y}}}}));
}

// The threads of a group become groups of their own.
UOp without_locals(const UOp& ast) {
  Respelling changes;
  for (const UOp& r : kernel_ranges(ast))
    if (type_of(r) == AxisType::Local) {
      const UOp group = with_type(r, AxisType::Global);
      changes.emplace(r, Respelled{group, {group}});
    }
  return respell(ast, std::move(changes));
}

int position_of(const UOp& ast, const UOp& axis) {
  const std::vector<UOp> all = kernel_ranges(ast);
  return static_cast<int>(std::find(all.begin(), all.end(), axis) - all.begin());
}

// The edits that TC consists of, beside its own: the axes padded where opt 2 says so, and splits
// that must be legal, though they are made at once.
struct CoreEdits {
  std::vector<Opt> padding, splits;
};
CoreEdits core_edits(const UOp& ast, const CoreFit& fit) {
  CoreEdits out;
  for (const auto& [axis, size, type] : {std::tuple{fit.folded, fit.core->k, AxisType::Unroll},
                                         {fit.rows, fit.core->m, AxisType::Upcast},
                                         {fit.columns, fit.core->n, AxisType::Upcast}}) {
    if (!axis || size == 1) continue;
    const int at = position_of(ast, axis);
    const UOp left = simplify_index(mod(axis.src(0), index_const(size)));
    if (!is_const(left, 0)) out.padding.push_back({OptOp::Padto, at, size});
    out.splits.push_back({OptOp::Split, at, size, type});
  }
  return out;
}

UOp edited(const UOp& ast, const std::vector<UOp>& ranges, const Opt& opt, const Target& target);

UOp padded_for_core(UOp ast, const CoreEdits& edits) {
  for (const Opt& pad : edits.padding) ast = edited(ast, kernel_ranges(ast), pad, {});
  return ast;
}

UOp on_core(const UOp& ast, const UOp& folded, const Opt& opt, const Target& target) {
  const CoreFit fit = std::get<CoreFit>(find_core(ast, folded, opt.tc, target));
  const UOp whole = padded_for_core(ast, core_edits(ast, fit));
  const std::vector<UOp> now = kernel_ranges(whole);
  auto again = [&](const UOp& axis) {
    return axis ? now[static_cast<size_t>(position_of(ast, axis))] : UOp();
  };
  return with_core(whole, {fit.core, again(fit.folded), again(fit.rows), again(fit.columns)},
                   opt.tc.mode);
}

bool folds_along(const UOp& u, const UOp& axis) {
  return u.is(Op::Reduce) && is_among(reduced_ranges(u), axis);
}

// The sum along an axis takes its factors from LOCAL memory.
UOp with_staged_factors(const UOp& ast, const UOp& axis) {
  return transform_graph(ast, [&](const UOp& original, const UOp& node) {
    if (!folds_along(original, axis)) return node;
    ReduceArg arg = node.as<ReduceArg>();
    arg.staged = true;
    return UOp::make(Op::Reduce, node.src(), arg);
  });
}

std::optional<Refusal> refusal_of_stage(const UOp& ast, const UOp& axis, const Opt& opt,
                                        const Groups& groups) {
  constexpr ErrorKind value = ErrorKind::Value;
  if (!groups)
    return refuse(value, "{}: this device has no groups of threads, which share LOCAL memory",
                  opt_text(opt));
  if (type_of(axis) != AxisType::Reduce)
    return refuse(value, "{}: axis {} is {}: it takes a REDUCE axis", opt_text(opt), opt.axis,
                  axis_type_name(type_of(axis)));
  const NodeList nodes = toposort(ast);
  std::vector<UOp> folds;
  for (const UOp& u : nodes)
    if (u.is(Op::Reduce)) folds.push_back(u);
  if (folds.size() != 1 || !folds_along(folds[0], axis) || !row_fills(ast).empty())
    return refuse(value, "{}: it takes a kernel with one reduce and no rows", opt_text(opt));
  if (folds[0].as<ReduceArg>().staged)
    return refuse(value, "{}: the factors go through LOCAL memory already", opt_text(opt));
  return std::nullopt;
}

// What a legal edit makes.
UOp edited(const UOp& ast, const std::vector<UOp>& ranges, const Opt& opt, const Target& target) {
  auto axis = [&](int64_t i) -> const UOp& { return ranges[static_cast<size_t>(i)]; };
  UOp out;
  switch (opt.op) {
    case OptOp::Split:
      out = split(ast, axis(opt.axis), with_amount(opt, axis(opt.axis)));
      break;
    case OptOp::Padto:
      out = pad_to(ast, axis(opt.axis), opt.amount, static_cast<bool>(target.groups));
      break;
    case OptOp::Swap:
      if (opt.axis == opt.amount) return ast;
      out = swap_axes(ast, axis(opt.axis), axis(opt.amount));
      break;
    case OptOp::Nolocals:
      out = without_locals(ast);
      break;
    case OptOp::TC:
      out = on_core(ast, axis(opt.axis), opt, target);
      break;
    case OptOp::Stage:
      out = with_staged_factors(ast, axis(opt.axis));
      break;
  }
  return rewrite(renumber(out), symbolic_rules());
}

std::optional<Refusal> refusal_of_core(const UOp& ast, const UOp& folded, const Opt& opt,
                                       const Target& target) {
  const auto found = find_core(ast, folded, opt.tc, target);
  if (const std::string* no = std::get_if<std::string>(&found))
    return refuse(ErrorKind::Value, "{}: {}", opt_text(opt), *no);
  const CoreEdits edits = core_edits(ast, std::get<CoreFit>(found));
  const std::vector<UOp> axes = kernel_ranges(ast);
  auto at = [](const std::vector<UOp>& list, const Opt& o) -> const UOp& {
    return list[static_cast<size_t>(o.axis)];
  };
  for (const Opt& pad : edits.padding)
    if (auto no = refusal_of_padding(ast, at(axes, pad), pad)) return no;
  const UOp whole = padded_for_core(ast, edits);
  const std::vector<UOp> wide = kernel_ranges(whole);
  for (const Opt& split : edits.splits)
    if (auto no = refusal_of_split(whole, at(wide, split), split, {})) return no;
  return std::nullopt;
}

// A tensor core has its axes where it wants them.
std::optional<Refusal> refusal_of_core_axis(const UOp& ast, const UOp& axis, const Opt& opt) {
  const bool kept = type_of(axis) == AxisType::Warp || becomes_shape(type_of(axis));
  const bool together = opt.op == OptOp::Split && opt.target == AxisType::GroupReduce;
  const bool padded = opt.op == OptOp::Padto && is_reduction(type_of(axis));
  if (!(kept || together || padded) || !is_on_core(ast)) return std::nullopt;
  return refuse(ErrorKind::Value, "{}: on a tensor core {}", opt_text(opt),
                together ? "threads do not fold a sum together"
                : padded ? "what is summed is padded by TC (opt 2)"
                         : "the axes of the core stay where they are");
}

std::optional<Refusal> refusal(const UOp& ast, const std::vector<UOp>& ranges, const Opt& given,
                               const Target& target) {
  const Groups& groups = target.groups;
  if (given.op == OptOp::Nolocals) {
    if (groups)
      if (const std::string no = refusal_in_groups(ast, {}, given, ast, groups); !no.empty())
        return Refusal{ErrorKind::Value, no};
    return std::nullopt;
  }
  Opt opt = given;
  const auto count = static_cast<int64_t>(ranges.size());
  for (const int64_t i : {int64_t{opt.axis}, opt.op == OptOp::Swap ? opt.amount : opt.axis})
    if (i < 0 || i >= count)
      return refuse(ErrorKind::Index, "{}: axis {} is out of range: the kernel has {} axes",
                    opt_text(opt), i, count);
  if (opt.op == OptOp::Swap && opt.axis == opt.amount) return std::nullopt;
  const UOp& axis = ranges[static_cast<size_t>(opt.axis)];
  opt = with_amount(opt, axis);
  const UOp& other = opt.op == OptOp::Swap ? ranges[static_cast<size_t>(opt.amount)] : axis;
  auto out = opt.op == OptOp::TC      ? refusal_of_core(ast, axis, opt, target)
             : opt.op == OptOp::Split ? refusal_of_split(ast, axis, opt, groups)
             : opt.op == OptOp::Padto ? refusal_of_padding(ast, axis, opt)
             : opt.op == OptOp::Stage ? refusal_of_stage(ast, axis, opt, groups)
                                      : refusal_of_swap(ast, axis, other, opt);
  for (const UOp& a : {axis, other})
    if (!out) out = refusal_of_core_axis(ast, a, opt);
  const bool on_core = is_on_core(ast);
  if (out || (!groups && !on_core)) return out;
  const UOp after = edited(ast, ranges, opt, target);
  if (on_core && !has_axes_of_core(after))
    return refuse(ErrorKind::Value, "{}: on a tensor core the axes of the core stay the innermost",
                  opt_text(opt));
  if (!groups) return std::nullopt;
  if (const std::string no = refusal_in_groups(ast, axis, opt, after, groups); !no.empty())
    return Refusal{ErrorKind::Value, no};
  return std::nullopt;
}

int64_t count_divisions(const UOp& ast) {
  int64_t n = 0;
  for (const UOp& u : toposort(ast))
    n += u.dtype() == DType::Index && (u.is(Op::Idiv) || u.is(Op::Mod)) ? 1 : 0;
  return n;
}

}  // namespace

std::string opt_text(const Opt& opt) {
  switch (opt.op) {
    case OptOp::Split:
      return fmt::format("Split({}, {}, {}{})", opt.axis, opt.amount, axis_type_name(opt.target),
                         opt.top ? ", top" : "");
    case OptOp::Padto:
      return fmt::format("Padto({}, {})", opt.axis, opt.amount);
    case OptOp::Swap:
      return fmt::format("Swap({}, {})", opt.axis, opt.amount);
    case OptOp::Nolocals:
      return "Nolocals()";
    case OptOp::Stage:
      return fmt::format("Stage({})", opt.axis);
    case OptOp::TC:
      return fmt::format("TC({}, ({}, {}, {}))", opt.axis, opt.tc.core, opt.tc.opt, opt.tc.mode);
  }
  return "";
}

std::vector<UOp> kernel_ranges(const UOp& ast) {
  std::vector<UOp> out;
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Range)) out.push_back(u);
  std::sort(out.begin(), out.end(),
            [](const UOp& a, const UOp& b) { return a.as<RangeArg>().id < b.as<RangeArg>().id; });
  return out;
}

std::vector<UOp> row_fills(const UOp& ast) {
  std::vector<UOp> out;
  for (const UOp& u : toposort(ast))
    if (u.is(Op::End) && u.src(0).is(Op::Store) && is_address(u.src(0).src(0)) &&
        accessed_buffer(u.src(0)).is(Op::Buffer))
      out.push_back(u);
  return out;
}

bool is_listed(const std::vector<UOp>& fills, const UOp& axis) {
  return std::any_of(fills.begin(), fills.end(),
                     [&](const UOp& fill) { return is_among(fill.src().subspan(1), axis); });
}

bool becomes_shape(AxisType t) {
  return t == AxisType::Upcast || t == AxisType::Unroll || t == AxisType::GroupReduce;
}

bool may_fold_lanes(const UOp& ast, const UOp& axis) {
  for (const UOp& u : toposort(ast)) {
    if (!u.is(Op::Reduce) || !is_small_float(u.dtype())) continue;
    if (is_among(reduced_ranges(u), axis)) return false;
  }
  return true;
}

UOp apply_opt(const UOp& ast, const Opt& opt, const Target& target) {
  const std::vector<UOp> ranges = kernel_ranges(ast);
  if (const auto no = refusal(ast, ranges, opt, target)) raise(no->kind, "{}", no->reason);
  return edited(ast, ranges, opt, target);
}

UOp apply_if_legal(const UOp& ast, const Opt& opt, const Target& target) {
  const std::vector<UOp> ranges = kernel_ranges(ast);
  return refusal(ast, ranges, opt, target) ? UOp() : edited(ast, ranges, opt, target);
}

bool can_apply(const UOp& ast, const Opt& opt, const Target& target) {
  return !refusal(ast, kernel_ranges(ast), opt, target);
}

UOp apply_opts(const UOp& ast, std::span<const Opt> opts, const Target& target) {
  UOp out = ast;
  for (size_t i = 0; i < opts.size(); ++i) {
    KOINE_REQUIRE(i == 0 || opts[i].op != OptOp::TC, Value,
                  "{}: it must be the first edit, and stands behind {}", opt_text(opts[i]),
                  opt_text(opts[i - 1]));
    out = apply_opt(out, opts[i], target);
  }
  return out;
}

UOp merge_ranges(const UOp& ast) {
  UOp current = ast;
  for (bool again = true; again;) {
    again = false;
    const std::vector<UOp> ranges = kernel_ranges(current);
    for (size_t i = 0; i + 1 < ranges.size() && !again; ++i) {
      const UOp &a = ranges[i], &b = ranges[i + 1];
      if (type_of(a) != type_of(b)) continue;
      // Both must be listed by the same End or Reduce, and by an After what it stands in.
      bool together = true;
      for (const UOp& u : toposort(current)) {
        if (!u.is(Op::End) && !u.is(Op::Reduce) && !u.is(Op::After)) continue;
        const auto list = u.src().subspan(1);
        together = together && is_among(list, a) == is_among(list, b);
      }
      if (!together) continue;
      const UOp merged =
          range(a.as<RangeArg>().id, simplify_index(mul(a.src(0), b.src(0))), type_of(a));
      if (merged == a) continue;
      const double size = static_cast<double>(merged.src(0).bounds().high) + 1,
                   inner = static_cast<double>(b.src(0).bounds().high) + 1;
      const GrownRange parts[] = {{a, size / inner + 2}, {b, size + inner}};
      if (!has_index_room(current, parts)) continue;
      const UOp high = idiv(merged, b.src(0)), low = mod(merged, b.src(0));
      const UOp candidate =
          rewrite(respell(current, {{a, {high, {merged}}}, {b, {low, {}}}}), symbolic_rules());
      if (count_divisions(candidate) > count_divisions(current)) continue;
      current = candidate;
      again = true;
    }
  }
  return renumber(current);
}

namespace {

// Without the loops of one turn that a kernel by hand may have.
UOp without_single_turns(const UOp& ast) {
  Respelling single;
  for (const UOp& r : kernel_ranges(ast))
    if (type_of(r) == AxisType::Loop && r.src(0) == index_const(1))
      single.emplace(r, Respelled{index_const(0), {}});
  return single.empty() ? ast : rewrite(respell(ast, single), symbolic_rules());
}

}  // namespace

UOp optimize(const UOp& ast, const Target& target, std::vector<Opt>* applied,
             const CompileOptions& how) {
  if (how.noopt) return renumber(ast);
  Edited out = choose_opts(merge_ranges(without_single_turns(ast)), target);
  if (applied != nullptr) *applied = std::move(out.opts);
  return out.ast;
}

}  // namespace koine

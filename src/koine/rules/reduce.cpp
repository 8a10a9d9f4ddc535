#include <cmath>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/rules/window.hpp"

// Reduces over Ranges that need no loop. These make arange an index expression (row C-arange) and
// the one-hot gather a load (row C-gather); they work on kernels, where every value is a scalar.
namespace koine {

// Wrapping integers always; floats only while every partial sum is a small whole number, and not
// -0, as 0 + -0 is 0. One fold goes over all ranges: what is exact for some of them may round in
// another order.
bool repeats_exactly(const UOp& value, const UOp& reduction) {
  if (!is_float(value.dtype())) return true;
  if (!value.is(Op::Const)) return false;
  const double v = const_double(value), limit = std::ldexp(1, significant_bits(value.dtype()));
  if (v == 0 && std::signbit(v)) return false;
  double largest = std::max(std::fabs(v), 1.0);
  for (const UOp& range : reduced_ranges(reduction))
    largest *= std::max(1.0, static_cast<double>(range.src(0).bounds().high));
  return v == std::trunc(v) && largest < limit;
}

namespace {

// Whether n times `value` is as near to the sum of n copies as the default mode promises: two
// roundings, where the copies are finite or there is at least one.
bool repeats_nearly(const UOp& value, const UOp& count) {
  if (value.dtype() != DType::Float32 && value.dtype() != DType::Float64) return false;
  if (!value.is(Op::Const)) return count.bounds().low >= 1;
  const double v = const_double(value);
  return count.bounds().low >= 1 ? v != 0 || !std::signbit(v) : std::isfinite(v) && v != 0;
}

// n copies of a value. No copies are 0, and not -0.
UOp copies_of(const UOp& value, const UOp& count) {
  const UOp product = mul(value, cast(count, value.dtype()));
  const bool may_be_minus_zero = is_float(value.dtype()) && count.bounds().low < 1 &&
                                 value.is(Op::Const) && const_double(value) < 0;
  return may_be_minus_zero ? add(product, constant_int(value.dtype(), 0)) : product;
}

UOp without_range(const UOp& reduction, const UOp& value, size_t drop) {
  std::vector<UOp> ranges;
  for (size_t i = 1; i < reduction.src().size(); ++i)
    if (i != drop) ranges.push_back(reduction.src(i));
  return ranges.empty() ? value : reduce_ranges(reduction.as<ReduceArg>().op, value, ranges);
}

// The body does not look at a range.
UOp drop_unused_range(const UOp& r, bool strict) {
  const Op op = r.as<ReduceArg>().op;
  const UOp& value = r.src(0);
  for (size_t i = 1; i < r.src().size(); ++i) {
    const UOp& range = r.src(i);
    if (depends_on(value, range)) continue;
    const UOp& bound = range.src(0);
    if (op == Op::Max && bound.bounds().low >= 1) return without_range(r, value, i);
    if (op == Op::Add && (repeats_exactly(value, r) || (!strict && repeats_nearly(value, bound))))
      return without_range(r, copies_of(value, bound), i);
  }
  return {};
}

// How many j in [0, n) satisfy the condition, for conditions linear in j with coefficient 1 or -1.
UOp count_where(const UOp& condition, const UOp& range) {
  UOp c = condition;
  bool negated = false;
  while (c.is(Op::CmpNe) && is_const(c.src(1), 1) && c.src(0).dtype() == DType::Bool) {
    negated = !negated;
    c = c.src(0);
  }
  if (!c.is(Op::CmpLt) || c.src(0).dtype() != DType::Index) return {};
  int64_t coefficient = 0;
  UOp rest;
  if (!linear_coefficient(simplify_index(sub(c.src(0), c.src(1))), range, coefficient, rest))
    return {};
  const UOp& n = range.src(0);
  const UOp zero = index_const(0);
  auto clamp = [&](const UOp& v) { return minimum(maximum(v, zero), n); };
  UOp count;
  if (coefficient == 1)  // j + rest < 0: the first -rest
    count = clamp(neg(rest));
  else if (coefficient == -1)  // rest < j: the last n - 1 - rest
    count = clamp(sub(sub(n, index_const(1)), rest));
  else
    return {};
  if (negated) count = sub(n, count);
  return simplify(count);
}

// sum over j of (condition(j) ? v : 0), v free of j, is v times the count.
UOp count_condition(const UOp& r, bool strict) {
  if (r.as<ReduceArg>().op != Op::Add) return {};
  const UOp& w = r.src(0);
  UOp condition = w.src(0), value = w.src(1);
  const bool zero_else = is_const(w.src(2), 0), zero_then = is_const(w.src(1), 0);
  if (!zero_else && !zero_then) return {};
  if (!zero_else) {
    condition = logical_not(condition);
    value = w.src(2);
  }
  for (size_t i = 1; i < r.src().size(); ++i) {
    const UOp& range = r.src(i);
    if (depends_on(value, range)) continue;
    const bool exact = repeats_exactly(value, r);
    if (strict && !exact) continue;
    if (const UOp count = count_where(condition, range))
      if (exact || repeats_nearly(value, count))
        return without_range(r, copies_of(value, count), i);
  }
  return {};
}

// cast(c ? x : 0) is c ? cast(x) : 0, so that narrow dtypes that are summed in wide ones match.
UOp cast_both_sides(const Match& m) {
  const UOp &r = m.root(), &cast_of = r.src(0), &choice = cast_of.src(0);
  if (!choice.src(1).is(Op::Const) && !choice.src(2).is(Op::Const)) return {};
  return with_source(r, 0,
                     where(choice.src(0), cast(choice.src(1), cast_of.dtype()),
                           cast(choice.src(2), cast_of.dtype())));
}

// Replaces a range by an index that may be out of its bounds: loads below get the gate.
UOp select(const UOp& value, const UOp& range, const UOp& at, const UOp& valid) {
  return transform_graph(value, [&](const UOp& original, const UOp& rebuilt) -> UOp {
    if (original == range) return at;
    if (original.is(Op::Load) && !(original == rebuilt)) {
      const UOp gate = rebuilt.src().size() == 3 ? bit_and(rebuilt.src(2), valid) : valid;
      const UOp alt = rebuilt.src().size() == 3 ? rebuilt.src(1) : constant_int(rebuilt.dtype(), 0);
      return load(rebuilt.src(0), alt, gate);
    }
    return rebuilt;
  });
}

// Sums `value` where `condition` holds over the window of a range alone; null where it has none.
UOp sum_over_window(const UOp& r, size_t i, const UOp& condition, const UOp& value, bool strict) {
  const UOp& range = r.src(i);
  const std::optional<Window> window = window_of(condition, range);
  if (!window) return {};
  const bool single = window->count == 1;
  // The range is gone then: its number is free.
  const UOp shorter = single ? UOp()
                             : koine::range(range.as<RangeArg>().id, index_const(window->count),
                                            range.as<RangeArg>().type);
  const UOp at = single ? window->last
                        : simplify(add(sub(window->last, index_const(window->count - 1)), shorter));
  const UOp in_range = bit_and(logical_not(lt(at, index_const(0))), lt(at, range.src(0)));
  const UOp valid = simplify(bit_and(in_range, select(window->rest, range, at, in_range)));
  // What a fold or a row makes true stands for itself: in the loops of that fold it would be
  // without a value, and the row would wait for it.
  constexpr OpMask in_loops = mask_of(Op::Reduce) | mask_of(Op::After);
  const bool apart = (valid.node()->ops_below & in_loops) != 0;
  UOp there = select(value, range, at, apart ? in_range : valid);
  // The sum starts from 0, and 0 + -0 is 0; by default a selected -0 stays what it is.
  if (single && strict && is_float(there.dtype()))
    there = add(there, fold_start(Op::Add, there.dtype(), r.src().subspan(1)));
  const UOp body = where(valid, there, constant_int(there.dtype(), 0));
  if (single) return without_range(r, body, i);
  return with_source(with_source(r, 0, body), i, shorter);
}

// sum over j of (j == e ? x(j) : 0)  ->  0 <= e < n ? x(e) : 0, and a sum over j with
// e - c < s j <= e goes over the few j that there can be.
UOp select_window(const UOp& r, bool strict) {
  if (r.as<ReduceArg>().op != Op::Add) return {};
  const UOp& body = r.src(0);
  for (size_t i = 1; i < r.src().size(); ++i)
    for (const size_t hit : {size_t{1}, size_t{2}}) {
      if (!is_const(body.src(3 - hit), 0)) continue;
      const UOp condition = hit == 1 ? body.src(0) : logical_not(body.src(0));
      if (const UOp out = sum_over_window(r, i, condition, body.src(hit), strict)) return out;
    }
  return {};
}

// sum over i of (c(i) ? sum over j of x(i, j) : 0)  ->  sum over i, j of (c(i) ? x(i, j) : 0): one
// loop nest, with one register tile.
UOp join_sums(const UOp& r, bool strict) {
  if (r.as<ReduceArg>().op != Op::Add || (strict && is_float(r.dtype()))) return {};
  const bool picked = r.src(0).is(Op::Where);
  if (picked && !is_const(r.src(0).src(2), 0)) return {};
  const UOp inner = picked ? r.src(0).src(1) : r.src(0);
  if (!inner.is(Op::Reduce) || inner.as<ReduceArg>().op != Op::Add || start_of(inner)) return {};
  const std::span<const UOp> summed = inner.src().subspan(1);
  // A condition on a fold over the same loops would stand inside of them.
  if (picked)
    for (const UOp& u : toposort(r.src(0).src(0)))
      if (std::find(summed.begin(), summed.end(), u) != summed.end()) return {};
  std::vector<UOp> ranges(r.src().begin() + 1, r.src().end());
  ranges.insert(ranges.end(), summed.begin(), summed.end());
  const UOp body = picked ? where(r.src(0).src(0), inner.src(0), r.src(0).src(2)) : inner.src(0);
  return reduce_ranges(Op::Add, body, ranges);
}

// A fold that starts from a value is none over the values of its loops alone.
auto unless_started(UOp (*change)(const UOp&, bool), bool strict) {
  return [=](const Match& m) { return start_of(m.root()) ? UOp() : change(m.root(), strict); };
}

RuleSet<> make_reduce(bool strict) {
  return {
      rule("reduce-unused-range", node(Op::Reduce), unless_started(drop_unused_range, strict)),
      rule("reduce-cast", node_with(Op::Reduce, {pat_cast(node(Op::Where))}), cast_both_sides),
      rule("reduce-count", node_with(Op::Reduce, {node(Op::Where)}),
           unless_started(count_condition, strict)),
      rule("reduce-window", node_with(Op::Reduce, {node(Op::Where)}),
           unless_started(select_window, strict)),
      rule("reduce-of-sums", node_with(Op::Reduce, {node(ops({Op::Where, Op::Reduce}))}),
           unless_started(join_sums, strict)),
  };
}

}  // namespace

const RuleSet<>& reduce_rules(bool strict) {
  static const auto& rules = *new const RuleSet<>(make_reduce(false));
  static const auto& strict_rules = *new const RuleSet<>(make_reduce(true));
  return strict ? strict_rules : rules;
}

const RuleSet<>& symbolic_rules() {
  static const auto& rules =
      *new const RuleSet<>((fold_rules() + algebra_rules() + index_rules()).remembered());
  return rules;
}

const RuleSet<>& kernel_rules(bool strict) {
  auto with = [](const RuleSet<>& reduce) { return (symbolic_rules() + reduce).remembered(); };
  static const auto& rules = *new const RuleSet<>(with(make_reduce(false)));
  static const auto& strict_rules = *new const RuleSet<>(with(make_reduce(true)));
  return strict ? strict_rules : rules;
}

UOp simplify(const UOp& graph) { return rewrite(graph, symbolic_rules()); }

}  // namespace koine

#include "koine/lower/split_reduce.hpp"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <optional>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/cost.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

bool reads_buffer(const UOp& u) {
  const auto order = toposort(u);
  return std::any_of(order.begin(), order.end(), [](const UOp& n) {
    return n.is(Op::Param) && n.as<BufferArg>().name.empty();
  });
}

// Whether the last axis that has a length is folded: results lie in rows, not beside each other.
bool folds_rows(const UOp& node) {
  const UOp& value = node.src(0);
  size_t last = value.rank();
  while (last > 0 && is_const(value.dim(last - 1), 1)) --last;
  const Ints& axes = node.as<ReduceArg>().axes;
  return std::find(axes.begin(), axes.end(), static_cast<int64_t>(last) - 1) != axes.end();
}

// Parts that a reduce is cut into; 1: none.
int64_t parts_of(const UOp& node, const CompileOptions& how) {
  const UOp& value = node.src(0);
  const double results = elements_of(node), each = elements_of(value) / results;
  if (how.multiprocessors == 0)
    return results <= most_results_to_split && each >= least_elements_to_split ? split_parts : 1;
  // Threads of a group fold one result, or neighbouring ones, where these lie along memory.
  const bool rows = folds_rows(node);
  const double groups = results / (rows ? 1 : results_of_a_group),
               wanted = static_cast<double>(how.multiprocessors * busy_groups);
  int64_t parts = 1;
  while (groups * static_cast<double>(2 * parts) <= wanted &&
         each * std::min(results, static_cast<double>(rows ? 1 : results_of_a_group)) >=
             static_cast<double>(2 * parts * least_elements_of_a_group))
    parts *= 2;
  return parts;
}

// The axis that is cut: one that has parts of equal size, or the first of which little is left over
// and parts are long runs of memory.
std::optional<size_t> axis_to_cut(const UOp& value, const Ints& axes, int64_t parts) {
  const auto divides = [&](const UOp& size) {
    return size.is(Op::Const) && const_int(size) % parts == 0;
  };
  std::optional<size_t> out;
  for (const int64_t axis : axes) {
    const auto at = static_cast<size_t>(axis);
    const UOp& size = value.dim(at);
    const double part = largest(size) / static_cast<double>(parts);
    double run = part;
    for (size_t i = at + 1; i < value.rank(); ++i) run *= largest(value.dim(i));
    if (part >= 2 && divides(size)) return at;
    if (!out && part >= least_elements_of_a_cut && run >= least_run_of_a_cut) out = at;
  }
  return out;
}

// Values that others read along more elements than they have, and what these are computed from.
absl::flat_hash_set<const Node*> read_along(const UOp& program) {
  absl::flat_hash_set<const Node*> out;
  const NodeList order = toposort(program);
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& u = order[i];
    if (!is_elementwise(u.op()) && (!is_movement(u.op()) || u.is(Op::Pad))) continue;
    for (const UOp& s : u.src())
      if (s.dtype() != DType::Index && (out.contains(u.node()) || elements_of(s) < elements_of(u)))
        out.insert(s.node());
  }
  return out;
}

// A long axis of n becomes (parts, n / parts), which are folded first; what is left over, fewer
// elements than there are parts, is folded with their results.
UOp split_one(const UOp& node, const CompileOptions& how) {
  const UOp& value = node.src(0);
  const Ints& axes = node.as<ReduceArg>().axes;
  if (elements_of(node) < 1) return node;
  const int64_t count = parts_of(node, how);
  if (count < 2 || !reads_buffer(value)) return node;
  const auto axis = axis_to_cut(value, axes, count);
  if (!axis) return node;
  const Op op = node.as<ReduceArg>().op;
  const UOp &size = value.dim(*axis), parts = index_const(count),
            each = simplify(idiv(size, parts)), whole = simplify(mul(each, parts)),
            rest = simplify(sub(size, whole));
  const UOp split = is_const(rest, 0) ? value : slice(value, *axis, index_const(0), whole);
  std::vector<UOp> sizes(value.shape().src().begin(), value.shape().src().end());
  sizes[*axis] = each;
  sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(*axis), parts);
  Ints inner;
  for (const int64_t a : axes) inner.push_back(a >= static_cast<int64_t>(*axis) ? a + 1 : a);
  const UOp partial = contiguous(reduce(op, reshape(split, stack(sizes)), inner));
  const UOp folded = reshape(reduce(op, partial, {static_cast<int64_t>(*axis)}), node.shape());
  if (is_const(rest, 0)) return folded;
  const UOp last = reduce(op, slice(value, *axis, whole, rest), axes);
  const UOp both = UOp::make(op, {folded, last});
  // A sum of one element is that element, -0 too; where there are parts it starts from 0.
  return size.is(Op::Const) ? both : where(lt(size, parts), last, both);
}

}  // namespace

UOp split_large_reduces(const UOp& program, const CompileOptions& how) {
  if (how.strict || how.noopt) return program;
  // Rows that are enough for all threads stay whole where they are read again: one kernel does all.
  std::optional<absl::flat_hash_set<const Node*>> again;
  return transform_graph(program, [&](const UOp& original, const UOp& node) {
    if (!node.is(Op::Reduce)) return node;
    const UOp split = split_one(node, how);
    const bool enough = how.multiprocessors == 0 && elements_of(node) >= enough_parts;
    if (split == node || !enough || !folds_rows(node)) return split;
    if (!again) again = read_along(program);
    return again->contains(original.node()) ? node : split;
  });
}

}  // namespace koine

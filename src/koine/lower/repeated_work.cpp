#include "koine/lower/repeated_work.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/lower/cost.hpp"

namespace koine {
namespace {

double cost_without(const ValueFacts& facts, const UOp& u, const UOp& without) {
  const double elements = elements_of(u);
  return element_cost(u, [&](const UOp& n) {
    return n == without || n.is(Op::Reduce) || !facts.reads_memory(n) ||
           elements_of(n) < elements || facts.in_memory(n);
  });
}

// Whether the sum that reads a sum goes over its elements too, each about once: one loop nest,
// with one register tile, and no memory in between.
bool is_summed_on(const ValueFacts& facts, const UOp& u, const Use& use) {
  const bool exact = facts.strict() && is_float(u.dtype());
  return use.in_window && u.as<ReduceArg>().op == Op::Add && !exact &&
         times_computed(use) <= sum_continued * elements_of(u);
}

// What a sum may go on with in the same loops: the sum that it reads.
UOp continued_sum(const ValueFacts& facts, const UOp& u) {
  const bool exact = facts.strict() && is_float(u.dtype());
  if (!u.is(Op::Reduce) || u.as<ReduceArg>().op != Op::Add || exact) return {};
  UOp body = u.src(0);
  while (body.is(Op::Cast) || (is_movement(body.op()) && !body.is(Op::Stack)))
    body = UOp(body.src(0));
  return body;
}

// Whether most of what a value costs lies in one below that others read too: that one gets
// memory, and the rest is computed again.
bool is_dear_below(const ValueFacts& facts, const UOp& u, double surplus) {
  auto is_dear = [&](double cost) { return cost * surplus > cost_of_memory; };
  auto holds_most = [&](const UOp& s) {
    return is_elementwise(s.op()) && facts.reads_memory(s) && !facts.in_memory(s) &&
           !is_dear(cost_without(facts, u, s)) && is_dear(cost_between_folds(facts, s));
  };
  UOp node = u;
  for (int depth = 0; depth < 64; ++depth) {
    const auto dear = std::find_if(node.src().begin(), node.src().end(), holds_most);
    if (dear == node.src().end()) return false;
    if (facts.consumers(*dear) > 1) return true;
    node = UOp(*dear);
  }
  return false;
}

// The loops that what lies below the movement of a value depends on; folded axes stand at 0.
Dependence source_loops(UOp node, Use use) {
  use.at = aligned(node, use.at);
  while (is_movement(node.op()) && !node.is(Op::Stack) && !node.is(Op::Bitcast) &&
         !node.is(Op::Index)) {
    use = moved_to_source(node, use);
    node = UOp(node.src(0));
  }
  use.guard = {};
  return Dependence(use);
}

}  // namespace

double cost_between_folds(const ValueFacts& facts, const UOp& u) {
  return cost_without(facts, u, {});
}

std::string_view repeated(const ValueFacts& facts, const UOp& u, const Use& use) {
  const Dependence place(use);
  const size_t around = loops_around(use).size();
  double iterations = 1, distinct = 1, repeats = 1;
  bool in_reduce = false;
  for (size_t i = 0; i < use.loops.size(); ++i) {
    const double size = largest(use.loops[i].src(0));
    iterations *= size;
    if (place.on(use.loops[i])) {
      distinct *= size;
      in_reduce = in_reduce || use.loops[i].as<RangeArg>().type == AxisType::Reduce;
    } else if (i < around) {
      repeats *= size;
    }
  }
  if (u.is(Op::Reduce) && in_reduce && iterations * reduced_size(u) > most_nested_steps &&
      !is_summed_on(facts, u, use))
    return "a reduce of reduces";
  if (distinct == iterations) return {};
  const double cost = element_cost(u, [&](const UOp& n) { return facts.in_memory(n); });
  if (repeats > 1 && cost * distinct * (repeats - 1) > operations_unnoticed * iterations)
    return "read under a loop it does not depend on";
  // Nothing is repeated (the loops it lacks are inside): but a reduce for few rows would leave
  // one thread with all of its work.
  if (cost < cost_of_memory || distinct >= enough_parts) return {};
  // A long reduce below it is a kernel before, as it will say of itself when it is decided.
  const UOp continued = continued_sum(facts, u);
  const double own = element_cost(u, [&](const UOp& n) {
    return facts.in_memory(n) || (n.is(Op::Reduce) && !(n == u) && !(n == continued) &&
                                  elements_of(n) * reduced_size(n) > most_nested_steps);
  });
  if (own * distinct > most_operations_of_a_part) return "a long reduce for few results";
  return {};
}

bool is_computed_too_often(const ValueFacts& facts, const UOp& u, const std::vector<Use>& uses) {
  const double elements = part_read(u, uses).elements;
  double surplus = -elements;
  for (const Use& use : uses) {  // windows have each of their elements once, in phases
    const double times = times_computed(use);
    surplus += use.in_window && !u.is(Op::Reduce) ? std::min(times, elements) : times;
  }
  if (surplus <= 0) return false;
  surplus /= std::max(1.0, elements);
  const double cost = surplus * cost_between_folds(facts, u);
  // A fold beside a condition, or among others, loses its register tile as well.
  if (u.is(Op::Reduce))
    return surplus > fold_repeated && cost > cost_of_load && !is_summed_on(facts, u, uses[0]);
  return cost > cost_of_memory && !is_dear_below(facts, u, surplus);
}

bool is_computed_too_often_below(const ValueFacts& facts, const UOp& u,
                                 const std::vector<Use>& uses) {
  constexpr size_t most_looked_at = 64;
  std::vector<UOp> pending{u};
  for (size_t i = 0; i < pending.size() && i < most_looked_at; ++i) {
    const UOp node = pending[i];
    if (node.is(Op::Reduce) && !(node == u) && is_computed_too_often(facts, node, uses))
      return true;
    if (!is_elementwise(node.op())) continue;
    for (const UOp& s : node.src())
      if (facts.consumers(s) == 1 && facts.folds(s) && !facts.in_memory(s) &&
          s.shape() == u.shape() && item_size(s.dtype()) >= item_size(u.dtype()))
        pending.push_back(s);
  }
  return false;
}

bool is_read_more_often_than_held(const UOp& u, const Use& use, const std::vector<Use>& uses) {
  return times_computed(use) > part_read(u, uses).elements &&
         element_cost(u, nullptr) >= cost_of_load;
}

bool is_large_product(const UOp& u, const Use& use) {
  if (!u.is(Op::Reduce) || u.as<ReduceArg>().op != Op::Add || !is_float(u.dtype())) return false;
  UOp body = u.src(0);
  while (body.is(Op::Cast)) body = UOp(body.src(0));
  const double work = reduced_size(u) * times_computed(use);
  if (!body.is(Op::Mul) || work < least_tiled_products) return false;
  Use place = use;
  place.guard = {};
  const Dependence left = source_loops(body.src(0), place),
                   right = source_loops(body.src(1), place);
  bool own[2] = {false, false};
  for (const UOp& loop : use.loops) {
    own[0] = own[0] || (left.on(loop) && !right.on(loop));
    own[1] = own[1] || (right.on(loop) && !left.on(loop));
  }
  return own[0] && own[1];
}

}  // namespace koine

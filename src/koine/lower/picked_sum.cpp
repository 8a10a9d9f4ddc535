#include "koine/lower/picked_sum.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/index.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/rules/window.hpp"

namespace koine {
namespace {

// A loop of a sum runs over a window alone; gives what is left of the condition.
UOp run_over(const Window& window, size_t i, Use& body, int64_t& next_range, bool strict) {
  const UOp whole = body.loops[i];
  UOp at = window.last;
  if (window.count == 1) {
    body.loops.erase(body.loops.begin() + static_cast<std::ptrdiff_t>(i));
  } else {
    body.loops[i] = range(next_range++, index_const(window.count), AxisType::Reduce);
    at = simplify(add(sub(at, index_const(window.count - 1)), body.loops[i]));
  }
  const UOp rest = rewrite(substitute(window.rest, {{whole, at}}), kernel_rules(strict));
  UOp inside;  // where data picks nothing, nothing is read
  if (reads_data(at)) keep_within(at, whole.src(0), inside);
  for (UOp& index : body.at) index = simplify(substitute(index, {{whole, at}}));
  return rest;
}

// Whether the elements of a sum say at which place along a loop around it they belong.
bool is_stored_where_picked(const UOp& condition, const UOp& loop, const std::vector<UOp>& loops,
                            size_t outer) {
  UOp at;
  for (const UOp& part : conjuncts(condition)) {
    if (const UOp place = at ? UOp() : equal_to(part, loop))
      at = place;
    else if (depends_on(part, loop))
      return false;
  }
  return at && std::any_of(loops.begin() + static_cast<std::ptrdiff_t>(outer), loops.end(),
                           [&](const UOp& inner) { return depends_on(at, inner); });
}

}  // namespace

void sum_where_picked(const ValueFacts& facts, const UOp& summed, size_t outer, Use& body,
                      int64_t& next_range) {
  UOp value = summed;
  while (value.is(Op::Cast)) value = UOp(value.src(0));
  if (!facts.is_chosen_by_place(value)) return;
  const UOp& test = value.src(0);
  const bool hit = is_const(value.src(2), 0);
  Leaves leaves([&](const UOp& n) {
    return facts.reads_memory(n) && !is_elementwise(n.op()) && !is_movement(n.op());
  });
  Indexer indexer(leaves, facts.strict(), next_range);
  UOp condition = indexer.element(test, aligned(test, body.at));
  condition = rewrite(hit ? condition : logical_not(condition), kernel_rules(facts.strict()));
  for (size_t i = outer; i < body.loops.size();) {
    const std::optional<Window> window = window_of(condition, body.loops[i]);
    if (window) condition = run_over(*window, i, body, next_range, facts.strict());
    body.in_window = body.in_window || window;
    i = window ? outer : i + 1;
  }
  for (size_t i = 0; i < outer; ++i)
    if (is_stored_where_picked(condition, body.loops[i], body.loops, outer)) {
      body.loops.erase(body.loops.begin() + static_cast<std::ptrdiff_t>(i));
      std::rotate(body.loops.begin(), body.loops.begin() + static_cast<std::ptrdiff_t>(outer - 1),
                  body.loops.end());
      return;
    }
}

}  // namespace koine

#pragma once
#include "koine/lower/use.hpp"
#include "koine/lower/value_facts.hpp"

namespace koine {

/// What a condition on positions picks is summed there alone: in few steps of a loop
/// (`reduce_rules`), or where it is stored (`find_scatter`). Changes the place at which a sum reads
/// `value`, and its loops, to those where it is not 0. `outer`: loops around the sum, which
/// `body.loops` begins with.
void sum_where_picked(const ValueFacts& facts, const UOp& value, size_t outer, Use& body,
                      int64_t& next_range);

}  // namespace koine

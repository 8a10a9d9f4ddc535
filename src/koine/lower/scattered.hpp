#pragma once
#include "koine/lower/use.hpp"
#include "koine/lower/value_facts.hpp"

namespace koine {

/// Whether a Reduce that is read at a place is a fold by index there (`lower/scatter`): over n
/// elements, each of which says to which of k results it belongs. Where it is all that a kernel
/// stores it costs n + k, else n for each of the k. Ranges are numbered from `first_range` on.
bool is_scattered(const ValueFacts& facts, const UOp& reduce, const Use& use, int64_t first_range);

}  // namespace koine

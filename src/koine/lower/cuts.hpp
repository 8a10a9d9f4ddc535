#pragma once
#include <absl/container/flat_hash_set.h>

#include "koine/lower/value_facts.hpp"

namespace koine {

/// Where values that are too large for one kernel are cut: of each that holds more than
/// `most_fused_operations` between folds and memory, the part that holds most of it, so that a sum
/// of many terms goes on from one kernel to the next in one buffer. The order of operands changes
/// nothing.
absl::flat_hash_set<const Node*> cuts_of(const ValueFacts& facts);

}  // namespace koine

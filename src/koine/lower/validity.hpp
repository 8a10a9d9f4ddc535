#pragma once
#include <absl/container/flat_hash_set.h>

#include "koine/ir/node_map.hpp"
#include "koine/ir/uop.hpp"

// Which elements are invalid: the surroundings of a Pad without fill and what is computed from
// them (amendment C27). Reduces skip them, and memory, which has no validity bit, resolves them.
namespace koine {

/// The nodes of a topological order of which some elements may be invalid.
absl::flat_hash_set<const Node*> find_partly_invalid(const NodeList& order);
bool may_be_invalid(const UOp& value);

/// A bool for each element of `value`: whether it is invalid; null where none is.
UOp invalid_elements(const UOp& value);

}  // namespace koine

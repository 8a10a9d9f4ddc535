#pragma once
#include "koine/ir/uop.hpp"

// Which elements are invalid (`ir/validity.hpp` says which nodes have any), as a graph.
namespace koine {

/// A bool for each element of `value`: whether it is invalid; null where none is.
UOp invalid_elements(const UOp& value);

}  // namespace koine

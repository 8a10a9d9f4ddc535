#pragma once
#include <cstdint>

#include "koine/ir/uop.hpp"

namespace koine {

/// Loads of neighbouring elements, and Stores of one Group, become one access of several lanes
/// each: as many as `bytes` hold, or half as many and so on, at places that are multiples of them.
/// Behind the Devectorizer, when all that is left apart is scalar. For languages that ask for wide
/// accesses by name.
UOp in_wide_accesses(const UOp& ast, int64_t bytes);

}  // namespace koine

#pragma once
#include <vector>

#include "koine/engine/engine.hpp"

namespace koine {

/// The values of the Variables that a request depends on: those given and those they are bound to.
/// Throws Error (Key) naming one without a value, and Error (Value) naming one with two values, two
/// ranges, a value outside of its range, or a name of the library's.
VariableValues values_of_variables(const std::vector<UOp>& request, const VariableValues& given);

}  // namespace koine

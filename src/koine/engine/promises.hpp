#pragma once
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// Computes what these values promise about user positions (Assume) and throws an Index error that
/// names the first position out of range; nothing else has run by then (amendment C28). A promise
/// about memory or Variables is looked at each time, since these change.
void check_promises(const std::vector<UOp>& values, const VariableValues& variables);

}  // namespace koine

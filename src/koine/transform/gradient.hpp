#pragma once
#include <span>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// Cotangents of `targets` (any nodes below the outputs) for cotangents of the outputs; null where
/// an output does not depend on a target. Each op's rule is a cell of a table (table.hpp); what
/// that refuses is an Error (Type) that names the op and the reason. Corners as amendment C40: ties
/// in Max split evenly.
std::vector<UOp> gradient(std::span<const UOp> outputs, std::span<const UOp> cotangents,
                          std::span<const UOp> targets);

}  // namespace koine

#pragma once
#include <functional>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// Computes values into memory of their own; nothing that the user sees is written.
using ComputeApart = std::function<std::vector<UOp>(const std::vector<UOp>&)>;

/// `KOINE_NAN=1`: throws Error (Value) where one of these values is not finite. It names the op
/// that makes NaN first, or infinity if that comes before, the element, what it was made of, and
/// the line that made the op, forward or backward. A value is made where it is less finite than all
/// that it is computed from: an infinity that the user has put there (a mask) is none. Functions
/// are looked into; a loop is one op.
void require_finite(const std::vector<UOp>& values, const ComputeApart& compute);

}  // namespace koine

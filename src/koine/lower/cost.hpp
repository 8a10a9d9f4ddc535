#pragma once
#include <functional>

#include "koine/ir/uop.hpp"

namespace koine {

/// Operations on values that one kernel may hold: passes and LLVM take their time for what is
/// compiled together.
constexpr size_t most_fused_operations = 400;

/// The largest value of a size.
double largest(const UOp& size);
/// How many elements are folded into one.
double reduced_size(const UOp& reduce);

/// Scalar operations to compute one element, following sources until `stop`; saturates.
double element_cost(const UOp& node, const std::function<bool(const UOp&)>& stop);

}  // namespace koine

#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Kernels that differ in where their slices begin and in the floats that they compute with alone
/// become one: what is added to the places in a slot, and the bits of a number, are Variables of
/// the kernel, whose values each Call binds. So equal work is compiled once: the parts of a join,
/// the rows of a tensor that a loop goes over, the terms of a series.
UOp with_differences_as_arguments(const UOp& schedule);

}  // namespace koine

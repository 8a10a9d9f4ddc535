#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Kernels that differ in where their slices begin alone become one: what is added to the places in
/// a slot is a Variable of the kernel, whose value each Call binds. So equal work is compiled once:
/// the parts of a join, the rows of a tensor that a loop goes over.
UOp with_offsets_as_arguments(const UOp& schedule);

}  // namespace koine

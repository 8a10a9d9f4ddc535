#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Whether a Wmma is of whole vectors, as Select leaves it.
bool is_flat(const UOp& wmma);

/// A Wmma of one thread as what it means: accumulator + A * B, folded in ascending order over the
/// axes that the accumulator lacks.
UOp as_sum(const UOp& wmma);

/// A kernel with those Wmmas as sums that have no instruction.
UOp without_software_cores(const UOp& kernel);

}  // namespace koine

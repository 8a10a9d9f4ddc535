#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// The bound on work that deciding fusion promises (amendment C38), asserted: throws a VerifyError
/// that names the operation computed most often where the kernels of `schedule` (before they are
/// merged) compute more than the values of the program with memory (`bufferize`) once each.
///
/// Folds: 1.25 times those of the values (what stands at the edges), as many for each element
/// stored as its way through memory costs (`cost_of_memory`), and for each Reduce those that are as
/// cheap in place (`most_nested_steps`). All operations: 1.25 times those of the values, and for
/// each element of a value, of a buffer or read at a place that is a value `cost_of_memory` again,
/// and what it takes to compute the constants of the program, which are no memory anywhere.
///
/// Kernels made by hand are not counted.
void check_work(const UOp& bufferized, const UOp& schedule);

}  // namespace koine

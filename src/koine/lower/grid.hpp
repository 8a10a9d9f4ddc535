#pragma once
#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// The THREAD ranges of a kernel become parts of the Special "thread": their loops are run by a
/// worker team.
UOp threads_to_special(const UOp& ast);

/// The WARP ranges of a kernel become parts of the Special lidx0, so that those of a tensor core
/// are neighbours: behind Expand, which needs to know them apart.
UOp warps_to_special(const UOp& ast);

/// On a machine with groups of threads: GLOBAL ranges become parts of the Specials gidx0 to 2,
/// LOCAL and GROUP_REDUCE ranges of lidx0 to 2, the innermost axis in number 0; more than three
/// share it; lidx0 belongs to WARP ranges where there are some. A Reduce over GROUP_REDUCE ranges
/// becomes one of each thread's part, a Store of that to LOCAL memory, a Barrier, and a Reduce of
/// what all have stored, the same in each thread; the first of them stores the result.
UOp to_grid(const UOp& ast, const Groups& groups);

}  // namespace koine

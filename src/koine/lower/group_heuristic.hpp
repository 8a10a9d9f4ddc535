#pragma once
#include "koine/lower/kernel_plan.hpp"

namespace koine {

/// The edits that suit a machine with groups of threads: loops become the grid, the threads of a
/// group lie along memory and, in a product, over a tile of it; a long reduce to few results is
/// folded by the threads of a group together.
void choose_group_opts(Plan& plan, const Accesses& accesses);
/// Those of a kernel that keeps its order, but for the turns of its GLOBAL loops, which are the
/// grid: threads along the innermost one that has some.
void choose_threads_in_order(Plan& plan);

}  // namespace koine

#pragma once
#include "koine/lower/kernel_plan.hpp"

namespace koine {

/// The edits that suit a machine with groups of threads: loops become the grid, the threads of a
/// group lie along memory and, in a product, over a tile of it; a long reduce to few results is
/// folded by the threads of a group together.
void choose_group_opts(Plan& plan, const Accesses& accesses);

}  // namespace koine

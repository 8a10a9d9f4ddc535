#pragma once
#include <span>

#include "koine/lower/nest.hpp"

namespace koine {

/// What several loops of a kernel compute alike, element by element of a row, is computed once:
/// into LOCAL memory, which they read. `loops`: those of its nest, of which the outer ones stand
/// around rows. For kernels that were merged: what one kernel computes in several loops, `decide`
/// has seen.
UOp share_rows(const UOp& kernel, std::span<const UOp> loops);

}  // namespace koine

#pragma once
#include <cstdint>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// The factors of a sum that lie in memory and that the threads of a group take from LOCAL memory
/// (`OptOp::Stage`): of a Reduce, its Loads along the innermost of its loops and what is unrolled
/// inside. Empty: none can be.
std::vector<UOp> staged_loads(const UOp& reduce);

/// Bytes of LOCAL memory that a staged Reduce takes.
int64_t staged_bytes(const UOp& reduce);

/// On a machine with groups of threads, behind `to_grid`: at each step of the loops around the
/// innermost one of a Reduce that is marked `staged`, the threads of a group together fill a tile
/// of LOCAL memory with all that they are about to read of each factor, neighbours in memory
/// together, wait, and read that instead. Values and the order of the sum stay as they are.
UOp stage_operands(const UOp& ast, const Target& target);

}  // namespace koine

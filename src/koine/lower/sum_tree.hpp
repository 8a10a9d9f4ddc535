#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Float sums as trees (default mode). A Reduce that adds more than a block of elements into one
/// accumulator becomes a Reduce of Reduces, each over at most a block: with lanes and UNROLL axes
/// folded in pairs, n elements are added within 4 log2(n) roundings of each. Blocks follow from the
/// kernel's shape alone (amendment C32). A matrix product in a register tile, whose accumulators
/// fill the registers, takes longer blocks.
UOp sum_in_blocks(const UOp& ast);

/// Sums and products of floats narrower than 32 bits fold in float32 and round once (default mode).
UOp fold_in_float32(const UOp& ast);

}  // namespace koine

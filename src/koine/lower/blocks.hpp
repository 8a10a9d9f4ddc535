#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// For machines whose threads branch apart: Stores of a linear program whose gate is one for all
/// their lanes stand in a block, from an If to its Endif, and have no gate any more. Those of one
/// gate share a block where nothing between them reads memory or orders it.
UOp in_blocks(const UOp& linear);

}  // namespace koine

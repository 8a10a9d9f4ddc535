#pragma once
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// Whether so much is made of folds before it is stored that this is worth a loop of its own.
bool makes_much_of_folds(const UOp& stored);

/// Of a kernel with a register tile, one fold and one Store: the results of a tile go to LOCAL
/// memory, and what is made of them is computed from there in a loop over it, with the lanes along
/// the output. Else the code for one element would stand there once for each of the tile, with all
/// registers in use, and without lanes where those of the tile run along the fold. Where little is
/// made of a result the kernel stays as it is.
UOp epilogue_in_loop(const UOp& ast);

}  // namespace koine

#pragma once
#include "koine/ir/uop.hpp"
#include "koine/lower/schedule.hpp"

namespace koine {

/// The first part of stage 2: the program over values alone, with what is decided written into it
/// (`make_validity_explicit`, `decide`).
UOp decided_program(const UOp& values);

/// Stage 2. Splits a stateless program into a host program (`lower/schedule`): one Linear of Calls
/// in execution order. Elementwise chains, movement, and reduces with their prologue and epilogue
/// fuse; a value gets a buffer of its own where fusing would repeat work (amendment C38): it is
/// read by several kernels, or under a loop that it does not depend on. A reduce over rows whose
/// result is used along the same rows stays in one kernel. Temporaries are Buffers with slots
/// counted from 0.
UOp rangeify(const UOp& values);

}  // namespace koine

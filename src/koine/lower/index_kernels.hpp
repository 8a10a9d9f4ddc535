#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 2, third pass: a program with memory (`bufferize`) as a host program (`lower/schedule`).
/// The Stores of one dependency on one device are a kernel: indices are pushed from each Store down
/// to the memory that its value is read from (`lower/index`). Copies between devices and Calls are
/// launches too. What nobody reads gets no kernel. Launches stand in an order in which each state
/// of memory is read before it is overwritten; where none exists, old states are read from copies.
UOp index_kernels(const UOp& program, bool strict);

}  // namespace koine

#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 2, third pass: a program with memory (`bufferize`) as a host program (`lower/schedule`).
/// The Stores of one dependency on one device are a kernel, which computes all that lies between
/// them and memory (`lower/index`); copies between devices and Calls are launches too. What nobody
/// reads gets no kernel. Launches stand in an order in which each state of memory is read before it
/// is overwritten; where none exists, old states are read from copies.
UOp split(const UOp& program, bool strict);

}  // namespace koine

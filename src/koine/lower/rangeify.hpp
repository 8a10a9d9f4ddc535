#pragma once
#include <string>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// One kernel: a Sink of End(Store(Index(Param, i), value), ranges...) in which every value has
/// shape (), and the Params and Buffers of the program that its own Param slots stand for.
struct Kernel {
  UOp ast;
  std::vector<UOp> buffers;
  std::string reason;  ///< why this is a kernel of its own
  bool apart = false;  ///< contiguous() asked for it: it is not merged
  /// Positions in the schedule of the kernels that must run before; every order that keeps to that
  /// gives the same values.
  std::vector<size_t> needs;
};

/// Tag of an End whose iterations may store to one place: the last of them stays.
constexpr int64_t runs_in_order = 1;

/// The first part of stage 2: the program over values alone, with what is decided written into it
/// (`make_validity_explicit`, `decide`).
UOp decided_program(const UOp& values);

/// Stage 2. Splits a stateless program into kernels in execution order. Elementwise chains,
/// movement, and reduces with their prologue and epilogue fuse; a value gets a buffer of its own
/// where fusing would repeat work (amendment C38): it is read by several kernels, or under a loop
/// that it does not depend on. A reduce over rows whose result is used along the same rows stays in
/// one kernel. Intermediate buffers are Buffer nodes with slots counted from 0.
std::vector<Kernel> rangeify(const UOp& values);

/// The same kernels as one node: Linear(Call(ast, buffers...)...).
UOp schedule_node(const std::vector<Kernel>& kernels);

}  // namespace koine

#pragma once
#include <vector>

#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// A stateless program: a Sink of Stores whose only leaves are Params, Consts and Variables, and
/// the Buffers that its Params stand for. Equal programs on other buffers are the same node.
struct Callified {
  UOp body;
  std::vector<UOp> arguments;  ///< argument k is bound to Param slot k
};

/// Stage 1. Turns values to compute into one stateless function: output k is stored to
/// `destinations[k]` (a Buffer of the same shape and dtype), or, where that is null, the value is
/// an After whose effects are wanted. Functions are inlined; all state becomes arguments (row L1).
Callified callify(const std::vector<UOp>& values, const std::vector<UOp>& destinations,
                  const CompileOptions& how = compile_options());

}  // namespace koine

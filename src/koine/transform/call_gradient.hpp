#pragma once
#include <functional>
#include <string>
#include <vector>

#include "koine/ir/uop.hpp"

// Gradients of Calls: their bodies are opaque, so whoever makes one says its gradient (row B13).
namespace koine {

/// What a gradient rule of a Call is given.
struct CallCotangents {
  std::vector<UOp> arguments;
  std::vector<UOp> results;
  std::vector<UOp> cotangents;  ///< of the results, in their shapes
};
/// Gives the cotangent of each argument, in its dtype and shape; null: none.
using CallGradientRule = std::function<std::vector<UOp>(const CallCotangents&)>;

/// The gradient of Calls of the kernels or of the function of a name, from now on. Throws Error
/// (Value) where the name is empty or there is no rule.
void register_call_gradient(const std::string& name, CallGradientRule rule);

/// The cotangents of a Call's arguments from those of its results (null: none). Throws Error (Type)
/// naming the Call where its name has no rule, and Error (Value) where the rule gives what does not
/// fit the arguments.
std::vector<UOp> call_vjp(const UOp& call, const std::vector<UOp>& cotangents);

}  // namespace koine

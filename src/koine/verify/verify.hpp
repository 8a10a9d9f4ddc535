#pragma once
#include <string_view>

#include "koine/ir/uop.hpp"

namespace koine {

/// What a graph is supposed to be.
enum class VerifyLevel : uint8_t {
  Tensor,  ///< a graph of values: no codegen ops
  Kernel,  ///< a Sink of Stores under Ends: Ranges closed, no tensor-level ops left
  Linear,  ///< a Linear: definitions before uses, loops nested, only ops a renderer knows
};

/// Throws InternalError naming the stage, the rule and the node as paste-able text.
void verify(const UOp& graph, VerifyLevel level, std::string_view stage);

}  // namespace koine

#pragma once
#include <functional>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// Calls `trace` with fresh Params shaped like `arguments` (amendment C33: values are never
/// substituted afterwards) and wraps the values it returns in Function(Tuple(body), arguments).
/// Equal arguments share one Param (row F1). Buffers that the body captures are lifted into further
/// arguments, so bodies are closed.
UOp make_function(const std::function<std::vector<UOp>(const std::vector<UOp>&)>& trace,
                  const std::vector<UOp>& arguments);

/// Replaces each GetTuple of a Function by its body with Params substituted (row F4). Substitution
/// is simultaneous and never enters a nested body.
UOp inline_functions(const UOp& graph);

}  // namespace koine

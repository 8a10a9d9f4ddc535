#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 6. A Linear: instructions in execution order. Each Range opens a loop that one End closes;
/// every value stands in the outermost loop it can (loop-invariant code leaves by construction).
/// The order depends on the graph alone, never on addresses or hash seeds.
UOp linearize(const UOp& ast);

}  // namespace koine

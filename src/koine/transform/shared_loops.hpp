#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// The graph where loops over the same arguments that carry the same are one, as those of a value
/// and of its derivatives are; and where loops neither carry nor collect nor take what nobody
/// reads.
UOp with_shared_loops(const UOp& graph);

}  // namespace koine

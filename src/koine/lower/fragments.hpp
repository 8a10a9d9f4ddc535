#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// For Expand: a Reduce on a tensor core becomes one of a Wmma over what loops are left. Its A and
/// B are the factors as the core's threads and registers hold them: the ranges of the accumulator
/// in them become what these count along in A and in B, and the elements along the sum ranges of
/// their own. The Wmma names the ranges of its elements by their ids.
UOp in_fragments(const UOp& ast);

}  // namespace koine

#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// A kernel whose sums take the remainder of its loops by a small number, as each pixel sums those
/// of strided windows that hold it: each remainder gets a Store of its own, in loops as many times
/// shorter. There the remainder is a number, and the sum goes over what there is alone. Other
/// kernels come back as they are, and so do those that would save little.
UOp in_phases(const UOp& ast, bool strict);

}  // namespace koine

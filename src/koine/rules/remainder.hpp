#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// a - b floor(a/b) of floats: the exact remainder (C's fmod), then with the sign of b as Python's
/// and NumPy's; a remainder of the other sign has b added, rounded once and kept below b. Any
/// dtype of floats. NaN for b = 0 and infinite a. Without float64 the same bits of narrower floats,
/// by more operations.
UOp float_remainder(const UOp& a, const UOp& b, bool has_float64 = true);

}  // namespace koine

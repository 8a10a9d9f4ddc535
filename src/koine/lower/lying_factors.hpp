#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 2, for CPUs: a factor that lies in memory along what its product sums over, as B in A.B^T
/// and the weights of a Linear layer, is copied to lie along columns, where the product has many
/// rows. Lanes that go along a sum have to be summed themselves, and each step of it loads both
/// factors.
UOp copy_lying_factors(const UOp& program);

}  // namespace koine

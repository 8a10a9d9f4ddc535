#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 2, in default mode: float products that are read at several places are rounded ones, which
/// no sum takes in unrounded (`rounded_product`). Each of the places computes the product again,
/// some in a sum and some not, and all must see the same value: `c == c.max()` has a hit.
UOp round_shared_products(const UOp& program);

}  // namespace koine

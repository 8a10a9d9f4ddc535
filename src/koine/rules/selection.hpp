#pragma once
#include "koine/rewrite/rules.hpp"

namespace koine {

/// What a sum of a product with a one-hot mask means (amendment C31): where the mask is a position
/// counted along an axis compared with an index, cast, `sum(mask * x)` is `sum(where(mask, x, 0))`,
/// so that an infinity that is not selected leaves no NaN. A Reduce of a tensor graph in, the
/// Reduce that is meant out; null for every other Reduce. Strict mode keeps the product.
UOp one_hot_selection(const UOp& reduce);

/// The same as a rule, for a graph that enters the compiler.
const RuleSet<>& selection_rules();

}  // namespace koine

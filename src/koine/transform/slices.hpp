#pragma once
#include "koine/rewrite/rules.hpp"

namespace koine {

/// A slice of a chain of choices by place, as a cat is one, loses the choices that all of its
/// places agree on: a slice of joined values looks at the parts that it meets alone, and a part of
/// their gradient at none but its own. Where it meets so many that these are put together in memory
/// (`has_many_parts` in lower/joins), it stays a slice of that.
const RuleSet<>& slice_rules();

}  // namespace koine

#pragma once
#include "koine/rewrite/rules.hpp"

// Rule sets that simplify without changing a value: IEEE holds for floats (no x*0, no x+0, no
// reassociation), integers wrap, `index` is unbounded.
namespace koine {

/// Operators on constants become constants.
const RuleSet<>& fold_rules();
/// Identities of Add, Mul, Max, Where, casts, comparisons and logic.
const RuleSet<>& algebra_rules();
/// Index arithmetic: normal form, floordiv and mod, comparisons.
const RuleSet<>& index_rules();
/// Drops what only a gradient needs: Detach, and the branches by which relu and abs say their
/// slope.
const RuleSet<>& forward_rules();
/// Movement ops on tensors: merging, and dropping those that do nothing.
const RuleSet<>& movement_rules();
/// Reduces over Ranges that have a closed form: sums of constants, counts, one-hot selections.
const RuleSet<>& reduce_rules(bool strict);

/// fold + algebra + index: what every stage runs.
const RuleSet<>& symbolic_rules();
/// symbolic + reduce: for kernels.
const RuleSet<>& kernel_rules(bool strict);

UOp simplify(const UOp& graph);

/// Whether a value times their number equals the sum of as many copies of it as a reduction takes,
/// in any order and to the bit.
bool repeats_exactly(const UOp& value, const UOp& reduction);

}  // namespace koine

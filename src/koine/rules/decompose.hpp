#pragma once
#include "koine/ir/uop.hpp"
#include "koine/rewrite/rules.hpp"
#include "koine/target/target.hpp"

// Ops in terms of simpler ones. Exp2, Log2, Sin, Pow and Threefry mean exactly these graphs on
// every backend: the interpreter evaluates them too, so all agree bit for bit in strict mode.
namespace koine {

/// The target that decides: an op that it lacks for its operands' dtype is replaced.
struct DecomposeContext {
  const Target& target;
  bool lacks(Op op, const UOp& operand) const { return !is_native(target, op, operand.dtype()); }
};

/// Exp2, Log2, Sin, Pow, Threefry as polynomials and integer arithmetic.
const RuleSet<DecomposeContext>& transcendental_rules();
/// Recip, Sqrt, Fdiv, Mulacc, Trunc by the spec's forms, for targets without them (amendment C3).
const RuleSet<DecomposeContext>& fallback_rules();

/// The decomposition of one op with this arg on operand nodes; null when the op has none.
UOp decompose(Op op, std::span<const UOp> operands, const Arg& arg = {});

}  // namespace koine

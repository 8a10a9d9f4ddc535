#pragma once
#include <vector>

#include "koine/ir/build.hpp"

// Derivatives and examples of loops and branches (`ir/loop`), which stay such (amendment C43).
namespace koine {

/// Cotangents of the arguments of a loop, one each; null: none. A scan runs backwards over its
/// steps: the scan that goes forward keeps for it the carries that each step found and the results
/// of folds and calls; elementwise values are computed again. Throws Error (Type) for a While,
/// whose number of steps no memory was planned for.
std::vector<UOp> loop_vjp(const UOp& call, const std::vector<UOp>& cotangents);

/// Tangents of the results from those of the arguments (null: 0): a loop that carries both.
std::vector<UOp> loop_tangents(const UOp& call, const std::vector<UOp>& tangents);

/// The results for all examples, where `carried` holds the arguments that differ (null: equal in
/// all of them). A While goes on as long as the condition of some example holds, and keeps the
/// carries of the others; a Switch whose number differs computes all branches and picks.
std::vector<UOp> loop_for_examples(const UOp& call, const std::vector<UOp>& carried,
                                   const UOp& examples);

}  // namespace koine

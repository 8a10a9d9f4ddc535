#pragma once
#include <string_view>
#include <vector>

#include "koine/lower/use.hpp"
#include "koine/lower/value_facts.hpp"

// What it costs to compute a value where it is read, and not once before (amendment C38).
namespace koine {

/// What an element costs, without what is decided by itself (folds), is the same for many elements,
/// or folds away.
double cost_between_folds(const ValueFacts& facts, const UOp& u);

/// Why computing a value at a place repeats work: loops it does not depend on stand around it.
/// Empty: it does not.
std::string_view repeated(const ValueFacts& facts, const UOp& u, const Use& use);

/// Whether the places of a kernel compute so much more than all elements once (those that overlap,
/// those where a condition wants it in part of the loops only) that memory is cheaper.
bool is_computed_too_often(const ValueFacts& facts, const UOp& u, const std::vector<Use>& uses);

/// Whether an elementwise value is made, element by element, of a fold that is computed too often
/// there: memory for the value costs no more than memory for the fold, and saves what lies between.
bool is_computed_too_often_below(const ValueFacts& facts, const UOp& u,
                                 const std::vector<Use>& uses);

bool is_read_more_often_than_held(const UOp& u, const Use& use, const std::vector<Use>& uses);

/// Whether a value at a place is a sum of products of two values, each with a loop that the other
/// lacks: it wants a register tile of its own.
bool is_large_product(const UOp& u, const Use& use);

}  // namespace koine

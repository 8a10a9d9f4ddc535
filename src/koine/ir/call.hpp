#pragma once
#include <map>
#include <span>

#include "koine/ir/graph.hpp"
#include "koine/ir/uop.hpp"

// What a Function's body says about its arguments.
namespace koine {

/// Params of a body (a Tuple) by slot; those of nested bodies and Variables are not among them.
std::map<int64_t, UOp> params_of(const UOp& body);

/// Sizes for the Variables in the shapes of a body's Params, as the arguments give them (row P2).
/// An argument whose dtype or shape does not fit its Param is an Error (Value) that names the slot.
Substitution variables_from(const UOp& body, std::span<const UOp> arguments);

/// `value` with Variables replaced; shapes are simplified, so that they are numbers again.
UOp with_variables(const UOp& value, const Substitution& variables);

}  // namespace koine

#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "koine/ir/graph.hpp"
#include "koine/ir/uop.hpp"

// What the bodies of Functions and Calls say about their arguments. In a graph of values a Call
// runs an opaque body on memory: `GetTuple(Call(body, arguments...), k)` is its k-th result. The
// body is a kernel, Sink["name"], or CustomFunction["name"], a function of the host. Its results
// are the Params of slots 0, 1, ..., which it stores into; the arguments have the slots behind
// these. Or it is a loop (`ir/loop`). A host program (`lower/schedule`) gives its Calls memory for
// all slots.
namespace koine {

/// Params of a body (a Tuple) by slot; those of nested bodies and Variables are not among them.
std::map<int64_t, UOp> params_of(const UOp& body);

/// Sizes for the Variables in the shapes of a body's Params, as the arguments give them (row P2).
/// An argument whose dtype or shape does not fit its Param is an Error (Value) that names the slot.
Substitution variables_from(const UOp& body, std::span<const UOp> arguments);

/// The Params of a Call's body that stand for its results, by slot: those that a kernel stores
/// into, or those that a CustomFunction lists. Throws Error (Value) where these are not slots 0, 1,
/// ...
std::vector<UOp> results_of(const UOp& body);
/// What an Error calls a kernel or function: "#" and what is behind it only tell those of one name
/// apart.
std::string spoken_name(std::string_view name);
/// The name of its body, as an Error says it.
std::string call_name(const UOp& call);
/// The same as it is: what the body's rules are known by.
std::string registered_name(const UOp& call);
/// Throws Error (Value) where the arguments of a Call do not fit its body, or lie on several
/// devices.
void require_arguments(const UOp& call);
/// A value as a Call takes it: in memory. A view is copied, and what is lazy is computed before.
UOp call_argument(const UOp& value);
/// Whether a node is a result of a Call.
bool is_call_result(const UOp& u);

/// `value` with Variables replaced; shapes are simplified, so that they are numbers again.
UOp with_variables(const UOp& value, const Substitution& variables);

}  // namespace koine

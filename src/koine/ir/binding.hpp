#pragma once
#include <vector>

#include "koine/ir/graph.hpp"
#include "koine/ir/uop.hpp"

// Variables with values. `bind(n, 12)` stands for n in shapes and indices like n itself: what is
// made of it knows the range of n alone, so that one program serves all values. The value travels
// along, and becomes an argument of the run.
namespace koine {

/// Throws Error (Value) where the Variable may not take the value, or has another one already.
UOp bind(const UOp& variable, int64_t value);
bool is_bound(const UOp& node);
int64_t bound_value(const UOp& bound);

/// Throws Error (Value) where the Variable has a name that begins with koine_: the library puts
/// Variables of its own into programs, and tells them from the user's by that.
void require_name_of_user(const UOp& variable);

/// Every Variable below, bound or not, each once; those in bodies of Functions too.
std::vector<UOp> variables_below(const UOp& graph);
/// The graph over Variables without values.
UOp without_values(const UOp& graph);
/// The graph with Variables replaced, those in bodies of Calls too.
UOp with_values(const UOp& graph, const Substitution& values);

/// An index scalar over bound Variables as a number. Throws Error (Key) naming a Variable that is
/// not bound.
int64_t present_value(const UOp& index);
/// Whether it is one: else it is a size in the description of a function, and any in its range.
bool has_present_value(const UOp& index);
/// The sizes of a value, as the Variables in its shape are bound.
std::vector<int64_t> present_sizes(const UOp& value);
/// How many elements a value has at most, whatever its Variables are bound to; throws Error
/// (Memory) beyond 63 bits.
int64_t largest_numel(const UOp& value);

}  // namespace koine

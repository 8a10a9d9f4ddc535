#pragma once
#include <functional>
#include <vector>

#include "koine/ir/uop.hpp"

// Where an element of a tensor value is read from: the index arithmetic of movement ops.
namespace koine {

/// One index scalar an axis.
using Indices = std::vector<UOp>;

/// Position in row-major order.
UOp flat_index(const UOp& shape, const Indices& at);
/// The coordinates of a position that is in bounds.
Indices unflatten(const UOp& flat, const UOp& shape);
/// The place of a source that broadcasts to its user's shape.
Indices aligned(const UOp& source, const Indices& at);

/// The conjunction of two conditions; null is one that always holds.
UOp conjunction(const UOp& a, const UOp& b);
/// What of a condition says whether a place exists: without the parts that share no Range with the
/// place, nor with a part that does. Null: nothing.
UOp guard_of(const Indices& at, const UOp& condition);
/// A condition that is null or a constant.
bool is_true(const UOp& condition);
bool is_false(const UOp& condition);

/// Adds 0 <= at < size to `inside` unless it is proven, and from then on lets `at` promise it
/// (Assume): what is computed there is only used where it holds.
void keep_within(UOp& at, const UOp& size, UOp& inside);
/// Takes the promises out of a value.
UOp without_promises(const UOp& value);

/// New LOOP Ranges over all elements of a value, outermost first, numbered from `next_range` on,
/// and the place they stand at.
Indices open_loops(const UOp& value, int64_t& next_range, std::vector<UOp>& loops);

/// A source of a Stack, and the condition under which it is the one at a place; null: always.
struct Choice {
  UOp source, here;
};
/// What may lie at a place along the first axis of a Stack: each of its sources once, however often
/// the Stack names it.
std::vector<Choice> choices_of(const UOp& stack, const UOp& which);

/// The place in its source that an element of an Index op is read from, and the condition under
/// which it exists. `fetch` gives the element of one index value at its place; null: not known yet.
Indices indexed(const UOp& node, const Indices& at, UOp& inside,
                const std::function<UOp(const UOp& which, const Indices& at)>& fetch);

/// The place in its first source that an element of a movement op (not Stack, Bitcast or Index) is
/// read from, and the condition under which that place exists (Pad).
Indices moved(const UOp& node, const Indices& at, UOp& inside);

}  // namespace koine

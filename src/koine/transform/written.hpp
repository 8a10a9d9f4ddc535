#pragma once
#include <span>
#include <vector>

#include "koine/ir/uop.hpp"

// Assignment through views, as values: After(copy, Store(view of the copy, value)) is where(inside
// of the view, value, copy); at places along a view, of several values for one the last stays.
namespace koine {

/// The value of an After for another value of its memory before, and others stored, one an effect.
/// Throws Error (Type) for Stores that go to other memory, at places of several axes or under a
/// gate, as those below do.
UOp after_value(const UOp& after, const UOp& memory, std::span<const UOp> stored);

/// Cotangents of an After, one a source: the memory before its Stores takes what they leave, and
/// each Store the cotangent of the memory behind it. Throws Error (Type) for Stores that go to
/// other memory, at places of several axes or under a gate.
std::vector<UOp> after_vjp(const UOp& after, const UOp& cotangent);
/// Of such a Store: the stored value takes what its view shows of that.
std::vector<UOp> stored_vjp(const UOp& store, const UOp& cotangent);

}  // namespace koine

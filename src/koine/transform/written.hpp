#pragma once
#include <vector>

#include "koine/ir/uop.hpp"

// Assignment through views, as values: After(copy, Store(view of the copy, value)) is where(inside
// of the view, value, copy).
namespace koine {

/// Cotangents of an After, one a source: the memory before its Stores takes what they leave, and
/// each Store the cotangent of the memory behind it. Throws Error (Type) for Stores that go to
/// other memory, at indices or under a gate.
std::vector<UOp> after_vjp(const UOp& after, const UOp& cotangent);
/// Of such a Store: the stored value takes what its view shows of that.
std::vector<UOp> stored_vjp(const UOp& store, const UOp& cotangent);

}  // namespace koine

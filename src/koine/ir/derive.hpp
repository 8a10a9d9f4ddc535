#pragma once
#include <span>

#include "koine/ir/uop.hpp"

namespace koine {

/// What is known of a node the moment it is built.
struct Derived {
  DType dtype = DType::Void;
  UOp shape;  ///< null: ()
  bool scalar_stack = false;
};

/// dtype and shape by the spec's table of derived properties, completed by amendments C7, C9, C11.
/// Throws Error naming op, operand and rule when the node is ill-typed.
Derived derive(Op op, std::span<const UOp> src, const Arg& arg);

/// Device and axis by the spec's rules, completed by amendments C7, C8 and C22. Throws Error when a
/// value on several devices would be torn: the message names the copy to write.
Placement derive_placement(Op op, std::span<const UOp> src, const Arg& arg, const Derived& value);

/// The shape that values broadcast to: right-aligned, each size equal or 1. `op` is named in the
/// error.
UOp broadcast_shape(Op op, std::span<const UOp> values);

}  // namespace koine

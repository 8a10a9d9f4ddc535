#pragma once
#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// The program over values that lie on one device each: a value on n devices becomes the n values
/// that they hold, a Param of several devices one Param of the same slot on each, and what one
/// device needs of another's a copy. A program that names no several devices stays the same node.
///
/// A reduce along the axis that devices split is an all-reduce (amendment C22): each device reduces
/// its part, the partial results go to all devices, and each folds them in the same fixed tree, in
/// the order of the devices, so that all hold equal bits. In strict mode a float sum or product is
/// one ascending fold: each device gets the whole operand instead and folds it alone.
UOp on_each_device(const UOp& program, const CompileOptions& how = compile_options());

}  // namespace koine

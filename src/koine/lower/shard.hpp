#pragma once
#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// The program over values that lie on one device each: a value on n devices becomes the n values
/// that they hold, a Param of several devices one Param of the same slot on each, and what one
/// device needs of another's a copy. A program that names no several devices stays the same node.
///
/// A reduce along the axis that devices split is an all-reduce (amendment C22): each device reduces
/// its part, and `all_reduced` (lower/collectives) folds the partial results, so that all devices
/// hold equal bits. In strict mode a float sum or product is one ascending fold: each device gets
/// the whole operand instead and folds it alone. Copies say which collective they are of.
UOp on_each_device(const UOp& program, const CompileOptions& how = compile_options());

}  // namespace koine

#pragma once
#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 2, fourth pass: the kernels (`index_kernels`) in the form in which they stay apart.
/// Running folds and folds into places take one step an element (`lower/scan`, `lower/scatter`),
/// narrow floats fold in float32 (default mode), sums under strides go over what there is
/// (`lower/phases`), kernels whose loads rules have folded away are
/// left out, and each Call is on its device.
UOp split(const UOp& kernels, const CompileOptions& how);

}  // namespace koine

#pragma once
#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// A host program whose loops and branches (`ir/loop`) hold host programs in place of values: each
/// function becomes the Linear of its kernels, by the same passes, however often it runs. Their
/// Params are the buffers of the launch by slot: results, then arguments, then the flag of a
/// condition, then what a function needs for itself. A step reads and fills its rows at the
/// Variable `step_variable`, finds its carries in the arguments and leaves them in the results;
/// whoever runs it passes them on.
UOp lower_loops(const UOp& schedule, const CompileOptions& how);

}  // namespace koine

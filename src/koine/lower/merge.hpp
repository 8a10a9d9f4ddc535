#pragma once
#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 2, last pass: kernels of a host program over the same loops become one with several Stores
/// (row W11) where that saves a pass over memory: one reads what the other stores, element by
/// element, or both read the same buffer. Where one reads what the other stores, along rows too,
/// one of them may lack the inner loops of the other, as the maximum of a row does. A temporary
/// that nobody else reads is not stored any more.
UOp merge_kernels(const UOp& schedule, const CompileOptions& how);

}  // namespace koine

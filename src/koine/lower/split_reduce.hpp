#pragma once
#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// Reduces of many elements to few, symbolic numbers of them too, are done in two steps, over parts
/// that depend on the shape alone (amendment C32), so that all threads take part. Strict mode keeps
/// the ascending left fold.
UOp split_large_reduces(const UOp& program, const CompileOptions& how = compile_options());

}  // namespace koine

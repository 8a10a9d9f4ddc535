#pragma once
#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// Stage 2, first pass: which values of a stateless program get memory of their own, so that no
/// work is repeated (amendment C38). Each of them comes back inside a Contiguous whose arg says
/// why; all else is computed where it is read. One walk from consumers to producers: when a node is
/// reached, all places it is read at are known, so neither the order of operands nor that of visits
/// matters. Where several loops of a kernel walk over the rows of a value, it comes back inside a
/// Load into LOCAL memory that holds a row at a time, with the reason too; `row_bytes`: how much of
/// that a kernel may have.
UOp decide(const UOp& program, int64_t row_bytes = Target{}.row_bytes,
           const CompileOptions& how = compile_options());

}  // namespace koine

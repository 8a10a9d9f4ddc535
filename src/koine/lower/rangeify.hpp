#pragma once
#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/schedule.hpp"

namespace koine {

/// Stage 2. Splits a stateless program into a host program (`lower/schedule`): one Linear of Calls
/// in execution order. Elementwise chains, movement, and reduces with their prologue and epilogue
/// fuse; a value gets a buffer of its own where fusing would repeat work (amendment C38): it is
/// read by several kernels, or under a loop that it does not depend on. A reduce over rows whose
/// result is used along the same rows stays in one kernel. Temporaries are Buffers with slots
/// counted from 0. It is the parts below, one behind the other, and `lower_loops`. `change` sees
/// what each gives: "decide", "bufferize", "index", "split" and "merge".
UOp rangeify(const UOp& values, const CompileOptions& how = compile_options(),
             const StageChange& change = {});

/// The program over values alone, with what is decided written into it (`make_validity_explicit`,
/// `decide`).
UOp decided_program(const UOp& values, const CompileOptions& how = compile_options());
/// The decided program with memory (`bufferize`).
UOp bufferized_program(const UOp& decided, const CompileOptions& how = compile_options());
/// The kernels of that, with an index for each read and Store (`index_kernels`): a host program.
UOp indexed_program(const UOp& bufferized, const CompileOptions& how = compile_options());
/// The same in the form in which kernels stay apart (`split`).
UOp split_program(const UOp& indexed, const CompileOptions& how = compile_options());
/// The same with kernels over the same loops in one (`merge`), and one for all that differ in where
/// their slices begin alone (`offsets`).
UOp merged_program(const UOp& split, const CompileOptions& how = compile_options());

}  // namespace koine

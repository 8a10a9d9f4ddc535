#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "koine/differential/check.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/device.hpp"

// The stages of whole programs, and what KOINE_VERIFY=3 runs of them.
namespace koine {

/// What stages and parts of them gave, by their names.
using StageOutputs = std::map<std::string, UOp, std::less<>>;

/// Stage 2 of a program: its host program. `parts`: what becomes of the program on the way.
UOp schedule_of(const UOp& program, const StageChange& change, const CompileOptions& how,
                StageOutputs* parts = nullptr);
/// Stage 7.
UOp planned(const UOp& schedule, const StageChange& change, const CompileOptions& how);

/// Runs a program of values to compute beside what Callify made of it.
CheckCounts check_callified(const std::vector<UOp>& values, const std::vector<UOp>& destinations,
                            const Callified& made, const StageChange& change = {},
                            const CompileOptions& how = compile_options());
/// Runs a program beside what each part of stage 2 makes of it, down to its host program, with
/// temporaries apart from each other and as planned.
CheckCounts check_scheduled(const StageOutputs& parts, const UOp& schedule, const UOp& planned,
                            const StageChange& change, const CompileOptions& how);
/// Runs a kernel before Linearize beside its machine code.
CheckCounts check_rendered(Program& program, const LoweredKernel& kernel, DeviceRuntime& device,
                           const StageChange& change);

}  // namespace koine

#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "koine/base/compile_options.hpp"
#include "koine/differential/check.hpp"
#include "koine/ir/uop.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/target/target.hpp"
#include "koine/verify/verify.hpp"

namespace koine {

struct LoweredKernel {
  std::string name;  ///< letters and sizes of its axes, for example "r_t8_L16_R512_u16"
  UOp linear;
  CompileOptions how;
  std::vector<Opt> opts;
  KernelEstimate estimate;
  // Kept for KOINE_VERIFY=3 alone.
  UOp selected;        ///< what Linearize was given; null where the interpreter has none
  SlotTypes types;     ///< of the kernel before Select
  CheckCounts checks;  ///< of these stages
};

/// Called with (stage, graph) after each stage of a kernel.
using StageSink = std::function<void(std::string_view stage, const UOp& graph)>;

/// What becomes of the output of a stage before anybody looks at it: tests break stages so.
using StageChange = std::function<UOp(std::string_view stage, const UOp& graph)>;

/// What the output of a stage of a kernel is supposed to be.
VerifyLevel level_after(std::string_view stage);

/// Stages 3 to 6 for one kernel: optimize, expand, select, linearize, verified by KOINE_VERIFY; at
/// level 3 the output of each runs beside its input. `opts` replaces the heuristic's choice.
/// `given` is the stage whose output `ast` is: those up to it have run.
LoweredKernel lower_kernel(const UOp& ast, const Target& target, const StageSink& sink = {},
                           const std::vector<Opt>* opts = nullptr, const StageChange& change = {},
                           std::string_view given = "rangeify",
                           const CompileOptions& how = compile_options());

/// Prints what came out of a stage where KOINE_DUMP asks for that.
void dump_stage(std::string_view stage, const std::function<std::string()>& text);

/// Reports at KOINE_DEBUG=1 that a stage was too large for KOINE_VERIFY=3, and counts.
void count_check(CheckCounts& counts, std::string_view stage, bool checked);

}  // namespace koine

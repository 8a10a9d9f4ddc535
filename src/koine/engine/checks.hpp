#pragma once
#include <functional>
#include <unordered_map>
#include <vector>

#include "koine/differential/check.hpp"
#include "koine/engine/executable.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/plan.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/runtime/device.hpp"

// The stages of whole programs, and what KOINE_VERIFY=3 runs of them.
namespace koine {

/// Stage 2 of a program.
std::vector<Kernel> schedule_kernels(const UOp& program, const StageChange& change);

/// The temporaries of a schedule, when they are alive, and where they lie.
struct Temporaries {
  std::unordered_map<UOp, size_t> number;
  std::vector<Lifetime> lifetimes;  ///< by number
  MemoryPlan plan;
};
Temporaries place_temporaries(const std::vector<Kernel>& kernels,
                              const std::function<void(MemoryPlan&)>& change);

/// Runs a program of values to compute beside what Callify made of it.
CheckCounts check_callified(const std::vector<UOp>& values, const std::vector<UOp>& destinations,
                            const Callified& made, const StageChange& change = {});
/// Runs a program beside its kernels, on temporaries apart from each other and as planned.
CheckCounts check_scheduled(const UOp& program, const std::vector<Kernel>& kernels,
                            const Changes& changes);
/// Runs a kernel before Linearize beside its machine code.
CheckCounts check_rendered(Program& program, const LoweredKernel& kernel, DeviceRuntime& device,
                           const StageChange& change);

}  // namespace koine

#pragma once
#include <cstdint>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// A temporary with its size and the steps between which it must keep its bytes.
struct Lifetime {
  UOp buffer;
  int64_t bytes = 0;
  int64_t first, last;  ///< steps, inclusive
};

struct MemoryPlan {
  std::vector<int64_t> offsets;  ///< of each Lifetime, in one arena
  int64_t arena_bytes = 0;
};

/// Stage 7. Places temporaries in one arena so that two that are alive at once never overlap; large
/// ones are placed first, each at the lowest free offset. Offsets are multiples of 64.
MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes);

/// Proves a plan: throws InternalError naming two lifetimes that overlap in time and space.
void check_plan(const std::vector<Lifetime>& lifetimes, const MemoryPlan& plan);

}  // namespace koine

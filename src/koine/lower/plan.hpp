#pragma once
#include <cstdint>

#include "koine/ir/uop.hpp"

namespace koine {

/// Stage 7. Gives each temporary of a host program its offset in the arena of its device, so that
/// two that are alive at once never overlap: large ones are placed first, each at the lowest free
/// offset. Offsets are multiples of 64.
UOp plan_memory(const UOp& schedule);

/// Proves a plan: throws InternalError naming two temporaries that overlap in time and space.
void check_plan(const UOp& schedule);

/// Bytes of the arena of a device in a planned program.
int64_t arena_bytes(const UOp& schedule, Device device);

}  // namespace koine

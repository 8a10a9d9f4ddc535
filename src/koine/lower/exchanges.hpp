#pragma once
#include <functional>

#include "koine/lower/schedule.hpp"

namespace koine {

/// The host program in an order in which copies stand together: what can run without them runs
/// first, then all that wait for nothing else, and so on. So those of one collective, and of
/// several that do not wait for each other, can go in one step. `is_chosen`: which copies.
UOp with_copies_together(const UOp& schedule, const std::function<bool(const Kernel&)>& is_chosen);

}  // namespace koine

#pragma once
#include <functional>

#include "koine/differential/check.hpp"
#include "koine/engine/engine.hpp"

namespace koine {

/// Changes the counters under their lock.
void count(const std::function<void(Counters&)>& change);
void count_checks(const CheckCounts& checks);

}  // namespace koine

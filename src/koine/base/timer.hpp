#pragma once
#include <chrono>

namespace koine {

/// Seconds on a clock that never goes back.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace koine

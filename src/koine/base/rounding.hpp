#pragma once
#include <cstdint>

namespace koine {

/// The smallest multiple of `multiple` that is not less than n; n >= 0.
constexpr int64_t rounded_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace koine

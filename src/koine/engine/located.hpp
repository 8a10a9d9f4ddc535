#pragma once
#include <memory>

#include "koine/runtime/device.hpp"

namespace koine {

/// Bytes of a device's memory.
struct Located {
  std::shared_ptr<Memory> memory;
  int64_t offset = 0, bytes = 0;

  std::byte* address() const { return memory->address() + offset; }
  /// Where the host finds them; null where it cannot.
  std::byte* data() const {
    std::byte* const all = memory->data();
    return all == nullptr ? nullptr : all + offset;
  }
};

}  // namespace koine

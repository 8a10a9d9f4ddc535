#pragma once
#include <algorithm>
#include <cstring>
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
  /// Their first bytes for this process alone: `copy_out` of a rank's memory is for all.
  void read(void* to, int64_t count) const {
    const std::byte* const here = data();
    if (here == nullptr) return memory->copy_out(to, offset, count);
    std::memcpy(to, here, static_cast<size_t>(count));
  }
};

/// What a copy moves: memory of a symbolic size may be as large as that is now, or as the largest.
inline int64_t bytes_of_copy(const Located& to, const Located& from) {
  return std::min(to.bytes, from.bytes);
}

}  // namespace koine

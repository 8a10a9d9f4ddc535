#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "koine/runtime/device.hpp"
#include "koine/runtime/ranks/transport.hpp"

namespace koine {

/// Bytes that go from the memory of one rank to that of another, or of the same. Every rank knows
/// of every message, and has the bytes of its own.
struct Message {
  size_t from, to;
  Memory* source;
  int64_t source_offset;
  Memory* target;
  int64_t target_offset;
  int64_t bytes;
};

/// The functions of a Transport that messages go by.
enum class Exchange : uint8_t {
  Broadcast,  ///< one rank sends the same to all others
  AllGather,  ///< each rank does
  AllToAll,   ///< each rank sends as many bytes to each
  Mixed,
};
/// Of messages between `ranks` that do not wait for each other, those inside of a rank left out.
Exchange exchange_of(std::span<const Message> messages, size_t ranks);

/// Sends and receives what concerns this rank, all messages between two ranks as one block. All
/// ranks call it with the same messages. What goes to a rank in one go, and the memory that this
/// takes, is at most `most` bytes.
void deliver(Transport& transport, std::span<const Message> messages,
             int64_t most = int64_t{16} << 20);

}  // namespace koine

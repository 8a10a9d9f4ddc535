#pragma once
#include <cstdint>
#include <string>

namespace koine::test {

/// What the device "REMOTE" was asked for since the last reset.
struct RemoteCounts {
  int64_t submissions = 0;  ///< lists and copies handed to its queues
  int64_t launches = 0;     ///< that have run
  int64_t copies_in = 0, copies_out = 0;
  int64_t waits = 0;  ///< of the host, for what had not run
  int64_t early = 0;  ///< those that more submissions came after
};

/// Adds the kind of device "REMOTE": the host cannot see its memory, and its queues run what they
/// were handed when somebody waits for part of it: then all of it, whatever queues beside them have
/// done. What is neither waited for nor followed is found out so.
void register_remote_device();
RemoteCounts& remote_counts();

/// n devices; of three the last one is interpreted, and of four the host does not see two.
std::string mixed_devices(int64_t n);

}  // namespace koine::test

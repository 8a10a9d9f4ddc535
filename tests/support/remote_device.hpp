#pragma once
#include <cstdint>
#include <string>

namespace koine::test {

/// What the device "REMOTE" was asked for since the last reset.
struct RemoteCounts {
  int64_t submissions = 0;  ///< lists handed to its queues
  int64_t launches = 0;     ///< that have run
  int64_t copies_in = 0, copies_out = 0;
};

/// Adds the kind of device "REMOTE": the host cannot see its memory, and its queues run what they
/// were handed when somebody waits. What is not waited for is found out so.
void register_remote_device();
RemoteCounts& remote_counts();

/// n devices; of three the last one is interpreted, and of four the host does not see two.
std::string mixed_devices(int64_t n);

}  // namespace koine::test

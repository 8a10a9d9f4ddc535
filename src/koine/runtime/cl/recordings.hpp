#pragma once
#include <memory>
#include <span>
#include <vector>

#include "koine/runtime/cl/compiler.hpp"
#include "koine/runtime/cl/events.hpp"

namespace koine::cl {

/// What a queue was handed before, as command buffers (the extension cl_khr_command_buffer): the
/// same programs on the same memory with the same values are one call. Made when a list comes for
/// the second time; those used last are kept.
class Recordings {
 public:
  Recordings(const Hardware& on, cl_command_queue queue) : on_(on), queue_(queue) {}
  /// Hands the commands over. The event of their end, which the caller releases; null where they
  /// are none that was recorded, and nothing was handed over.
  cl_event replay(std::span<const Command> commands);

 private:
  using Buffer = std::shared_ptr<std::remove_pointer_t<cl_command_buffer_khr>>;
  struct Recording {
    std::vector<uint64_t> key;
    uint64_t used = 0;
    bool tried = false;
    std::vector<OwnedKernel> kernels;
    Buffer buffer;   // null where the driver refused
    Events running;  // the last time it was handed over
  };
  Recording& find(std::vector<uint64_t> key);
  void record(std::span<const Command> commands, Recording& into) const;

  const Hardware& on_;
  cl_command_queue queue_;
  std::vector<Recording> kept_;
  uint64_t uses_ = 0;
};

}  // namespace koine::cl

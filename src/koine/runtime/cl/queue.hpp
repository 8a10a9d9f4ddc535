#pragma once
#include <map>
#include <mutex>

#include "koine/runtime/cl/events.hpp"
#include "koine/runtime/cl/hardware.hpp"
#include "koine/runtime/cl/recordings.hpp"
#include "koine/runtime/device.hpp"

namespace koine::cl {

/// A command queue that runs in order; other queues on the same hardware follow by events.
class ClQueue : public Queue {
 public:
  explicit ClQueue(const Hardware& on) : on_(on), queue_(make_queue(on)), recordings_(on, queue_) {}
  uint64_t submit(std::span<const Command> commands) override;
  uint64_t submit(const Transfer& transfer) override;
  bool follow(Queue& other, uint64_t submission) override;
  bool has_run(uint64_t submission) override;
  void wait(uint64_t submission) override;

 private:
  uint64_t add(Events events);
  Events events_of(uint64_t submission);

  const Hardware& on_;
  cl_command_queue queue_;
  std::mutex mutex_;
  Recordings recordings_;
  std::map<uint64_t, Events> running_;  // by submission; those that were waited for are gone
  uint64_t last_ = 0;
};

}  // namespace koine::cl

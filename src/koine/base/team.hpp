#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace koine {

/// Processor cores, the caller's among them, as they were at the first call.
int core_count();

/// A team of worker threads that shares out numbered chunks of one job at a time. The caller works
/// too and waits only for chunks that a worker has claimed, so a busy machine never makes it slower
/// than a serial loop.
class Team {
 public:
  /// `workers` threads besides the caller.
  explicit Team(int workers);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /// Calls `chunk(context, i)` for every i in [0, count), each once, on any thread.
  void run(void (*chunk)(void* context, int64_t i), void* context, int64_t count);

 private:
  void work(uint32_t generation);
  void worker();

  std::mutex one_job_;
  std::atomic<uint32_t> generation_{0};  // futex word; odd bit patterns have no meaning
  std::atomic<uint64_t> claim_{0};       // generation << 32 | next chunk
  std::atomic<void (*)(void*, int64_t)> chunk_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> count_{0};
  std::atomic<int64_t> finished_{0};
  std::atomic<int> asleep_{0};  // workers that only a call of the kernel's wakes
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace koine

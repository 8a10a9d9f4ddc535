#pragma once
#include <atomic>
#include <thread>

namespace koine {

/// A lock for sections of a few dozen instructions: taking a free one costs one atomic exchange.
/// A waiter spins a little, then lets other threads run.
class SpinLock {
 public:
  void lock() {
    for (int spins = 0; held_.exchange(true, std::memory_order_acquire);)
      while (held_.load(std::memory_order_relaxed))
        if (++spins > 64) std::this_thread::yield();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace koine

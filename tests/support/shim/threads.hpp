// A group on as many threads of the host as it has: nothing but its barriers orders them, so
// ThreadSanitizer reports accesses to its memory, or to that of all, that need a barrier and have
// none. Groups run one behind the other.
#pragma once
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

// Memory of a group, which its threads share.
#define KOINE_SHIM_SHARED static

namespace shim {

class Meeting {
 public:
  explicit Meeting(size_t count) : count_(count), barrier_(static_cast<ptrdiff_t>(count), {this}) {}
  void wait() { barrier_.arrive_and_wait(); }
  /// Where a kernel ends: all others end there too.
  void end() {
    ended_.fetch_add(1, std::memory_order_relaxed);
    barrier_.arrive_and_wait();
  }

 private:
  struct Check {
    Meeting* meeting;
    void operator()() noexcept {
      require_all(meeting->ended_.exchange(0, std::memory_order_relaxed), meeting->count_);
    }
  };
  size_t count_;
  std::atomic<size_t> ended_{0};
  std::barrier<Check> barrier_;
};
inline thread_local Meeting* meeting = nullptr;

inline void barrier() { meeting->wait(); }

inline void run_groups(const uint32_t* grid, const uint32_t* size, const Work& kernel) {
  const size_t count = size_t{size[0]} * size[1] * size[2];
  Meeting all(count);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      meeting = &all;
      item = item_of(i, size);
      for (group.z = 0; group.z < grid[2]; ++group.z)
        for (group.y = 0; group.y < grid[1]; ++group.y)
          for (group.x = 0; group.x < grid[0]; ++group.x) {
            kernel();
            all.end();
          }
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace shim

#include "koine/base/team.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "koine/base/interrupt.hpp"

namespace koine {
namespace {

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}
void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

constexpr int spins_before_sleep = 2000;  // about 20 microseconds

}  // namespace

// The C library reads a file for each answer.
int core_count() {
  static const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return count;
}

Team::Team(int workers) {
  for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { worker(); });
}

Team::~Team() {
  stop_ = true;
  generation_.fetch_add(1);
  futex_wake_all(generation_);
  for (std::thread& t : threads_) t.join();
}

void Team::run(void (*chunk)(void*, int64_t), void* context, int64_t count) {
  if (threads_.empty() || count < 2) {
    for (int64_t i = 0; i < count; ++i) chunk(context, i);
    return;
  }
  const std::lock_guard lock(one_job_);
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  chunk_.store(chunk, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  finished_.store(0, std::memory_order_relaxed);
  claim_.store(static_cast<uint64_t>(generation) << 32, std::memory_order_release);
  // Whoever is about to sleep says so before the kernel looks at the word, and the word changes
  // before it is asked who sleeps: one of the two is seen.
  generation_.store(generation);
  if (asleep_.load() > 0) futex_wake_all(generation_);
  work(generation);
  // On a busy machine a worker may be waiting for this very core.
  for (int spins = 0; finished_.load(std::memory_order_acquire) != count; ++spins) {
    if (spins < spins_before_sleep) {
      pause_cpu();
      continue;
    }
    (void)is_interrupted();  // so that the others hear of it
    std::this_thread::yield();
  }
}

// Claims and runs chunks of one job. A stale worker fails its claim, because the generation is part
// of the claimed word.
void Team::work(uint32_t generation) {
  while (true) {
    uint64_t claim = claim_.load(std::memory_order_acquire);
    if (claim >> 32 != generation) return;
    const auto i = static_cast<int64_t>(claim & 0xffffffffu);
    if (i >= count_.load(std::memory_order_relaxed)) return;
    if (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel)) continue;
    chunk_.load(std::memory_order_relaxed)(context_.load(std::memory_order_relaxed), i);
    finished_.fetch_add(1, std::memory_order_release);
  }
}

void Team::worker() {
  uint32_t seen = 0;
  while (!stop_) {
    int spins = 0;
    uint32_t now;
    while ((now = generation_.load(std::memory_order_acquire)) == seen && !stop_) {
      if (++spins < spins_before_sleep) {
        pause_cpu();
        continue;
      }
      asleep_.fetch_add(1);
      futex_wait(generation_, seen);
      asleep_.fetch_sub(1);
    }
    seen = now;
    work(now);
  }
}

}  // namespace koine

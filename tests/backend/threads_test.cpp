// Threads that build, realize and drop graphs at once; run under TSan by hand and here for the
// values.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <thread>

#include "check.hpp"
#include "koine/base/team.hpp"
#include "koine/base/timer.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {
namespace {

double stress_seconds() {
  const char* text = std::getenv("KOINE_STRESS_SECONDS");
  return text != nullptr ? std::atof(text) : 2;
}

}  // namespace

TEST(threads, build_realize_and_drop_from_four_threads) {
  const double end = now_seconds() + stress_seconds();
  std::atomic<int64_t> rounds{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; now_seconds() < end; ++i) {
        const int n = 1 + (i * 7 + t) % 13;
        const Tensor x = Tensor::arange(n).cast(DType::Float32);
        const Tensor y = (x * Tensor(2.0) + Tensor(1.0)).sum();
        wrong += y.item() != static_cast<double>(n * n);
        if (i % 50 == 0) clear_compile_cache();
        ++rounds;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(rounds, 0);
}

// A program of a kernel that the cache knows and one that it does not, while the cache is emptied.
TEST(threads, the_cache_may_be_cleared_while_a_program_compiles) {
  std::atomic<bool> done{false};
  std::thread clearing([&] {
    while (!done) clear_compile_cache();
  });
  const Tensor x = Tensor::arange(5).cast(DType::Float32).realize();
  for (int i = 0; i < 100; ++i) {
    (void)(x * Tensor(2.0)).realize();
    const Tensor known = (x * Tensor(2.0)).contiguous(), fresh = x * Tensor(i + 0.25);
    EXPECT_EQ((known + fresh).sum().item(), 10 * (2 + i + 0.25));
  }
  done = true;
  clearing.join();
}

TEST(threads, a_team_runs_every_chunk_once) {
  for (const int workers : {0, 1, 3}) {
    Team team(workers);
    for (int64_t count : {1, 2, 7, 100}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      team.run(
          [](void* c, int64_t i) {
            (*static_cast<std::vector<std::atomic<int>>*>(c))[static_cast<size_t>(i)]++;
          },
          &hits, count);
      for (const auto& h : hits) ASSERT_EQ(h, 1);
    }
  }
}

// After fork() the child has neither workers nor a running compiler thread; it makes its own.
// As many threads compute as were asked for; one is that which asks.
TEST(threads, kernels_have_the_threads_that_are_asked_for) {
  const auto threads_with = [](int wanted) {
    Options o = options();
    o.threads = wanted;
    const OptionScope scope(o);
    (void)(Tensor::arange(1 << 20) * Tensor(3)).contiguous().realize();
    using std::filesystem::directory_iterator;
    return std::distance(directory_iterator("/proc/self/task"), directory_iterator());
  };
  const auto alone = threads_with(1);
  EXPECT_EQ(threads_with(3), alone + 2);
  EXPECT_EQ(threads_with(2), alone + 1);
  EXPECT_EQ(threads_with(1), alone);
}

TEST(threads, a_forked_child_computes) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not follow a fork of a process with threads";
#endif
  const Tensor x = Tensor::arange(1 << 20).cast(DType::Float32);
  auto total = [&](double factor) { return (x * Tensor(factor)).max().item(); };
  ASSERT_EQ(total(2), 2.0 * ((1 << 20) - 1)) << "the team and the compilers have run";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that hangs fails
    _exit(total(2) == 2.0 * ((1 << 20) - 1) && total(4) == 4.0 * ((1 << 20) - 1) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(total(8), 8.0 * ((1 << 20) - 1)) << "the parent works on";
}

// A process that makes new kernels all the time stays flat.
TEST(memory, recompiling_leaves_memory_flat) {
  auto compile = [](int i) {
    (void)(Tensor::arange(3).cast(DType::Float32) * Tensor(i + 0.5)).tolist<float>();
  };
  const int warm = 300, more = 600;
  for (int i = 0; i < warm; ++i) {
    compile(i);
    if (i % 20 == 0) clear_compile_cache();
  }
  clear_compile_cache();
  const int64_t before = memory_in_use();
  for (int i = 0; i < more; ++i) {
    compile(warm + i);
    if (i % 20 == 0) clear_compile_cache();
  }
  clear_compile_cache();
  EXPECT_LT(memory_in_use() - before, int64_t{24} << 20);
}

TEST(memory, freed_tensors_return_their_memory) {
  DeviceRuntime& cpu = device_runtime("CPU");
  const int64_t before = cpu.allocator().bytes_in_use();
  {
    const Tensor x = Tensor::ones({1 << 20}).clone().realize();
    EXPECT_GE(cpu.allocator().bytes_in_use() - before, 4 << 20);
  }
  EXPECT_EQ(cpu.allocator().bytes_in_use(), before);
}

}  // namespace koine::test

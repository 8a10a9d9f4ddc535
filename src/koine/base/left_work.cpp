#include "koine/base/left_work.hpp"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "koine/base/interrupt.hpp"

namespace koine {
namespace {

class Running {
 public:
  void add(int number) {
    const std::lock_guard lock(mutex_);
    count() += number;
    fewer_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    fewer_.wait(lock, [&] { return count() == 0; });
  }

 private:
  // A forked process has none of the threads.
  int& count() {
    const pid_t before = std::exchange(process_, getpid());
    if (before != process_) count_ = 0;
    return count_;
  }

  std::mutex mutex_;
  std::condition_variable fewer_;
  pid_t process_ = getpid();
  int count_ = 0;
};
Running& running() {
  static auto& instance = *new Running;  // threads may end when static objects are gone
  return instance;
}

struct Job {
  std::function<std::string(const std::atomic<bool>&)> work;
  std::promise<std::string> result;
  std::atomic<bool> left{false};
};

void run(const std::shared_ptr<Job>& job) {
  try {
    std::string result = job->work(job->left);
    job->work = {};  // what it owns goes before anybody is told
    job->result.set_value(std::move(result));
  } catch (...) {
    job->result.set_exception(std::current_exception());
  }
}

}  // namespace

std::string run_or_leave(std::function<std::string(const std::atomic<bool>&)> work) {
  constexpr std::chrono::milliseconds between_questions(10);
  auto job = std::make_shared<Job>();
  job->work = std::move(work);
  std::future<std::string> result = job->result.get_future();
  running().add(1);
  std::thread([job]() mutable {
    run(job);
    job.reset();
    running().add(-1);
  }).detach();
  while (result.wait_for(between_questions) != std::future_status::ready)
    if (is_interrupted()) {
      job->left = true;
      throw Interrupted();
    }
  return result.get();
}

void rest_if_left(const std::atomic<bool>& left) {
  if (!left) return;
  running().add(-1);
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

void wait_for_left_work() { running().wait(); }

}  // namespace koine

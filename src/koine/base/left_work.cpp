#include "koine/base/left_work.hpp"

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

struct Running {
  std::mutex mutex;
  std::condition_variable fewer;
  int count = 0;
};
Running& running() {
  static auto& instance = *new Running;  // threads may end when static objects are gone
  return instance;
}
void add_running(int number) {
  const std::lock_guard lock(running().mutex);
  running().count += number;
  running().fewer.notify_all();
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
  add_running(1);
  std::thread([job]() mutable {
    run(job);
    job.reset();
    add_running(-1);
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
  add_running(-1);
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

void wait_for_left_work() {
  std::unique_lock lock(running().mutex);
  running().fewer.wait(lock, [] { return running().count == 0; });
}

}  // namespace koine

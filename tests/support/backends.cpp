#include "backends.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "koine/engine/engine.hpp"

namespace koine::test {
namespace {

// Adds to what tests note themselves the devices whose kernels the engine has launched meanwhile.
class Launches : public testing::EmptyTestEventListener {
 public:
  void note(std::string_view backend) {
    if (!backends_.emplace(backend).second) return;
    testing::Test::RecordProperty("backends", fmt::format("{}", fmt::join(backends_, " ")));
  }

 private:
  void OnTestStart(const testing::TestInfo&) override {
    backends_.clear();
    before_ = counters().kernels_on;
  }
  void OnTestEnd(const testing::TestInfo&) override {
    for (const auto& [device, launches] : counters().kernels_on)
      if (launches != before_[device]) ran_on(device);
  }

  std::set<std::string, std::less<>> backends_;
  std::map<std::string, int64_t> before_;
};

Launches& launches() {
  static auto& listener = *[] {
    auto* made = new Launches;
    testing::UnitTest::GetInstance()->listeners().Append(made);  // which owns it
    return made;
  }();
  return listener;
}

[[maybe_unused]] const Launches& listens = launches();  // from before the first test

}  // namespace

void ran_on(std::string_view backend) { launches().note(backend.substr(0, backend.find(':'))); }

}  // namespace koine::test

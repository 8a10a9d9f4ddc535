// Tests in several processes: each is a rank, and runs all tests. With --cpu-is-ranks the devices
// CPU, CPU:1 and so on are those of the ranks in turn, so that tests of several devices in one
// process become tests of several processes.
#include <gtest/gtest.h>

#include <cstring>

#include "koine/koine.hpp"
#include "koine/runtime/ranks/ranks.hpp"

namespace {

// Of the other ranks only what fails is of interest.
class Failures : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override { name_ = test.name(); }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fmt::print(stderr, "rank {}: {}:{}: {}: {}\n", koine::distributed::rank(),
               result.file_name() != nullptr ? result.file_name() : "?", result.line_number(),
               name_, result.message());
  }
  std::string name_;
};

std::unique_ptr<koine::DeviceRuntime> make_in_turn(const std::string& name) {
  const size_t colon = name.find(':');
  const size_t number = colon == name.npos ? 0 : std::stoul(name.substr(colon + 1));
  return koine::device_of_rank(name, number % koine::Ranks::joined().count());
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  koine::distributed::init();
  for (int k = 1; k < argc; ++k)
    if (std::strcmp(argv[k], "--cpu-is-ranks") == 0)
      koine::register_device("CPU", "this machine, in the processes in turn", make_in_turn);
  if (koine::distributed::rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures);
  }
  return RUN_ALL_TESTS();
}

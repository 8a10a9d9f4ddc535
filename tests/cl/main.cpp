// Tests of the device CL. Without a device of OpenCL they are skipped (status 77 for ctest), and
// say why; those that need none run all the same.
#include <gtest/gtest.h>

#include "koine/base/error.hpp"
#include "koine/runtime/device.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!testing::GTEST_FLAG(list_tests)) try {
      (void)koine::device_runtime("CL");
    } catch (const koine::Error& e) {
      fmt::print("skipped: {}\n", e.what());
      return 77;
    }
  return RUN_ALL_TESTS();
}

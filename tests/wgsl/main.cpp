// Texts in WGSL, run. Without a device of Vulkan they are skipped (status 77 for ctest), and say
// why.
#include <cstdio>
#include <stdexcept>

#include "wgpu.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!testing::GTEST_FLAG(list_tests)) try {
      (void)koine::test::wgpu_device();
    } catch (const std::runtime_error& e) {
      std::printf("skipped: %s\n", e.what());
      return 77;
    }
  return RUN_ALL_TESTS();
}

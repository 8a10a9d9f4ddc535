// A static object that is older than OpenCL's driver frees memory of CL and computes in its
// destructor, when the driver is gone: it is told so.
#include <cstdio>
#include <cstdlib>

#include "koine/base/error.hpp"
#include "koine/koine.hpp"
#include "koine/runtime/device.hpp"

namespace {

struct Late {
  koine::Tensor value;
  ~Late() {
    try {
      (void)(value * 7.0 + value.exp()).sum().item();
      std::printf("CL computed when the process ended\n");
    } catch (const koine::Error& e) {
      std::printf("%s\n", e.what());
    }
  }
};

}  // namespace

int main() {
  static Late late;
  try {
    (void)koine::device_runtime("CL");
  } catch (const koine::Error& e) {
    std::printf("skipped: %s\n", e.what());
    std::_Exit(77);
  }
  late.value = koine::Tensor::full({64}, 2.0).to("CL").clone().realize();
}

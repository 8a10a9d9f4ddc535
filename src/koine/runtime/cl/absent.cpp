// In the place of all else where OpenCL's headers were missing.
#include "koine/base/error.hpp"
#include "koine/runtime/cl/device.hpp"

namespace koine {

std::unique_ptr<DeviceRuntime> make_cl_device(const std::string&) {
  raise(ErrorKind::Device,
        "device CL: this build of Koine has no OpenCL: install its headers (Debian: apt-get "
        "install opencl-headers), configure and build again");
}

}  // namespace koine

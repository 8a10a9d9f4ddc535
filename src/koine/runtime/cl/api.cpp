#include "koine/runtime/cl/api.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "koine/base/error.hpp"

namespace koine::cl {
namespace {

struct Status {
  cl_int code;
  std::string_view name;
};
#define KOINE_CL_STATUS(name) \
  Status { name, #name }
constexpr std::array statuses{
    KOINE_CL_STATUS(CL_DEVICE_NOT_FOUND),
    KOINE_CL_STATUS(CL_DEVICE_NOT_AVAILABLE),
    KOINE_CL_STATUS(CL_COMPILER_NOT_AVAILABLE),
    KOINE_CL_STATUS(CL_MEM_OBJECT_ALLOCATION_FAILURE),
    KOINE_CL_STATUS(CL_OUT_OF_RESOURCES),
    KOINE_CL_STATUS(CL_OUT_OF_HOST_MEMORY),
    KOINE_CL_STATUS(CL_BUILD_PROGRAM_FAILURE),
    KOINE_CL_STATUS(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    KOINE_CL_STATUS(CL_INVALID_VALUE),
    KOINE_CL_STATUS(CL_INVALID_DEVICE),
    KOINE_CL_STATUS(CL_INVALID_BINARY),
    KOINE_CL_STATUS(CL_INVALID_KERNEL_NAME),
    KOINE_CL_STATUS(CL_INVALID_KERNEL_ARGS),
    KOINE_CL_STATUS(CL_INVALID_WORK_GROUP_SIZE),
};
#undef KOINE_CL_STATUS

std::string name_of(cl_int status) {
  const auto* at = std::find_if(statuses.begin(), statuses.end(),
                                [&](const Status& s) { return s.code == status; });
  return at == statuses.end() ? fmt::format("status {}", status)
                              : fmt::format("{} ({})", at->name, status);
}

}  // namespace

Api load_api(const std::string& library) {
  void* const loader = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  KOINE_REQUIRE(loader != nullptr, Device,
                "device CL: OpenCL's loader is not installed (Debian: apt-get install "
                "ocl-icd-libopencl1, and the driver of a device, such as pocl-opencl-icd for the "
                "CPU): {}",
                dlerror());
  Api out;
  auto find = [&](const char* name, auto& function) {
    void* const address = dlsym(loader, name);
    KOINE_REQUIRE(address != nullptr, Device,
                  "device CL: {} has no '{}': it is older than OpenCL 2.0, which is needed",
                  library, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
#define KOINE_CL_FIND(name) find(#name, out.name);
  KOINE_CL_FUNCTIONS(KOINE_CL_FIND)
#undef KOINE_CL_FIND
  return out;
}

Api& api() {
  static auto& loaded = *new Api(load_api("libOpenCL.so.1"));
  return loaded;
}

void check(cl_int status, std::string_view what) {
  switch (status) {
    case CL_SUCCESS:
      return;
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
      raise(ErrorKind::Memory, "device CL: {}: there is not enough memory, {}", what,
            name_of(status));
    case CL_OUT_OF_RESOURCES:
    case CL_DEVICE_NOT_AVAILABLE:
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
      raise(ErrorKind::Device,
            "device CL: {}: the device is lost, or a kernel asked for more than it has, {}: what "
            "it was computing is undefined; start the program again",
            what, name_of(status));
    default:
      raise(ErrorKind::Device, "device CL: {}: {}", what, name_of(status));
  }
}

}  // namespace koine::cl

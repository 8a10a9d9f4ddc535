#include "koine/runtime/cl/hardware.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "koine/base/error.hpp"

namespace koine::cl {
namespace {

template <class T>
T info(cl_device_id device, cl_device_info what) {
  T out{};
  check(api().clGetDeviceInfo(device, what, sizeof out, &out, nullptr), "asking what it can do");
  return out;
}

std::string text(cl_device_id device, cl_device_info what) {
  size_t bytes = 0;
  check(api().clGetDeviceInfo(device, what, 0, nullptr, &bytes), "asking what it is");
  std::string out(bytes, '\0');
  check(api().clGetDeviceInfo(device, what, bytes, out.data(), nullptr), "asking what it is");
  return out.substr(0, out.find('\0'));
}

std::optional<CommandBuffers> command_buffers_of(cl_device_id device,
                                                 const std::string& extensions) {
  if (extensions.find("cl_khr_command_buffer") == std::string::npos) return {};
  cl_device_command_buffer_capabilities_khr can = 0;
  api().clGetDeviceInfo(device, CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR, sizeof can, &can,
                        nullptr);
  if ((can & CL_COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR) == 0) return {};
  const auto platform = info<cl_platform_id>(device, CL_DEVICE_PLATFORM);
  CommandBuffers out{};
  bool all = true;
  const auto find = [&](const char* name, auto& function) {
    void* const at = api().clGetExtensionFunctionAddressForPlatform(platform, name);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(at);
    all = all && at != nullptr;
  };
  find("clCreateCommandBufferKHR", out.create);
  find("clCommandNDRangeKernelKHR", out.add);
  find("clFinalizeCommandBufferKHR", out.finalize);
  find("clEnqueueCommandBufferKHR", out.enqueue);
  find("clReleaseCommandBufferKHR", out.release);
  return all ? std::optional(out) : std::nullopt;
}

struct Offered {
  pid_t process = getpid();
  std::atomic<bool> ending = false;
  std::vector<cl_device_id> devices;
  std::mutex mutex;
  std::map<size_t, std::unique_ptr<Hardware>> started;
};

std::vector<cl_device_id> all_devices() {
  cl_uint count = 0;
  api().clGetPlatformIDs(0, nullptr, &count);
  std::vector<cl_platform_id> platforms(count);
  if (count > 0)
    check(api().clGetPlatformIDs(count, platforms.data(), nullptr), "listing platforms");
  std::vector<cl_device_id> out;
  for (const cl_platform_id platform : platforms) {
    cl_uint devices = 0;
    if (api().clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &devices) != CL_SUCCESS)
      continue;  // a driver whose hardware is absent
    const size_t before = out.size();
    out.resize(before + devices);
    check(api().clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, devices, out.data() + before, nullptr),
          "listing devices");
  }
  KOINE_REQUIRE(!out.empty(), Device,
                "device CL: OpenCL offers no device (of {} platforms): install the driver of one, "
                "such as pocl-opencl-icd for the CPU (Debian: apt-get install pocl-opencl-icd)",
                count);
  return out;
}

Offered& offered() {
  static auto& found = *[] {
    auto out = std::make_unique<Offered>();
    out->devices = all_devices();
    return out.release();
  }();
  return found;
}

std::unique_ptr<Hardware> start(size_t number) {
  const cl_device_id id = offered().devices[number];
  auto out = std::make_unique<Hardware>();
  out->number = number;
  out->id = id;
  out->name = text(id, CL_DEVICE_NAME);
  out->driver = text(id, CL_DRIVER_VERSION);
  const auto svm = info<cl_device_svm_capabilities>(id, CL_DEVICE_SVM_CAPABILITIES);
  KOINE_REQUIRE((svm & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) != 0, Device,
                "device CL: '{}' ({}) has no shared virtual memory, which is needed for the "
                "addresses of buffers: choose another device (OCL_ICD_VENDORS names drivers)",
                out->name, out->driver);
  out->bytes = static_cast<int64_t>(info<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE));
  out->block_bytes = static_cast<int64_t>(info<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE));
  out->groups.most_threads = static_cast<int64_t>(info<size_t>(id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
  const auto in_group = info<std::array<size_t, 3>>(id, CL_DEVICE_MAX_WORK_ITEM_SIZES);
  for (size_t axis = 0; axis < in_group.size(); ++axis)
    out->groups.most_in_group[axis] = static_cast<int64_t>(in_group[axis]);
  out->groups.local_bytes = static_cast<int64_t>(info<cl_ulong>(id, CL_DEVICE_LOCAL_MEM_SIZE));
  out->groups.multiprocessors = info<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS);
  const auto lanes = info<cl_uint>(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT);
  out->vector_bytes = std::clamp(static_cast<int>(lanes) * 4, 16, 64);
  out->is_cpu = (info<cl_device_type>(id, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU) != 0;
  out->has_double = info<cl_device_fp_config>(id, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
  const std::string extensions = text(id, CL_DEVICE_EXTENSIONS);
  out->adds_64_bits = extensions.find("cl_khr_int64_base_atomics") != std::string::npos;
  out->command_buffers = command_buffers_of(id, extensions);
  const auto single = info<cl_device_fp_config>(id, CL_DEVICE_SINGLE_FP_CONFIG);
  out->has_fma = (single & CL_FP_FMA) != 0;
  const cl_device_fp_config exact = CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT | CL_FP_DENORM;
  out->rounds_right = (single & exact) == exact;
  cl_int status = CL_SUCCESS;
  out->context = api().clCreateContext(nullptr, 1, &id, nullptr, nullptr, &status);
  check(status, "making a context");
  out->service = make_queue(*out);
  std::atexit([] { offered().ending = true; });  // behind those of the driver, so it runs before
  return out;
}

}  // namespace

cl_command_queue make_queue(const Hardware& on) {
  cl_int status = CL_SUCCESS;
  const cl_command_queue out =
      api().clCreateCommandQueueWithProperties(on.context, on.id, nullptr, &status);
  check(status, "making a queue");
  return out;
}

size_t hardware_count() { return offered().devices.size(); }

const Hardware& hardware(size_t n) {
  Offered& all = offered();
  const size_t number = n % all.devices.size();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Hardware>& slot = all.started[number];
  if (!slot) slot = start(number);
  return *slot;
}

bool Hardware::is_usable() const { return getpid() == offered().process && !offered().ending; }

void Hardware::require_usable() const {
  KOINE_REQUIRE(getpid() == offered().process, Device,
                "device CL: OpenCL was started before this process was forked, and its threads are "
                "not here: use the device CL only after the fork");
  KOINE_REQUIRE(!offered().ending, Device,
                "device CL: the process ends, and OpenCL with it: compute before the end of main");
}

Target Hardware::target(bool strict) const {
  KOINE_REQUIRE(!strict || rounds_right, Device,
                "device CL: KOINE_FP=strict needs float32 with denormals and correctly rounded "
                "division and square root, which '{}' does not offer",
                name);
  Target t;
  t.name = fmt::format("opencl{}-{}-{}{}", number, name, driver, strict ? "-strict" : "");
  t.has_fma = has_fma;
  t.strict = strict;
  t.atomic_bytes = adds_64_bits ? 8 : 4;
  t.row_bytes = std::min(is_cpu ? t.row_bytes : int64_t{32} << 10, groups.local_bytes);
  if (is_cpu) {
    t.vector_bytes = vector_bytes;
    t.vector_registers = vector_bytes == 64 ? 32 : 16;
    t.has_threads = true;
  } else {
    t.groups = groups;
  }
  give_cores(t, [](const TensorCore&) { return false; });
  return t;
}

}  // namespace koine::cl

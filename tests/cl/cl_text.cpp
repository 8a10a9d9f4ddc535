#include "cl_text.hpp"

#include <stdexcept>

#include "backends.hpp"
#include "koine/runtime/cl/device.hpp"
#include "koine/runtime/cl/events.hpp"
#include "koine/runtime/device.hpp"

namespace koine::test {
namespace {

std::string build_log(cl_program program) {
  size_t bytes = 0;
  const cl_device_id id = cl::hardware(0).id;
  cl::api().clGetProgramBuildInfo(program, id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &bytes);
  std::string out(bytes, '\0');
  cl::api().clGetProgramBuildInfo(program, id, CL_PROGRAM_BUILD_LOG, bytes, out.data(), nullptr);
  return out;
}

}  // namespace

ClLibrary::ClLibrary(const std::string& source) {
  const cl::Hardware& on = cl::hardware(0);
  const char* begin = source.c_str();
  cl_int status = CL_SUCCESS;
  program_ = {cl::api().clCreateProgramWithSource(on.context, 1, &begin, nullptr, &status),
              [](cl_program p) { cl::api().clReleaseProgram(p); }};
  cl::check(status, "making a program");
  // Strict texts round as IEEE 754 says; what that asks of a compiler, a user tells it so as well.
  const char* rounding = on.rounds_right ? "-cl-fp32-correctly-rounded-divide-sqrt" : "";
  if (cl::api().clBuildProgram(program_.get(), 1, &on.id, rounding, nullptr, nullptr) != CL_SUCCESS)
    throw std::runtime_error("OpenCL refuses: " + build_log(program_.get()) + "\n" + source);
}

void ClLibrary::run(const std::string& name, const std::vector<Given>& parameters,
                    const Signature& signature, const std::vector<int64_t>& variables) const {
  DeviceRuntime& device = device_runtime("CL");
  cl_int status = CL_SUCCESS;
  const std::shared_ptr<std::remove_pointer_t<cl_kernel>> kernel(
      cl::api().clCreateKernel(program_.get(), name.c_str(), &status),
      [](cl_kernel k) { cl::api().clReleaseKernel(k); });
  cl::check(status, "finding " + name);
  std::vector<std::shared_ptr<Memory>> memory;
  for (const Given& p : parameters) {
    memory.push_back(device.allocate(p.bytes));
    memory.back()->copy_in(p.data, 0, p.bytes);
    cl::check(cl::api().clSetKernelArgSVMPointer(
                  kernel.get(), static_cast<cl_uint>(memory.size() - 1), memory.back()->address()),
              "an argument of " + name);
  }
  auto number = static_cast<cl_uint>(memory.size());
  for (const cl_long value : variables)
    cl::check(cl::api().clSetKernelArg(kernel.get(), number++, sizeof value, &value),
              "a Variable of " + name);
  const cl::WorkSize size = cl::work_size(signature, variables);
  cl_event end = nullptr;
  cl::check(
      cl::api().clEnqueueNDRangeKernel(cl::hardware(0).service, kernel.get(), 3, nullptr,
                                       size.global.data(), size.local.data(), 0, nullptr, &end),
      "launching " + name);
  cl::Events events;
  events.add(end);
  events.wait();
  for (size_t i = 0; i < memory.size(); ++i)
    memory[i]->copy_out(parameters[i].data, 0, parameters[i].bytes);
  ran_on("CL");
}

std::string groups_device() {
  register_device("GROUPS", "", [](const std::string& name) {
    static const cl::Hardware& taken = *[] {
      auto* out = new cl::Hardware(cl::hardware(0));
      out->is_cpu = false;
      out->number = most_devices;
      return out;
    }();
    return make_cl_device(name, taken);
  });
  return "GROUPS";
}

}  // namespace koine::test

#pragma once
#include <memory>
#include <string>

#include "koine/runtime/device.hpp"

namespace koine {
namespace cl {
struct Hardware;
}

/// The device "CL:n": hardware that OpenCL offers, number n modulo how many there are, with memory
/// and a queue of its own. Throws Error (Device) that says what is missing.
std::unique_ptr<DeviceRuntime> make_cl_device(const std::string& name);
/// The same on given hardware, which lives as long as the process.
std::unique_ptr<DeviceRuntime> make_cl_device(const std::string& name, const cl::Hardware& on);

}  // namespace koine

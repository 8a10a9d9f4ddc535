#pragma once
#include <memory>
#include <string>

#include "koine/runtime/device.hpp"

namespace koine {

/// This host's target, or the feature level that KOINE_CPU names. Throws Error where the level is
/// unknown or above what the host has.
Target cpu_target();

/// A CPU device compiled by LLVM in process. Devices "CPU:n" share the compiler and the worker team
/// and have memory of their own.
std::unique_ptr<DeviceRuntime> make_cpu_device(const std::string& name);

}  // namespace koine

#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "koine/runtime/device.hpp"

namespace koine {

/// This host's target, or the feature level that KOINE_CPU names. Throws Error where the level is
/// unknown or above what the host has.
Target cpu_target();
/// The feature levels, lowest first; whether this host has the instructions of one; and what a
/// machine of that level can do (of "": this host), to compile for it wherever it is.
const std::vector<std::string_view>& cpu_levels();
bool host_runs(std::string_view level);
Target cpu_target(std::string_view level, bool strict);

/// A CPU device compiled by LLVM in process. Devices "CPU:n" share the compiler and the worker team
/// and have memory of their own.
std::unique_ptr<DeviceRuntime> make_cpu_device(const std::string& name);

}  // namespace koine

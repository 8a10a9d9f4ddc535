#pragma once
#include <koine/runtime/device.hpp>
#include <memory>

namespace koine::python {

/// A program, and what runs it.
struct LoadedProgram {
  std::shared_ptr<Program> program;
  DeviceRuntime* device;
};

}  // namespace koine::python

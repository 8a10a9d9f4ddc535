#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "koine/runtime/cl/api.hpp"
#include "koine/target/target.hpp"

namespace koine::cl {

/// A device that OpenCL offers, with a context of its own. Lives as long as the process.
struct Hardware {
  size_t number;  ///< among all that are offered
  cl_device_id id;
  cl_context context;
  cl_command_queue service;  ///< for copies to and from the host, and launches that it waits for
  std::string name, driver;
  int64_t bytes, block_bytes;  ///< of memory, and of one block at most
  Groups groups;               ///< of work items, as far as the hardware goes
  int vector_bytes;
  bool is_cpu, has_double, has_fma;
  bool adds_64_bits;  ///< at once: the atomics of 64 bits of an extension
  /// Where lists of launches can be recorded, to be launched again while they still run.
  std::optional<CommandBuffers> command_buffers;
  bool rounds_right;  ///< division and square root of float32 are correctly rounded, with denormals

  /// False in a fork of the process that started OpenCL, whose threads are not there, and when the
  /// process ends: drivers take themselves down in functions of `atexit`.
  bool is_usable() const;
  /// Throws Error (Device) that says why it is not.
  void require_usable() const;
  /// A CPU has threads, which are work items without a group, and registers of vectors; all else
  /// has groups.
  Target target(bool strict) const;
};

/// How many there are. Throws Error (Device) that says what is missing where there is none.
size_t hardware_count();
/// The one that device CL:n is on: n modulo how many there are.
const Hardware& hardware(size_t n);

cl_command_queue make_queue(const Hardware& on);

}  // namespace koine::cl

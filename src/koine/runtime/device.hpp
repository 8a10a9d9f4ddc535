#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "koine/lower/pipeline.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// A block of device memory; returns to its allocator when the last owner goes.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual std::byte* data() = 0;
  virtual int64_t bytes() const = 0;
};

/// Arguments of one launch: a pointer a buffer slot, a value a Variable (sorted by name).
struct Launch {
  std::span<std::byte* const> buffers;
  std::span<const int64_t> buffer_bytes;
  std::span<const int64_t> variables;
};

/// A compiled kernel.
class Program {
 public:
  explicit Program(LoweredKernel kernel) : kernel_(std::move(kernel)) {}
  virtual ~Program() = default;
  /// Runs to completion. Safe from several threads at once.
  virtual void run(const Launch& launch) = 0;
  const std::string& name() const { return kernel_.name; }
  const LoweredKernel& kernel() const { return kernel_; }
  /// Readable source, for reports.
  virtual std::string source() const = 0;

 protected:
  LoweredKernel kernel_;
};

/// Memory, a compiler and a way to run: what the engine needs of a device.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual const std::string& name() const = 0;
  virtual const Target& target() const = 0;
  /// Contents are arbitrary. Throws Error (Memory) naming the size when there is not enough.
  virtual std::shared_ptr<Memory> allocate(int64_t bytes) = 0;
  /// Safe from several threads at once.
  virtual std::shared_ptr<Program> compile(LoweredKernel kernel) = 0;
  /// False for a device whose kernels do nothing: memory then holds no results.
  virtual bool computes() const { return true; }
  /// Bytes in live blocks, and in blocks kept for reuse.
  virtual int64_t bytes_in_use() const = 0;
  virtual int64_t bytes_cached() const = 0;
};

/// The runtime of "CPU", "CPU:1", "INTERP", "NULL". Throws Error (Device) listing what exists.
DeviceRuntime& device_runtime(const std::string& name);
/// One line a device kind: name and description.
std::vector<std::pair<std::string, std::string>> device_list();
/// The device of tensors that name none: KOINE_DEVICE, else CPU.
std::string default_device();

}  // namespace koine

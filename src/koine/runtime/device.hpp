#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "koine/base/compile_options.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/blob.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// A block of device memory; returns to its allocator when the last owner goes. The bytes are what
/// the device's queue has made of them: waiting for it comes first.
class Memory {
 public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Where the programs of the device find it.
  std::byte* address() const { return address_; }
  int64_t bytes() const { return bytes_; }
  /// Where the host finds it; null where it cannot.
  virtual std::byte* data() { return address_; }
  /// Copies from the host to bytes [offset, offset + bytes), and back.
  virtual void copy_in(const void* from, int64_t offset, int64_t bytes);
  virtual void copy_out(void* to, int64_t offset, int64_t bytes);
  /// Whether somebody outside of all graphs reads it or owns it: programs do not write it in place.
  bool is_shared() const { return readers_.load(std::memory_order_acquire) > 0; }
  void add_reader() { readers_.fetch_add(1, std::memory_order_acq_rel); }
  void remove_reader() { readers_.fetch_sub(1, std::memory_order_acq_rel); }
  /// Whether somebody else owns the bytes, who may write them at any time.
  bool is_borrowed() const { return borrowed_; }

 protected:
  Memory(std::byte* address, int64_t bytes, bool borrowed = false)
      : address_(address), bytes_(bytes), borrowed_(borrowed) {}

 private:
  std::byte* address_;
  int64_t bytes_;
  bool borrowed_;
  std::atomic<int64_t> readers_{0};
};

/// Memory of the host that somebody else owns; `owner` is let go with it. It is never written.
std::shared_ptr<Memory> borrowed_memory(const void* data, int64_t bytes,
                                        std::shared_ptr<const void> owner);

/// Moves bytes from one block to another, on whatever devices they lie.
void copy_bytes(Memory& to, int64_t to_offset, Memory& from, int64_t from_offset, int64_t bytes);

/// Gives out the memory of a device.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// Contents are arbitrary. Throws Error (Memory) naming the size when there is not enough.
  virtual std::shared_ptr<Memory> allocate(int64_t bytes) = 0;
  /// Bytes in live blocks, and in blocks kept for reuse.
  virtual int64_t bytes_in_use() const = 0;
  virtual int64_t bytes_cached() const = 0;
};

/// Arguments of one launch: an address a buffer slot, a value a Variable (sorted by name).
struct Launch {
  std::span<std::byte* const> buffers;
  std::span<const int64_t> buffer_bytes;
  std::span<const int64_t> variables;
};

/// A compiled kernel, loaded.
class Program {
 public:
  explicit Program(LoweredKernel kernel) : kernel_(std::move(kernel)) {}
  virtual ~Program() = default;
  /// Runs to completion. Safe from several threads at once.
  virtual void run(const Launch& launch) = 0;
  const std::string& name() const { return kernel_.name; }
  const LoweredKernel& kernel() const { return kernel_; }
  /// The kind of device that it is for, such as "CPU".
  virtual std::string_view device() const = 0;
  /// Threads that share a launch; 1 of a kernel that is shaped for groups of them.
  int64_t threads() const;
  /// Groups of a launch, and threads of a group, along each axis: index scalars over the Variables;
  /// 1 where the device has no groups.
  virtual std::array<UOp, 3> grid() const;
  std::array<UOp, 3> group() const;
  /// The Variables that a launch gives values of, in their order.
  std::vector<std::string> variables() const;
  /// Operations on values, and bytes moved to and from memory: estimates, for the largest sizes.
  double operations() const { return kernel_.estimate.operations; }
  double bytes() const { return kernel_.estimate.bytes; }
  /// Readable source, for reports.
  virtual std::string source() const = 0;

 protected:
  LoweredKernel kernel_;
};

/// Makes blobs of kernels, and programs of blobs. Safe from several threads at once.
class Compiler {
 public:
  virtual ~Compiler() = default;
  /// What it compiles for.
  virtual const Target& target(const CompileOptions& how) const = 0;
  virtual Blob compile(LoweredKernel kernel) = 0;
  /// Throws Error (Device) where the blob was made for another target.
  virtual std::shared_ptr<Program> load(Blob blob) = 0;
  /// Programs that nobody keeps as blobs.
  virtual std::vector<std::shared_ptr<Program>> make(std::vector<LoweredKernel> kernels);
  /// Whether `make` of many is much quicker than of each, on several threads.
  virtual bool makes_together() const { return false; }
};

/// One launch that is handed to a queue; what it names lives until the queue has come past it.
struct Command {
  Program* program;
  Launch launch;
};
/// A copy into memory of a queue's device; the same holds for its memory.
struct Transfer {
  Memory* to;
  int64_t to_offset;
  Memory* from;
  int64_t from_offset;
  int64_t bytes;
};

/// Runs what it is handed in order. Queues of several devices run beside each other, but for what
/// `follow` says. The number of a submission is an event: that all up to it has run.
class Queue {
 public:
  virtual ~Queue() = default;
  /// Gives its number. A failure surfaces here or in `wait`.
  virtual uint64_t submit(std::span<const Command> commands) = 0;
  virtual uint64_t submit(const Transfer& transfer) = 0;
  /// What is submitted from now on runs after this event of another queue. False where the two
  /// cannot see to it: then the host waits for the event before it submits.
  virtual bool follow(Queue& other, uint64_t submission) = 0;
  virtual bool has_run(uint64_t submission) = 0;
  virtual void wait(uint64_t submission) = 0;
};

/// A queue that has run all it is handed when `submit` returns.
class HostQueue : public Queue {
 public:
  uint64_t submit(std::span<const Command> commands) override;
  uint64_t submit(const Transfer& transfer) override;
  bool follow(Queue& other, uint64_t submission) override { return other.has_run(submission); }
  bool has_run(uint64_t) override { return true; }
  void wait(uint64_t) override {}
};

/// An allocator, a compiler, programs, and a queue for them: what the engine needs of a device.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual const std::string& name() const = 0;
  virtual Allocator& allocator() = 0;
  virtual Compiler& compiler() = 0;
  virtual Queue& queue() = 0;
  /// False for a device whose kernels do nothing: memory then holds no results.
  virtual bool computes() const { return true; }
  /// The process that has it, of those that run the program together (`runtime/ranks`): all of them
  /// read its memory at once. None: each process has a device of this name.
  virtual std::optional<size_t> rank() const { return {}; }
  /// Whether memory holds what was computed.
  bool has_results() const { return computes() || rank(); }

  const Target& target(const CompileOptions& how) { return compiler().target(how); }
  const Target& target() { return target(compile_options()); }
  std::shared_ptr<Memory> allocate(int64_t bytes) { return allocator().allocate(bytes); }
  std::shared_ptr<Program> compile(LoweredKernel kernel) {
    return compiler().make({std::move(kernel)})[0];
  }
};

/// Numbers of devices are below this.
constexpr size_t most_devices = 64;

/// Makes the runtime of a device by its whole name, such as "CPU:1".
using DeviceFactory = std::unique_ptr<DeviceRuntime> (*)(const std::string& name);
/// Adds a kind of device, or replaces it for runtimes that are not made yet. `description` is for
/// `device_list`; a kind without one is not listed.
void register_device(std::string kind, std::string description, DeviceFactory make);

/// The runtime of "CPU", "CPU:1", "INTERP", "NULL". Throws Error (Device) listing what exists.
DeviceRuntime& device_runtime(Device device);
DeviceRuntime& device_runtime(const std::string& name);
/// The options for a program, whose kernels have rows that fit on each of its devices. What lies on
/// none runs on `device`.
CompileOptions options_for(const UOp& program, const std::string& device, CompileOptions how);
/// The same for kernels that are all for one target, whatever device the buffers name: for texts.
CompileOptions options_for(const Target& target, CompileOptions how = compile_options());
/// One line a device kind: name and description.
std::vector<std::pair<std::string, std::string>> device_list();
/// The device of tensors that name none: KOINE_DEVICE, else CPU.
std::string default_device();

}  // namespace koine

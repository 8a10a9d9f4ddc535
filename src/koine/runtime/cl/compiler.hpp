#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include "koine/ir/linear.hpp"
#include "koine/runtime/cl/hardware.hpp"
#include "koine/runtime/device.hpp"

namespace koine::cl {

/// Work items of a launch along three axes: in all, and of a group.
struct WorkSize {
  std::array<size_t, 3> global, local;
  bool is_empty() const;
};
/// A kernel without groups has an item a thread, each a group of its own: drivers of CPUs compile
/// that as it is written. `values` are those of the signature's Variables.
WorkSize work_size(const Signature& signature, std::span<const int64_t> values);

/// A program of OpenCL: one or several kernels.
using BuiltProgram = std::shared_ptr<std::remove_pointer_t<cl_program>>;
/// A function of one, with the arguments that it was given last.
using OwnedKernel = std::unique_ptr<std::remove_pointer_t<cl_kernel>, cl_int (*)(cl_kernel)>;

class ClProgram : public Program {
 public:
  /// `function`: what the program calls the kernel.
  ClProgram(LoweredKernel kernel, const Hardware& on, BuiltProgram program, std::string function);
  std::string_view device() const override { return "CL"; }
  void run(const Launch& launch) override;
  /// The event of its end, which the caller releases; null where there are no work items.
  cl_event enqueue(cl_command_queue queue, const Launch& launch);
  /// Adds the launch to a command buffer. The kernel that it runs is to live as long: PoCL 3.1
  /// reads its arguments when the buffer runs. Null where the driver refuses.
  OwnedKernel record(const CommandBuffers& with, cl_command_buffer_khr to, const Launch& launch);
  /// Another one for each program of the process.
  uint64_t number() const { return number_; }
  std::array<UOp, 3> grid() const override;
  std::string source() const override;

 private:
  OwnedKernel make_kernel() const;
  void set_arguments(cl_kernel kernel, const Launch& launch) const;

  const Hardware& on_;
  Signature signature_;
  BuiltProgram program_;
  std::string function_;
  const uint64_t number_;
  std::mutex mutex_;  // arguments are set one by one, and belong to the kernel
  OwnedKernel for_launches_;
};

/// That of all devices on a hardware. A blob holds OpenCL's binary of its kernel.
class ClCompiler : public Compiler {
 public:
  explicit ClCompiler(const Hardware& on);
  const Target& target(const CompileOptions& how) const override;
  Blob compile(LoweredKernel kernel) override;
  std::shared_ptr<Program> load(Blob blob) override;
  /// Of one text: a driver spends most of its time on what each text begins with.
  std::vector<std::shared_ptr<Program>> make(std::vector<LoweredKernel> kernels) override;
  bool makes_together() const override { return true; }

 private:
  const Hardware& on_;
  Target plain_;
  std::optional<Target> strict_;
};

}  // namespace koine::cl

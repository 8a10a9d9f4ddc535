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
};
/// A kernel without groups has an item a thread, each a group of its own: drivers of CPUs compile
/// that as it is written. `values` are those of the signature's Variables.
WorkSize work_size(const Signature& signature, std::span<const int64_t> values);

/// A program of OpenCL: one or several kernels.
using BuiltProgram = std::shared_ptr<std::remove_pointer_t<cl_program>>;

class ClProgram : public Program {
 public:
  /// `function`: what the program calls the kernel.
  ClProgram(LoweredKernel kernel, const Hardware& on, BuiltProgram program,
            const std::string& function);
  ~ClProgram() override;
  std::string_view device() const override { return "CL"; }
  void run(const Launch& launch) override;
  /// The event of its end, which the caller releases; null where there are no work items.
  cl_event enqueue(cl_command_queue queue, const Launch& launch);
  std::array<UOp, 3> grid() const override;
  std::string source() const override;

 private:
  const Hardware& on_;
  Signature signature_;
  BuiltProgram program_;
  std::mutex mutex_;  // arguments are set one by one, and belong to the kernel
  cl_kernel function_;
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

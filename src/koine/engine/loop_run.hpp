#pragma once
#include <map>
#include <memory>
#include <vector>

#include "koine/engine/executable.hpp"
#include "koine/engine/located.hpp"
#include "koine/ir/loop.hpp"

namespace koine {

/// The host programs of a loop (`lower/loops`), compiled. Immutable.
struct LoopProgram {
  LoopProgram(const UOp& call, size_t buffers, const std::string& device, const StageChange& change,
              const CompileOptions& how);

  Loop loop;
  size_t results;
  std::vector<std::shared_ptr<const Executable>> functions;
  std::vector<DeviceRuntime*> of_carries;  ///< where each of them lies
  struct Own {
    DeviceRuntime* device;
    int64_t bytes;
  };
  /// Memory of slots behind the buffers of the launch and the flag, by function.
  std::vector<std::map<size_t, Own>> own;
};

/// A loop with memory of its own, which its Submission runs with the buffers of its launch.
class LoopRun {
 public:
  LoopRun(std::shared_ptr<const LoopProgram> program, DeviceRuntime& device);

  /// Runs to completion: the host counts the steps and looks at conditions. `buffers` are the
  /// results, then the arguments.
  void run(const std::vector<Located>& buffers, const VariableValues& variables);

 private:
  void scan(const std::vector<Located>& buffers, const VariableValues& variables);
  void repeat(const std::vector<Located>& buffers);
  void branch(const std::vector<Located>& buffers);
  /// Where the carries are found, and where a step leaves them.
  void pass_carries(Submission& function, const std::vector<Located>& from,
                    const std::vector<Located>& to) const;
  /// One of the two places of each carry; the first is the result.
  const std::vector<Located>& place(int64_t turn) const { return places_[turn & 1]; }
  void make_places(const std::vector<Located>& buffers);
  void run_function(size_t number);
  /// The value of a carry.
  void copy(size_t carry, const Located& to, const Located& from);
  void count_runs();

  std::shared_ptr<const LoopProgram> program_;
  DeviceRuntime& device_;
  std::vector<Submission> functions_;
  std::vector<int64_t> runs_;  // of each function
  std::vector<size_t> carries_;
  std::vector<Located> first_, places_[2];
  std::map<DeviceRuntime*, std::shared_ptr<Memory>> spare_;  // the other places of the carries
  Located flag_;
};

}  // namespace koine

#include "koine/runtime/cpu/cpu.hpp"

#include <unistd.h>

#include <memory>
#include <thread>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/base/team.hpp"
#include "koine/ir/linear.hpp"
#include "koine/render/c.hpp"
#include "koine/runtime/allocator.hpp"
#include "koine/runtime/cpu/jit.hpp"

namespace koine {
namespace {

bool has_feature(const std::string& features, std::string_view name) {
  return ("," + features + ",").find(fmt::format(",+{},", name)) != std::string::npos;
}

int worker_count() {
  const int wanted = options().threads;
  if (wanted > 0) return wanted - 1;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())) - 1;
}

// The team is made for the current number of threads; tests change it.
Team& team() {
  static std::mutex mutex;
  static std::unique_ptr<Team> instance;
  static int size = -1;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  const int wanted = worker_count();
  if (owner != getpid()) {  // a forked child has no workers: make its own
    (void)instance.release();
    owner = getpid();
    size = -1;
  }
  if (size != wanted) {
    instance = std::make_unique<Team>(wanted);
    size = wanted;
  }
  return *instance;
}

class CpuProgram : public Program {
 public:
  CpuProgram(LoweredKernel kernel, std::shared_ptr<JitCode> code)
      : Program(std::move(kernel)),
        code_(std::move(code)),
        threads_(signature_of(kernel_.linear).threads) {}

  void run(const Launch& launch) override {
    if (threads_ == 1) {
      code_->function()(launch.buffers.data(), launch.variables.data(), 0);
      return;
    }
    struct Job {
      KernelFunction function;
      const Launch& launch;
    } job{code_->function(), launch};
    team().run(
        [](void* context, int64_t i) {
          const Job& j = *static_cast<Job*>(context);
          j.function(j.launch.buffers.data(), j.launch.variables.data(), i);
        },
        &job, threads_);
  }
  std::string source() const override { return render_c(kernel_.linear, kernel_.name, false); }

 private:
  std::shared_ptr<JitCode> code_;
  int64_t threads_;
};

class CpuDevice : public DeviceRuntime {
 public:
  explicit CpuDevice(std::string name) : name_(std::move(name)), allocator_(name_) {}
  const std::string& name() const override { return name_; }
  const Target& target() const override {
    // Options may change between tests: the target follows them.
    const std::string key = options().cpu + (options().strict ? "!" : "");
    const std::lock_guard lock(mutex_);
    auto& slot = targets_[key];
    if (!slot) slot = std::make_unique<Target>(cpu_target());
    return *slot;
  }
  std::shared_ptr<Memory> allocate(int64_t bytes) override { return allocator_.allocate(bytes); }
  std::shared_ptr<Program> compile(LoweredKernel kernel) override {
    auto code = jit_compile(kernel.linear, target());
    return std::make_shared<CpuProgram>(std::move(kernel), std::move(code));
  }
  int64_t bytes_in_use() const override { return allocator_.bytes_in_use(); }
  int64_t bytes_cached() const override { return allocator_.bytes_cached(); }

 private:
  std::string name_;
  CachingAllocator allocator_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<Target>> targets_;
};

}  // namespace

Target cpu_target() {
  Target t;
  const std::string host = host_cpu_features();
  const std::string& level = options().cpu;
  const bool v4_host = has_feature(host, "avx512f") && has_feature(host, "avx512vl") &&
                       has_feature(host, "avx512bw") && has_feature(host, "avx512dq");
  const bool v3_host = has_feature(host, "avx2") && has_feature(host, "fma");
  if (level.empty()) {
    t.cpu = host_cpu_name();
    t.features = host;
  } else {
    KOINE_REQUIRE(level == "x86-64-v2" || level == "x86-64-v3" || level == "x86-64-v4", Value,
                  "KOINE_CPU={}: expected x86-64-v2, x86-64-v3 or x86-64-v4", level);
    KOINE_REQUIRE((level != "x86-64-v3" || v3_host) && (level != "x86-64-v4" || v4_host), Device,
                  "KOINE_CPU={}: this host ({}) lacks its instructions", level, host_cpu_name());
    t.cpu = level;
  }
  const bool v4 = level.empty() ? v4_host : level == "x86-64-v4";
  const bool v3 = level.empty() ? v3_host : level != "x86-64-v2";
  t.vector_bytes = v4 ? 64 : v3 ? 32 : 16;
  t.vector_registers = v4 ? 32 : 16;
  t.has_fma = v3 || v4;
  t.has_threads = true;
  t.strict = options().strict;
  t.name = fmt::format("cpu-{}{}", level.empty() ? t.cpu : level, t.strict ? "-strict" : "");
  return t;
}

std::unique_ptr<DeviceRuntime> make_cpu_device(const std::string& name) {
  return std::make_unique<CpuDevice>(name);
}

}  // namespace koine

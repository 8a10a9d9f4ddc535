#include "koine/runtime/cpu/cpu.hpp"

#include <unistd.h>

#include <algorithm>
#include <memory>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/base/team.hpp"
#include "koine/ir/linear.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/runtime/allocator.hpp"
#include "koine/runtime/cpu/jit.hpp"

namespace koine {
namespace {

bool has_feature(const std::string& features, std::string_view name) {
  return ("," + features + ",").find(fmt::format(",+{},", name)) != std::string::npos;
}

int worker_count() {
  const int wanted = options().threads;
  return (wanted > 0 ? wanted : core_count()) - 1;
}

// The team is made for the current number of threads; tests change it.
Team& team() {
  static std::mutex mutex;
  static auto& instance = *new std::unique_ptr<Team>;
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
  std::string_view device() const override { return "CPU"; }
  std::string source() const override { return render("c", kernel_.name, kernel_.linear, false); }

 private:
  std::shared_ptr<JitCode> code_;
  int64_t threads_;
};

Target target_for(const CompileOptions& how) {
  const std::string& level = how.cpu;
  const auto& levels = cpu_levels();
  KOINE_REQUIRE(level.empty() || std::find(levels.begin(), levels.end(), level) != levels.end(),
                Value, "KOINE_CPU={}: expected one of {}", level, fmt::join(levels, ", "));
  KOINE_REQUIRE(level.empty() || host_runs(level), Device,
                "KOINE_CPU={}: this host ({}) lacks its instructions", level, host_cpu_name());
  return cpu_target(level, how.strict);
}

// That of all CPU devices.
class CpuCompiler : public Compiler {
 public:
  const Target& target(const CompileOptions& how) const override {
    const std::string key = how.cpu + (how.strict ? "!" : "");
    const std::lock_guard lock(mutex_);
    auto& slot = targets_[key];
    if (!slot) slot = std::make_unique<Target>(target_for(how));
    return *slot;
  }
  Blob compile(LoweredKernel kernel) override {
    const Target& made_for = target(kernel.how);
    std::string code = compile_object(kernel.linear, made_for);
    return {std::move(kernel), blob_target(made_for), std::move(code)};
  }
  std::shared_ptr<Program> load(Blob blob) override {
    require_target(blob, target(blob.kernel.how));
    return std::make_shared<CpuProgram>(std::move(blob.kernel), load_object(blob.code));
  }

 private:
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::unique_ptr<Target>> targets_;
};

class CpuDevice : public DeviceRuntime {
 public:
  explicit CpuDevice(std::string name) : name_(std::move(name)), allocator_(name_) {}
  const std::string& name() const override { return name_; }
  Allocator& allocator() override { return allocator_; }
  Compiler& compiler() override {
    static auto& shared = *new CpuCompiler;
    return shared;
  }
  Queue& queue() override { return queue_; }

 private:
  std::string name_;
  CachingAllocator allocator_;
  HostQueue queue_;
};

}  // namespace

bool host_runs(std::string_view level) {
  static const auto& host = *new const std::string(host_cpu_features());
  auto all = [](std::initializer_list<std::string_view> features) {
    return std::all_of(features.begin(), features.end(),
                       [](std::string_view f) { return has_feature(host, f); });
  };
  if (level == "x86-64-v4") return all({"avx512f", "avx512vl", "avx512bw", "avx512dq"});
  return level != "x86-64-v3" || all({"avx2", "fma"});
}

Target cpu_target(std::string_view level, bool strict) {
  Target t;
  t.cpu = level.empty() ? host_cpu_name() : level;
  if (level.empty()) t.features = host_cpu_features();
  const bool v4 = level.empty() ? host_runs("x86-64-v4") : level == "x86-64-v4";
  const bool v3 = level.empty() ? host_runs("x86-64-v3") : level != "x86-64-v2";
  t.vector_bytes = v4 ? 64 : v3 ? 32 : 16;
  t.vector_registers = v4 ? 32 : 16;
  t.has_fma = v3 || v4;
  t.has_threads = true;
  t.strict = strict;
  t.name = fmt::format("cpu-{}{}", t.cpu, t.strict ? "-strict" : "");
  give_cores(t, [&](const TensorCore& core) {
    return v4 && !core.feature.empty() && has_feature(t.features, core.feature);
  });
  return t;
}

Target cpu_target() { return target_for(compile_options()); }

const std::vector<std::string_view>& cpu_levels() {
  static const auto& levels =
      *new const std::vector<std::string_view>{"x86-64-v2", "x86-64-v3", "x86-64-v4"};
  return levels;
}

std::unique_ptr<DeviceRuntime> make_cpu_device(const std::string& name) {
  return std::make_unique<CpuDevice>(name);
}

}  // namespace koine

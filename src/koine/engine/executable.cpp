#include "koine/engine/executable.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/base/team.hpp"
#include "koine/base/timer.hpp"
#include "koine/engine/checks.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// Programs by kernel and target. Kernels number their slots and axes from 0, so equal work is one
// node whatever it works on.
class ProgramCache {
 public:
  std::shared_ptr<Program> find(const UOp& ast, const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto it = programs_.find(ast);
    if (it == programs_.end()) return nullptr;
    const auto found = it->second.find(key);
    return found == it->second.end() ? nullptr : found->second;
  }
  void add(const UOp& ast, const std::string& key, std::shared_ptr<Program> program) {
    const std::lock_guard lock(mutex_);
    if (programs_.size() >= most_entries) programs_.clear();  // executables keep what they use
    programs_[ast][key] = std::move(program);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    programs_.clear();
  }

 private:
  static constexpr size_t most_entries = 8192;
  std::mutex mutex_;
  std::unordered_map<UOp, std::map<std::string, std::shared_ptr<Program>>> programs_;
};

ProgramCache& program_cache() {
  static auto* cache = new ProgramCache;
  return *cache;
}

Team& compile_team() {
  static auto* team =
      new Team(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())) - 1);
  return *team;
}

std::string target_key(const DeviceRuntime& device) {
  const std::string& name = device.name();
  return name.substr(0, name.find(':')) + "/" + device.target().name +
         (options().noopt ? "/noopt" : "");
}

void report_kernel(const LoweredKernel& k) {
  if (options().debug >= 4) {
    std::string text;
    for (const Opt& o : k.opts) text += " " + opt_text(o);
    fmt::print(stderr, "opts    {}:{}\n", k.name, text.empty() ? " none" : text);
  }
  if (options().debug >= 6) {
    fmt::print(stderr, "linear  {}\n", k.name);
    for (size_t i = 0; i < k.linear.src().size(); ++i) {
      const UOp& u = k.linear.src(i);
      fmt::print(stderr, "  {:4} {:10} {:8} {}\n", i, op_name(u.op()), dtype_name(u.dtype()),
                 arg_text(u.arg()));
    }
  }
}

std::shared_ptr<Program> compile_kernel(const UOp& ast, DeviceRuntime& device,
                                        const Changes& changes) {
  LoweredKernel lowered = lower_kernel(ast, device.target(), {}, nullptr, changes.graph);
  report_kernel(lowered);
  CheckCounts checks = lowered.checks;
  if (changes.graph) lowered.linear = changes.graph("render", lowered.linear);
  auto program = device.compile(lowered);
  if (options().debug >= 5) fmt::print(stderr, "{}\n", program->source());
  if (options().verify >= 3 && device.computes())
    checks += check_rendered(*program, lowered, device, changes.graph);
  count([&](Counters& c) {
    c.checked_stages += checks.checked;
    c.unchecked_stages += checks.unchecked;
  });
  return program;
}

// Where a step finds a buffer.
struct Ref {
  bool temporary = false;
  size_t index = 0;  // of an argument, or of a Lifetime
};

struct Step {
  std::shared_ptr<Program> program;  // null: a copy between devices
  std::vector<Ref> buffers;
  std::vector<std::string> variables;
};

class Compiled : public Executable {
 public:
  Compiled(const UOp& program, const std::string& device, const Changes& changes)
      : device_(device), changes_(changes) {
    const std::vector<Kernel> kernels = schedule_kernels(program, changes.graph);
    print_schedule(kernels);
    place_temporaries(kernels);
    if (options().verify >= 3) {
      const CheckCounts checks = check_scheduled(program, kernels, changes);
      count([&](Counters& c) {
        c.checked_stages += checks.checked;
        c.unchecked_stages += checks.unchecked;
      });
    }
    compile_all(kernels);
  }

  void run(const std::vector<UOp>& arguments, const VariableValues& variables) override {
    std::vector<std::shared_ptr<Memory>> held;
    for (const UOp& a : arguments) {
      held.push_back(storage::memory(a));
      KOINE_REQUIRE(held.back(), Value, "buffer {} has no memory: it was never computed",
                    a.as<BufferArg>().slot);
    }
    std::shared_ptr<Memory> arena;
    if (!temporaries_.lifetimes.empty())
      arena = device_runtime(device_).allocate(temporaries_.plan.arena_bytes);
    std::vector<std::byte*> pointers;
    std::vector<int64_t> sizes, values;
    const double begin = now_seconds();
    for (const Step& step : steps_) {
      pointers.clear();
      sizes.clear();
      values.clear();
      for (const Ref& r : step.buffers) {
        pointers.push_back(r.temporary ? arena->data() + temporaries_.plan.offsets[r.index]
                                       : held[r.index]->data());
        sizes.push_back(r.temporary ? temporaries_.lifetimes[r.index].bytes
                                    : held[r.index]->bytes());
      }
      for (const std::string& name : step.variables) {
        const auto it = variables.find(name);
        KOINE_REQUIRE(it != variables.end(), Key,
                      "Variable '{}' has no value: bind it in realize()", name);
        values.push_back(it->second);
      }
      run_step(step, {pointers, sizes, values});
    }
    const double seconds = now_seconds() - begin;
    count([&](Counters& c) {
      c.kernels += static_cast<int64_t>(steps_.size());
      c.run_seconds += seconds;
      c.operations += operations_;
      c.bytes += bytes_;
      c.temporary_bytes = std::max(c.temporary_bytes, temporaries_.plan.arena_bytes);
    });
  }

 private:
  static void print_schedule(const std::vector<Kernel>& kernels) {
    if (options().debug < 2) return;
    for (size_t i = 0; i < kernels.size(); ++i) {
      fmt::print(stderr, "kernel  {:3}: {} buffers, {}\n", i, kernels[i].buffers.size(),
                 kernels[i].reason);
      if (options().debug >= 3) fmt::print(stderr, "{}", tree_text(kernels[i].ast));
    }
  }

  void place_temporaries(const std::vector<Kernel>& kernels) {
    temporaries_ = koine::place_temporaries(kernels, changes_.plan);
    for (const Kernel& k : kernels) {
      Step step;
      for (const UOp& b : k.buffers)
        step.buffers.push_back(b.is(Op::Param)
                                   ? Ref{false, static_cast<size_t>(b.as<BufferArg>().slot)}
                                   : Ref{true, temporaries_.number.at(b)});
      steps_.push_back(std::move(step));
    }
  }

  void compile_all(const std::vector<Kernel>& kernels) {
    const double start = now_seconds();
    DeviceRuntime& device = device_runtime(device_);
    const std::string key = target_key(device);
    struct Work {
      std::vector<UOp> asts;
      std::vector<std::shared_ptr<Program>> programs;
      std::vector<std::exception_ptr> errors;
      DeviceRuntime* device;
      const Changes* changes;
    } work{{}, {}, {}, &device, &changes_};
    // Held from here on: the cache may drop any of them, now or by another thread.
    std::unordered_map<UOp, std::shared_ptr<Program>> programs;
    for (const Kernel& k : kernels) {
      if (k.ast.is(Op::CustomFunction) || programs.contains(k.ast)) continue;
      auto& found = programs[k.ast];
      if (!changes_.graph) found = program_cache().find(k.ast, key);
      if (!found) work.asts.push_back(k.ast);
    }
    work.programs.resize(work.asts.size());
    work.errors.resize(work.asts.size());
    compile_team().run(
        [](void* context, int64_t i) {
          auto& w = *static_cast<Work*>(context);
          const auto at = static_cast<size_t>(i);
          try {
            w.programs[at] = compile_kernel(w.asts[at], *w.device, *w.changes);
          } catch (...) {
            w.errors[at] = std::current_exception();
          }
        },
        &work, static_cast<int64_t>(work.asts.size()));
    for (const std::exception_ptr& e : work.errors)
      if (e) std::rethrow_exception(e);
    for (size_t i = 0; i < work.asts.size(); ++i) {
      programs[work.asts[i]] = work.programs[i];
      if (!changes_.graph) program_cache().add(work.asts[i], key, work.programs[i]);
    }
    for (size_t k = 0; k < kernels.size(); ++k) {
      if (kernels[k].ast.is(Op::CustomFunction)) continue;
      steps_[k].program = programs.at(kernels[k].ast);
      steps_[k].variables = signature_of(steps_[k].program->kernel().linear).variables;
      operations_ += steps_[k].program->kernel().estimate.operations;
      bytes_ += steps_[k].program->kernel().estimate.bytes;
    }
    count([&](Counters& c) {
      c.compiled += static_cast<int64_t>(work.asts.size());
      c.compile_seconds += now_seconds() - start;
    });
  }

  static void run_step(const Step& step, const Launch& launch) {
    if (!step.program) {
      std::memcpy(launch.buffers[0], launch.buffers[1],
                  static_cast<size_t>(launch.buffer_bytes[0]));
      return;
    }
    if (options().debug < 1) {
      step.program->run(launch);
      return;
    }
    const double start = now_seconds();
    step.program->run(launch);
    const double seconds = now_seconds() - start;
    const KernelEstimate& e = step.program->kernel().estimate;
    fmt::print(stderr, "run     {:32} {:9.1f} us {:8.2f} GFLOP/s {:8.2f} GB/s\n",
               step.program->name(), seconds * 1e6, e.operations / seconds * 1e-9,
               e.bytes / seconds * 1e-9);
  }

  std::string device_;
  std::vector<Step> steps_;
  Temporaries temporaries_;
  Changes changes_;
  double operations_ = 0, bytes_ = 0;
};

}  // namespace

std::shared_ptr<Executable> build_executable(const UOp& program, const std::string& device,
                                             const Changes& changes) {
  return std::make_shared<Compiled>(program, device, changes);
}

void clear_program_cache() { program_cache().clear(); }

}  // namespace koine

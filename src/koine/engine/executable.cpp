#include "koine/engine/executable.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/base/team.hpp"
#include "koine/base/timer.hpp"
#include "koine/engine/cache.hpp"
#include "koine/engine/checks.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// Programs by kernel and target. Kernels number their slots and axes from 0, so equal work is one
// node whatever it works on.
GraphCache<Program>& program_cache() {
  static auto* cache = new GraphCache<Program>(8192);
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
  dump_stage("render", [&] { return program->source() + "\n"; });
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
  DeviceRuntime* device = nullptr;   // of what it writes
  std::shared_ptr<Program> program;  // null: a copy between devices
  std::vector<Ref> buffers;
  std::vector<std::string> variables;
};

class Compiled : public Executable {
 public:
  Compiled(const UOp& program, const std::string& device, const Changes& changes)
      : device_(device), changes_(changes) {
    for (const UOp& u : toposort(program))
      if (is_variable(u)) variables_.push_back(u);
    const std::vector<Kernel> kernels = schedule_kernels(program, changes.graph);
    print_schedule(kernels);
    place_temporaries(kernels);
    dump_stage("plan", [&] { return plan_text(); });
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
    for (const UOp& v : variables_)
      if (const auto it = variables.find(v.as<BufferArg>().name); it != variables.end())
        require_in_range(v, it->second);
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

  std::string plan_text() const {
    std::string out = fmt::format("an arena of {} bytes\n", temporaries_.plan.arena_bytes);
    for (size_t i = 0; i < temporaries_.lifetimes.size(); ++i) {
      const Lifetime& t = temporaries_.lifetimes[i];
      out +=
          fmt::format("{} {} at {}: {} bytes, kernels {} to {}\n", dtype_name(t.buffer.dtype()),
                      shape_text(t.buffer), temporaries_.plan.offsets[i], t.bytes, t.first, t.last);
    }
    return out;
  }

  void place_temporaries(const std::vector<Kernel>& kernels) {
    temporaries_ = koine::place_temporaries(kernels, changes_.plan);
    for (const Kernel& k : kernels) {
      Step step;
      const Device device = k.buffers[0].device();
      step.device = &device_runtime(device ? device.name() : device_);
      for (const UOp& b : k.buffers)
        step.buffers.push_back(b.is(Op::Param)
                                   ? Ref{false, static_cast<size_t>(b.as<BufferArg>().slot)}
                                   : Ref{true, temporaries_.number.at(b)});
      steps_.push_back(std::move(step));
    }
  }

  void compile_all(const std::vector<Kernel>& kernels) {
    const double start = now_seconds();
    struct Work {
      UOp ast;
      DeviceRuntime* device;
      std::shared_ptr<Program> program;
      std::exception_ptr error;
      const Changes* changes;
    };
    std::vector<Work> missing;
    // Held from here on: the cache may drop any of them, now or by another thread.
    std::map<std::string, std::unordered_map<UOp, std::shared_ptr<Program>>> programs;
    for (size_t k = 0; k < kernels.size(); ++k) {
      const UOp& ast = kernels[k].ast;
      if (ast.is(Op::CustomFunction)) continue;
      const std::string key = target_key(*steps_[k].device);
      const auto [it, fresh] = programs[key].try_emplace(ast);
      if (!fresh) continue;
      if (!changes_.graph) it->second = program_cache().find(ast, key);
      if (!it->second) missing.push_back({ast, steps_[k].device, nullptr, nullptr, &changes_});
    }
    compile_team().run(
        [](void* context, int64_t i) {
          Work& w = (*static_cast<std::vector<Work>*>(context))[static_cast<size_t>(i)];
          try {
            w.program = compile_kernel(w.ast, *w.device, *w.changes);
          } catch (...) {
            w.error = std::current_exception();
          }
        },
        &missing, static_cast<int64_t>(missing.size()));
    for (const Work& w : missing)
      if (w.error) std::rethrow_exception(w.error);
    for (const Work& w : missing) {
      const std::string key = target_key(*w.device);
      programs[key][w.ast] = w.program;
      if (!changes_.graph) program_cache().add(w.ast, key, w.program);
    }
    for (size_t k = 0; k < kernels.size(); ++k) {
      if (kernels[k].ast.is(Op::CustomFunction)) continue;
      steps_[k].program = programs.at(target_key(*steps_[k].device)).at(kernels[k].ast);
      steps_[k].variables = signature_of(steps_[k].program->kernel().linear).variables;
      operations_ += steps_[k].program->kernel().estimate.operations;
      bytes_ += steps_[k].program->kernel().estimate.bytes;
    }
    count([&](Counters& c) {
      c.compiled += static_cast<int64_t>(missing.size());
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

  std::string device_;  // of what lies on no device, such as constants
  std::vector<UOp> variables_;
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

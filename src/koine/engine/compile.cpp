#include "koine/engine/compile.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>
#include <unordered_map>

#include "koine/base/interrupt.hpp"
#include "koine/base/options.hpp"
#include "koine/base/team.hpp"
#include "koine/base/timer.hpp"
#include "koine/engine/cache.hpp"
#include "koine/engine/checks.hpp"
#include "koine/engine/counting.hpp"
#include "koine/engine/literals.hpp"
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
  static auto* team = new Team(core_count() - 1);
  return *team;
}

std::string target_key(DeviceRuntime& device, const CompileOptions& how) {
  const std::string& name = device.name();
  return name.substr(0, name.find(':')) + "/" + device.target(how).name +
         (how.noopt ? "/noopt" : "");
}

void report_kernel(const LoweredKernel& k) {
  if (options().debug >= 4) {
    std::string text;
    for (const Opt& o : k.opts) text += " " + opt_text(o);
    fmt::print(stderr, "opts    {}:{}\n", k.name, text.empty() ? " none" : text);
  }
  if (options().debug >= 6) fmt::print(stderr, "linear  {}\n{}", k.name, linear_text(k.linear));
}

// A program that is being made.
struct Work {
  UOp kernel;
  DeviceRuntime* device;
  std::string key;
  LoweredKernel lowered = {};
  std::shared_ptr<Program> program = nullptr;
};

// Programs that are made one behind the other, or all at once where that is what their compiler is
// good at.
struct Job {
  std::vector<Work*> works;
  const StageChange* change;
  const CompileOptions* how;
  Interruption* interruption;
  std::exception_ptr error = nullptr;
};

void lower(Work& work, const StageChange& change, const CompileOptions& how) {
  const Target& target = work.device->target(how);
  work.lowered = lower_kernel(work.kernel, target, {}, nullptr, change, "rangeify", how);
  report_kernel(work.lowered);
  if (change) work.lowered.linear = change("render", work.lowered.linear);
}

void look_at(const Work& work, const StageChange& change, const CompileOptions& how) {
  dump_stage("render", [&] { return work.program->source() + "\n"; });
  if (options().debug >= 5) fmt::print(stderr, "{}\n", work.program->source());
  CheckCounts checks = work.lowered.checks;
  DeviceRuntime& device = *work.device;
  if (how.verify >= 3 && device.computes())
    checks += check_rendered(*work.program, work.lowered, device, change);
  count_checks(checks);
}

void run(const Job& job) {
  std::vector<LoweredKernel> kernels;
  for (Work* w : job.works) {
    lower(*w, *job.change, *job.how);
    kernels.push_back(w->lowered);
  }
  const auto programs = job.works[0]->device->compiler().make(std::move(kernels));
  for (size_t i = 0; i < programs.size(); ++i) {
    job.works[i]->program = programs[i];
    look_at(*job.works[i], *job.change, *job.how);
  }
}

void compile_in_parallel(std::vector<Work>& works, const StageChange& change,
                         const CompileOptions& how) {
  std::vector<Job> jobs;
  std::map<Compiler*, size_t> together;
  for (Work& w : works) {
    Compiler& compiler = w.device->compiler();
    size_t number = jobs.size();
    if (compiler.makes_together()) number = together.try_emplace(&compiler, number).first->second;
    if (number == jobs.size()) jobs.push_back({{}, &change, &how, interruption_here()});
    jobs[number].works.push_back(&w);
  }
  compile_team().run(
      [](void* context, int64_t i) {
        Job& job = (*static_cast<std::vector<Job>*>(context))[static_cast<size_t>(i)];
        try {
          const Interruptible scope(job.interruption);
          run(job);
        } catch (...) {
          job.error = std::current_exception();
        }
      },
      &jobs, static_cast<int64_t>(jobs.size()));
  for (const Job& job : jobs)
    if (job.error) std::rethrow_exception(job.error);
}

}  // namespace

std::vector<std::shared_ptr<Program>> compile_kernels(const std::vector<CompileRequest>& requests,
                                                      const StageChange& change,
                                                      const CompileOptions& how) {
  const double start = now_seconds();
  std::vector<Work> missing;
  // Held from here on: the cache may drop any of them, now or by another thread.
  std::map<std::string, std::unordered_map<UOp, std::shared_ptr<Program>>> programs;
  std::vector<UOp> kernels;  // by request
  for (const CompileRequest& r : requests) {
    const std::string key = target_key(*r.device, how);
    const UOp& kernel = kernels.emplace_back(with_literals_by_position(r.ast));
    const auto [it, fresh] = programs[key].try_emplace(kernel);
    if (!fresh) continue;
    if (!change) it->second = program_cache().find({kernel, key});
    if (!it->second) missing.push_back({kernel, r.device, key});
  }
  compile_in_parallel(missing, change, how);
  for (const Work& w : missing) {
    programs[w.key][w.kernel] = w.program;
    if (!change) program_cache().add({w.kernel, w.key}, w.program);
  }
  std::vector<std::shared_ptr<Program>> out;
  for (size_t i = 0; i < requests.size(); ++i)
    out.push_back(programs.at(target_key(*requests[i].device, how)).at(kernels[i]));
  count([&](Counters& c) {
    c.compiled += static_cast<int64_t>(missing.size());
    c.compile_seconds += now_seconds() - start;
  });
  return out;
}

void add_program(const CompileRequest& request, const CompileOptions& how,
                 std::shared_ptr<Program> program) {
  program_cache().add({with_literals_by_position(request.ast), target_key(*request.device, how)},
                      std::move(program));
}

void clear_program_cache() { program_cache().clear(); }

}  // namespace koine

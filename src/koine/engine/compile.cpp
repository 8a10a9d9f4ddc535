#include "koine/engine/compile.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>
#include <thread>
#include <unordered_map>

#include "koine/base/options.hpp"
#include "koine/base/team.hpp"
#include "koine/base/timer.hpp"
#include "koine/engine/cache.hpp"
#include "koine/engine/checks.hpp"
#include "koine/engine/counting.hpp"
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

std::shared_ptr<Program> compile_kernel(const CompileRequest& request, const StageChange& change,
                                        const CompileOptions& how) {
  DeviceRuntime& device = *request.device;
  LoweredKernel lowered =
      lower_kernel(request.ast, device.target(how), {}, nullptr, change, "rangeify", how);
  report_kernel(lowered);
  CheckCounts checks = lowered.checks;
  if (change) lowered.linear = change("render", lowered.linear);
  auto program = device.compile(lowered);
  dump_stage("render", [&] { return program->source() + "\n"; });
  if (options().debug >= 5) fmt::print(stderr, "{}\n", program->source());
  if (how.verify >= 3 && device.computes())
    checks += check_rendered(*program, lowered, device, change);
  count_checks(checks);
  return program;
}

// A program that is being made.
struct Work {
  const CompileRequest* request;
  std::string key;
  const StageChange* change;
  const CompileOptions* how;
  std::shared_ptr<Program> program = nullptr;
  std::exception_ptr error = nullptr;
};

void compile_in_parallel(std::vector<Work>& works) {
  compile_team().run(
      [](void* context, int64_t i) {
        Work& w = (*static_cast<std::vector<Work>*>(context))[static_cast<size_t>(i)];
        try {
          w.program = compile_kernel(*w.request, *w.change, *w.how);
        } catch (...) {
          w.error = std::current_exception();
        }
      },
      &works, static_cast<int64_t>(works.size()));
  for (const Work& w : works)
    if (w.error) std::rethrow_exception(w.error);
}

}  // namespace

std::vector<std::shared_ptr<Program>> compile_kernels(const std::vector<CompileRequest>& requests,
                                                      const StageChange& change,
                                                      const CompileOptions& how) {
  const double start = now_seconds();
  std::vector<Work> missing;
  // Held from here on: the cache may drop any of them, now or by another thread.
  std::map<std::string, std::unordered_map<UOp, std::shared_ptr<Program>>> programs;
  for (const CompileRequest& r : requests) {
    const std::string key = target_key(*r.device, how);
    const auto [it, fresh] = programs[key].try_emplace(r.ast);
    if (!fresh) continue;
    if (!change) it->second = program_cache().find({r.ast, key});
    if (!it->second) missing.push_back({&r, key, &change, &how});
  }
  compile_in_parallel(missing);
  for (const Work& w : missing) {
    programs[w.key][w.request->ast] = w.program;
    if (!change) program_cache().add({w.request->ast, w.key}, w.program);
  }
  std::vector<std::shared_ptr<Program>> out;
  for (const CompileRequest& r : requests)
    out.push_back(programs.at(target_key(*r.device, how)).at(r.ast));
  count([&](Counters& c) {
    c.compiled += static_cast<int64_t>(missing.size());
    c.compile_seconds += now_seconds() - start;
  });
  return out;
}

void clear_program_cache() { program_cache().clear(); }

}  // namespace koine

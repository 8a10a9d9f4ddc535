#include "koine/engine/checks.hpp"

#include <algorithm>

#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/lower/bufferize.hpp"
#include "koine/lower/decide.hpp"
#include "koine/lower/linearize.hpp"
#include "koine/lower/plan.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/shard.hpp"
#include "koine/lower/split_reduce.hpp"
#include "koine/lower/validity.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

CompiledKernel launcher(std::shared_ptr<Program> program) {
  return [program = std::move(program)](const KernelArguments& arguments) {
    std::vector<int64_t> variables;
    for (const std::string& name : signature_of(program->kernel().linear).variables)
      variables.push_back(arguments.variables.at(name));
    program->run({arguments.buffers, arguments.buffer_bytes, variables});
  };
}

}  // namespace

UOp schedule_of(const UOp& program, const StageChange& change, const CompileOptions& how) {
  const UOp schedule = rangeify(split_large_reduces(on_each_device(program, how), how), how);
  if (!change) return schedule;
  std::vector<UOp> calls;
  for (const Kernel& k : kernels_of(schedule))
    calls.push_back(is_kernel_body(k.ast) ? kernel_call(change("rangeify", k.ast), k.buffers,
                                                        k.reason, k.variables, k.waits)
                                          : k.call);
  return UOp::make(Op::Linear, calls);
}

UOp planned(const UOp& schedule, const StageChange& change, const CompileOptions& how) {
  const UOp out = plan_memory(schedule);
  if (how.verify >= 2) verify(out, VerifyLevel::Schedule, "plan");
  return change ? change("plan", out) : out;
}

CheckCounts check_callified(const std::vector<UOp>& values, const std::vector<UOp>& destinations,
                            const Callified& made, const StageChange& change,
                            const CompileOptions& how) {
  std::vector<UOp> effects;
  for (size_t i = 0; i < values.size(); ++i) {
    // The interpreter gives a body values: what it stores reaches memory where the body is inlined.
    const UOp value = inline_storing_functions(values[i]);
    effects.push_back(destinations[i] ? store(destinations[i], value) : value);
  }
  // What it makes, over the buffers again.
  Substitution bindings;
  for (const UOp& v : variables_below(sink(effects)))
    if (is_bound(v)) bindings.emplace(without_values(v), v);
  auto over_buffers = [&](const Callified& c) {
    Substitution buffers;
    for (size_t k = 0; k < c.arguments.size(); ++k) {
      const UOp& b = c.arguments[k];
      buffers.emplace(param_for(static_cast<int64_t>(k), b), b);
    }
    const UOp body = substitute(with_values(c.body, bindings), buffers);
    return change ? change("callify", body) : body;
  };
  StageCheck check{"callify",      sink(effects),  over_buffers(made),
                   Level::Program, Level::Program, {}};
  check.apply = [&](const UOp& program) {
    std::vector<UOp> what, where_to;
    for (const UOp& effect : program.src()) {
      what.push_back(effect.is(Op::Store) ? effect.src(1) : effect);
      where_to.push_back(effect.is(Op::Store) ? effect.src(0) : UOp());
    }
    return over_buffers(callify(what, where_to, how));
  };
  CheckCounts counts;
  count_check(counts, "callify", check_stage(check));
  return counts;
}

CheckCounts check_scheduled(const UOp& program, const UOp& schedule, const UOp& with_places,
                            const StageChange& change, const CompileOptions& how) {
  auto decide_all = [&](const UOp& p) {
    return decide(make_validity_explicit(p), how.row_bytes, how);
  };
  const UOp each = on_each_device(program, how), reduced = split_large_reduces(each, how);
  const UOp decided = decide_all(reduced);
  CheckCounts counts;
  auto check = [&](std::string_view stage, const UOp& before, const UOp& after, Level to,
                   std::function<UOp(const UOp&)> apply) {
    StageCheck c{stage, before, after, Level::Program, to, std::move(apply)};
    c.liberties = {!how.strict, !how.strict};
    count_check(counts, stage, check_stage(c));
  };
  check("decide", reduced, decided, Level::Program, decide_all);
  check("bufferize", decided, bufferize(decided), Level::Program, bufferize);
  check("rangeify", each, schedule, Level::Schedule,
        [&](const UOp& p) { return schedule_of(p, change, how); });
  check("plan", each, with_places, Level::Schedule,
        [&](const UOp& p) { return planned(schedule_of(p, change, how), change, how); });
  return counts;
}

CheckCounts check_rendered(Program& program, const LoweredKernel& kernel, DeviceRuntime& device,
                           const StageChange& change) {
  CheckCounts counts;
  if (!kernel.selected) {  // the interpreter does not run it as a kernel
    count_check(counts, "render", false);
    return counts;
  }
  StageCheck check{"render", kernel.selected, kernel.linear, Level::Kernel, Level::Linear, {}};
  check.apply = [&](const UOp& selected) {
    const UOp linear = linearize(selected);
    return change ? change("render", linear) : linear;
  };
  // The program itself, and others while a mistake is reduced.
  check.compile = [&](const UOp& linear) {
    if (linear == kernel.linear)
      return launcher(std::shared_ptr<Program>(&program, [](Program*) {}));
    LoweredKernel other = kernel;
    other.linear = linear;
    return launcher(device.compile(std::move(other)));
  };
  check.types = kernel.types;
  check.liberties.contract = !kernel.how.strict;
  count_check(counts, check.stage, check_stage(check));
  return counts;
}

}  // namespace koine

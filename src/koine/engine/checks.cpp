#include "koine/engine/checks.hpp"

#include <algorithm>

#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/loop.hpp"
#include "koine/lower/linearize.hpp"
#include "koine/lower/plan.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/shard.hpp"
#include "koine/lower/split_reduce.hpp"
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

bool has_loops(const UOp& schedule) {
  const std::vector<Kernel> kernels = kernels_of(schedule);
  return std::any_of(kernels.begin(), kernels.end(),
                     [](const Kernel& k) { return is_loop(k.ast); });
}

}  // namespace

UOp schedule_of(const UOp& program, const StageChange& change, const CompileOptions& how,
                StageOutputs* parts) {
  auto noted = [&](std::string_view part, const UOp& graph) {
    UOp out = change ? change(part, graph) : graph;
    if (parts != nullptr) parts->insert_or_assign(std::string(part), out);
    return out;
  };
  const UOp each = noted("device", on_each_device(program, how));
  const UOp reduced = noted("split_reduce", split_large_reduces(each, how));
  const UOp schedule = rangeify(reduced, how, noted);
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

CheckCounts check_scheduled(const StageOutputs& parts, const UOp& schedule, const UOp& with_places,
                            const StageChange& change, const CompileOptions& how) {
  CheckCounts counts;
  auto check = [&](std::string_view stage, const UOp& before, const UOp& after, Level to,
                   std::function<UOp(const UOp&)> apply) {
    StageCheck c{stage, before, after, Level::Program, to, std::move(apply)};
    c.liberties = {!how.strict, !how.strict};
    count_check(counts, stage, check_stage(c));
  };
  auto part = [&](std::string_view stage) { return parts.find(stage)->second; };
  auto changed = [&](std::string_view stage, UOp program_after) {
    return change ? change(stage, program_after) : program_after;
  };
  auto reduce = [&](const UOp& p) { return changed("split_reduce", split_large_reduces(p, how)); };
  auto decide = [&](const UOp& p) { return changed("decide", decided_program(p, how)); };
  // From here on from the decided program: what has memory in it is no program of values.
  auto bufferize = [&](const UOp& p) { return changed("bufferize", bufferized_program(p, how)); };
  auto index = [&](const UOp& p) { return changed("index", indexed_program(bufferize(p), how)); };
  auto split = [&](const UOp& p) { return changed("split", split_program(index(p), how)); };
  auto merge = [&](const UOp& p) { return changed("merge", merged_program(split(p), how)); };
  const UOp each = part("device"), reduced = part("split_reduce"), decided = part("decide");
  // A part that changes nothing needs no look.
  if (!(reduced == each)) check("split_reduce", each, reduced, Level::Program, reduce);
  check("decide", reduced, decided, Level::Program, decide);
  check("bufferize", decided, part("bufferize"), Level::Program, bufferize);
  // A loop runs once its functions are host programs too: then it is rangeify's.
  if (!has_loops(part("split"))) {
    check("index", decided, part("index"), Level::Schedule, index);
    if (!(part("split") == part("index")))
      check("split", decided, part("split"), Level::Schedule, split);
    if (!(part("merge") == part("split")))
      check("merge", decided, part("merge"), Level::Schedule, merge);
  }
  if (!(schedule == part("merge")))
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

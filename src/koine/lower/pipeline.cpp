#include "koine/lower/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "koine/base/options.hpp"
#include "koine/base/timer.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/expand.hpp"
#include "koine/lower/linearize.hpp"
#include "koine/lower/scan.hpp"
#include "koine/lower/select.hpp"
#include "koine/lower/sum_tree.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/verify/verify.hpp"

namespace koine {
namespace {

std::string kernel_name(const UOp& ast) {
  bool reduces = false;
  std::string axes;
  for (const UOp& u : toposort(ast)) reduces = reduces || u.is(Op::Reduce);
  for (const UOp& r : kernel_ranges(ast))
    axes += fmt::format("_{}{}", axis_letter(r.as<RangeArg>().type),
                        r.src(0).is(Op::Const) ? std::to_string(const_int(r.src(0))) : "n");
  return (reduces ? "r" : "e") + axes;
}

// What the stages of one kernel share: how they are observed, and changed.
struct Observed {
  const Target& target;
  const StageSink& sink;
  const StageChange& change;
  std::string_view given;  // the stage whose output came in; empty once it is passed
  int verify;
  SlotTypes types;
  CheckCounts checks;
};

// A stage: what it is called, what its output is, what it may do to floats, and its parts.
struct Stage {
  std::string_view name;
  bool edge;  // of the pipeline
  Liberties liberties;
  std::vector<StageStep> steps;
};

// Runs each step beside its input. The last one gives what the stage gives.
void check_steps(const Stage& stage, const UOp& in, Observed& observed) {
  UOp before = in;
  for (size_t i = 0; i < stage.steps.size(); ++i) {
    const bool last = i + 1 == stage.steps.size();
    const auto apply = [&](const UOp& u) {
      const UOp out = stage.steps[i].apply(u);
      return last && observed.change ? observed.change(stage.name, out) : out;
    };
    const UOp after = apply(before);
    const std::string name = stage.steps.size() == 1
                                 ? std::string(stage.name)
                                 : fmt::format("{} ({})", stage.name, stage.steps[i].name);
    const Level to = level_after(stage.name) == VerifyLevel::Linear ? Level::Linear : Level::Kernel;
    if (!(after == before))
      count_check(observed.checks, name,
                  check_stage({name,
                               before,
                               after,
                               Level::Kernel,
                               to,
                               apply,
                               {},
                               observed.types,
                               stage.liberties}));
    before = after;
  }
}

// Runs one stage: time, dump, verify. The only place that knows how stages are observed.
UOp run_stage(const Stage& stage, const UOp& in, Observed& observed) {
  const bool given = !observed.given.empty();
  if (given && stage.name != observed.given) return in;
  observed.given = {};
  const double start = now_seconds();
  UOp out = in;
  if (!given)
    for (const StageStep& step : stage.steps) out = step.apply(out);
  const double seconds = now_seconds() - start;
  if (observed.change && !given && !stage.steps.empty()) out = observed.change(stage.name, out);
  if (options().debug >= 7) fmt::print(stderr, "  {:10} {:8.3f} ms\n", stage.name, seconds * 1e3);
  dump_stage(stage.name, [&] { return to_text(out); });
  if (observed.sink) observed.sink(stage.name, out);
  if (observed.verify >= 3 && !given) check_steps(stage, in, observed);
  if (observed.verify >= 2 || (observed.verify == 1 && stage.edge))
    verify(out, level_after(stage.name), stage.name, &observed.target);
  return out;
}

}  // namespace

VerifyLevel level_after(std::string_view stage) {
  if (stage == "callify" || stage == "decide") return VerifyLevel::Program;
  if (stage == "bufferize") return VerifyLevel::Memory;
  if (stage == "split" || stage == "plan") return VerifyLevel::Schedule;
  if (stage == "expand") return VerifyLevel::Shaped;
  if (stage == "select") return VerifyLevel::Selected;
  return stage == "rangeify" || stage == "optimize" ? VerifyLevel::Kernel : VerifyLevel::Linear;
}

LoweredKernel lower_kernel(const UOp& ast, const Target& target, const StageSink& sink,
                           const std::vector<Opt>* opts, const StageChange& change,
                           std::string_view given, const CompileOptions& how) {
  LoweredKernel out;
  out.how = how;
  Observed observed{target, sink, change, given, how.verify, {}, {}};
  if (how.verify >= 3) out.types = observed.types = slot_types_of(ast);
  const Liberties sums{!target.strict || opts != nullptr, false}, all{sums.reorder, !target.strict};
  auto optimized = [&](const UOp& u, std::vector<Opt>* applied) {
    if (opts == nullptr) return optimize(u, target, applied, how);
    UOp edited = u;
    for (const Opt& opt : *opts) edited = apply_opt(edited, opt);
    return edited;
  };
  if (opts != nullptr) out.opts = *opts;
  UOp k = run_stage({"rangeify", true, {}, {}}, ast, observed);
  std::vector<Opt>* applied = &out.opts;  // of the first run, not of those that look for mistakes
  k = run_stage(
      {"optimize",
       false,
       sums,
       {{"", [&](const UOp& u) { return optimized(u, std::exchange(applied, nullptr)); }}}},
      k, observed);
  out.name = kernel_name(k);
  out.estimate = estimate_of(ast);
  auto lanes = [](const UOp& u) { return expand(threads_to_special(u)); };
  std::vector<StageStep> expansion;
  if (target.strict)
    expansion = {{"", [&](const UOp& u) { return lanes(block_reduces(u, true)); }}};
  else
    expansion = {{"sum trees",
                  [](const UOp& u) {
                    return sum_in_blocks(running_sums_in_levels(block_reduces(u, false)));
                  }},
                 {"lanes", lanes}};
  k = run_stage({"expand", false, sums, std::move(expansion)}, k, observed);
  k = run_stage({"select", true, all, select_steps(target)}, k, observed);
  if (how.verify >= 3) out.selected = k;
  out.linear = run_stage({"linearize", true, {}, {{"", linearize}}}, k, observed);
  out.checks = observed.checks;
  return out;
}

void dump_stage(std::string_view stage, const std::function<std::string()>& text) {
  if (options().dump == stage) fmt::print(stderr, "--- after {}\n{}", stage, text());
}

void count_check(CheckCounts& counts, std::string_view stage, bool checked) {
  ++(checked ? counts.checked : counts.unchecked);
  if (!checked && options().debug >= 1)
    fmt::print(stderr,
               "verify  stage {} is not run: no input of at most {:.0g} operations decides\n",
               stage, most_checked_operations);
}

}  // namespace koine

#include "koine/lower/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "koine/base/interrupt.hpp"
#include "koine/base/options.hpp"
#include "koine/base/timer.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/blocks.hpp"
#include "koine/lower/epilogue.hpp"
#include "koine/lower/expand.hpp"
#include "koine/lower/grid.hpp"
#include "koine/lower/linearize.hpp"
#include "koine/lower/scan.hpp"
#include "koine/lower/select.hpp"
#include "koine/lower/stage.hpp"
#include "koine/lower/sum_tree.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/rules/wmma.hpp"
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
  KeptRuns runs;
  // Of stages whose output cannot be run: what went in, what they do, and what they may do.
  UOp waiting;
  std::function<UOp(const UOp&)> since;
  Liberties liberties;
  StageOrigin origin;
};

// A stage: what it is called, what its output is, what it may do to floats, and its parts.
struct Stage {
  std::string_view name;
  bool edge;  // of the pipeline
  Liberties liberties;
  std::vector<StageStep> steps;
};

// Threads of a group wait for each other, which the interpreter of linear programs knows alone, and
// so it does what they hold of a Wmma; code of machines none knows.
bool is_interpreted(const UOp& graph) {
  const NodeList nodes = toposort(graph);
  return std::none_of(nodes.begin(), nodes.end(), [&](const UOp& u) {
    const bool of_group = u.is(Op::Special) && u.as<std::string>() != "thread";
    const bool flat = u.is(Op::Wmma) && is_flat(u);
    return u.is(Op::Ins) || u.is(Op::Custom) || ((of_group || flat) && !graph.is(Op::Linear));
  });
}

// Runs each step beside its input. The last one gives what the stage gives.
void check_steps(const Stage& stage, const UOp& in, Observed& observed) {
  UOp before = in;
  if (stage.name == "expand") observed.origin = {in, {}, {}};
  for (size_t i = 0; i < stage.steps.size(); ++i) {
    const bool last = i + 1 == stage.steps.size();
    const std::string name = stage.steps.size() == 1
                                 ? std::string(stage.name)
                                 : fmt::format("{} ({})", stage.name, stage.steps[i].name);
    std::function<UOp(const UOp&)> apply = [step = stage.steps[i].apply, last, stage = stage.name,
                                            &change = observed.change](const UOp& u) {
      const UOp out = step(u);
      return last && change ? change(stage, out) : out;
    };
    const UOp after = apply(before);
    StageOrigin origin = observed.waiting ? StageOrigin() : observed.origin;
    observed.origin.liberties = observed.origin.liberties | stage.liberties;
    observed.origin.since = [first = observed.origin.since, then = apply](const UOp& u) {
      return then(first ? first(u) : u);
    };
    if (observed.waiting) {
      before = observed.waiting;
      apply = [first = observed.since, then = apply](const UOp& u) { return then(first(u)); };
    }
    const Liberties may = stage.liberties | observed.liberties;
    if (!is_interpreted(after)) {
      observed.waiting = before;
      observed.since = apply;
      observed.liberties = may;
    } else {
      observed.waiting = {};
      observed.liberties = {};
      const Level to =
          level_after(stage.name) == VerifyLevel::Linear ? Level::Linear : Level::Kernel;
      if (!(after == before)) {
        StageCheck check{name, before, after, Level::Kernel, to, apply};
        check.types = observed.types;
        check.liberties = may;
        check.kept = &observed.runs;
        check.origin = std::move(origin);
        count_check(observed.checks, name, check_stage(check));
      }
    }
    before = after;
  }
}

// Runs one stage: time, dump, verify. The only place that knows how stages are observed.
UOp run_stage(const Stage& stage, const UOp& in, Observed& observed) {
  const bool given = !observed.given.empty();
  if (given && stage.name != observed.given) return in;
  observed.given = {};
  check_interrupt();
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
  if (stage == "index" || stage == "split" || stage == "plan") return VerifyLevel::Schedule;
  if (stage == "expand") return VerifyLevel::Shaped;
  if (stage == "select") return VerifyLevel::Selected;
  return stage == "rangeify" || stage == "optimize" ? VerifyLevel::Kernel : VerifyLevel::Linear;
}

LoweredKernel lower_kernel(const UOp& ast, const Target& target, const StageSink& sink,
                           const std::vector<Opt>* opts, const StageChange& change,
                           std::string_view given, const CompileOptions& how) {
  LoweredKernel out;
  out.how = how;
  Observed observed{target, sink, change, given, how.verify, {}, {}, {}, {}, {}, {}, {}};
  if (how.verify >= 3) out.types = observed.types = slot_types_of(ast);
  const Liberties sums{!target.strict || opts != nullptr, false}, all{sums.reorder, !target.strict};
  auto optimized = [&](const UOp& u, std::vector<Opt>* applied) {
    if (opts == nullptr) return optimize(u, target, applied, how);
    return apply_opts(u, *opts, target);
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
  auto lanes = [](const UOp& u) { return warps_to_special(expand(threads_to_special(u))); };
  auto blocks = [&](const UOp& u) {
    const UOp blocked = block_reduces(u, target.strict);
    return target.groups ? to_grid(blocked, target.groups) : epilogue_in_loop(blocked);
  };
  auto tiles = [&](const UOp& u) { return stage_operands(u, target); };
  std::vector<StageStep> expansion;
  if (target.strict)
    expansion = {{"", [&](const UOp& u) { return lanes(tiles(blocks(u))); }}};
  else
    expansion = {{"sum trees",
                  [&](const UOp& u) { return sum_in_blocks(running_sums_in_levels(blocks(u))); }},
                 {"lanes", [&](const UOp& u) { return lanes(tiles(u)); }}};
  k = run_stage({"expand", false, sums, std::move(expansion)}, k, observed);
  k = run_stage({"select", true, all, select_steps(target)}, k, observed);
  if (how.verify >= 3 && is_interpreted(k)) out.selected = k;
  auto in_order = [&](const UOp& u) {
    return target.groups ? in_blocks(linearize(u)) : linearize(u);
  };
  out.linear = run_stage({"linearize", true, {}, {{"", in_order}}}, k, observed);
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

#include "koine/differential/check.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "koine/base/error.hpp"
#include "koine/base/timer.hpp"
#include "koine/differential/reduce.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/verify/verify.hpp"

namespace koine {
namespace {

constexpr double most_seconds = 20;  // for reducing

struct Finding {
  std::string what;
  Setting inputs;
  bool fails = false;  // rather than to give another value
};

Outcome run_after(const StageCheck& check, const UOp& after, const Setting& setting) {
  if (check.compile) {
    // Machine code is not bounds-checked: the interpreter goes first.
    Outcome interpreted = run_graph(after, Level::Linear, setting, {});
    if (interpreted.state != Outcome::State::Ran) return interpreted;
    return run_compiled(check.compile(after), setting);
  }
  return run_graph(after, check.to, setting, check.liberties);
}

// The inputs of a check, and what is known already of what its graph gives on them.
KeptRuns inputs_of(const StageCheck& check, const UOp& before) {
  if (check.kept && check.kept->graph == before) return std::exchange(*check.kept, {});
  KeptRuns out{before, check.liberties, {}};
  for (Setting& s : settings_of(before, check.from, most_checked_operations, check.types))
    out.runs.push_back({std::move(s), {}});
  return out;
}

// The first setting on which both differ; `compared` counts those that say something.
std::optional<Finding> compare(const StageCheck& check, const UOp& before, const UOp& after,
                               int& compared) {
  KeptRuns known = inputs_of(check, before), now{after, check.liberties, {}};
  for (auto& [s, kept] : known.runs) {
    now.runs.push_back({s, {}});
    if (s.last_resort && compared > 0) continue;
    const Outcome expected = kept && known.liberties == check.liberties
                                 ? std::move(*kept)
                                 : run_graph(before, check.from, s, check.liberties);
    // Out of range positions break a promise of the user's: they say nothing about the stage.
    if (expected.state != Outcome::State::Ran) continue;
    Outcome got = run_after(check, after, s);
    if (got.state == Outcome::State::Undetermined) continue;
    // The bound of a program's values holds for every kernel that it may become.
    if (check.from == Level::Program)
      for (Storage& m : got.after.memory) m.deviations.clear();
    ++compared;
    if (std::string d = difference_of(expected, got); !d.empty())
      return Finding{fmt::format("on {}: {}", s.name, d), s, got.state == Outcome::State::Failed};
    now.runs.back().outcome = std::move(got);
  }
  if (check.kept && check.to == check.from) *check.kept = std::move(now);
  return std::nullopt;
}

// Memory is read by Loads, and written by Stores to an element or to a register.
void require_accesses(const UOp& u) {
  if (u.is(Op::Load) || u.is(Op::Store)) {
    const UOp& to = strip_after(u.src(0));
    KOINE_INVARIANT(is_address(to) || is_register(to), "no memory");
  }
  for (size_t k = 0; k < u.src().size(); ++k) {
    const UOp& s = strip_after(u.src(k));
    const bool memory = s.is(Op::Buffer) || (s.is(Op::Param) && s.as<BufferArg>().name.empty());
    if (!memory && !is_address(s)) continue;
    const bool accesses = u.is(Op::Load) || u.is(Op::Store);
    const bool passes = memory && (u.is(Op::Index) || u.is(Op::After));
    const bool whole = memory && accesses && !is_register(s);
    KOINE_INVARIANT(k == 0 && (accesses || passes) && !whole, "memory is no value");
  }
}

// Expand gives values shape and makes registers; what holds before it holds no more.
bool is_before_expand(const UOp& graph) {
  const NodeList order = toposort(graph);
  return std::none_of(order.begin(), order.end(), [](const UOp& u) {
    return is_register(u) || u.is(Op::Special) || (is_elementwise(u.op()) && !u.is_scalar());
  });
}

void require_well_formed(const UOp& graph, Level level) {
  KOINE_INVARIANT(graph.is(Op::Sink) && !graph.src().empty(), "no program");
  if (level == Level::Kernel) {
    if (is_before_expand(graph)) verify(graph, VerifyLevel::Kernel, "reducing");
    for (const UOp& u : toposort(graph)) require_accesses(u);
  }
  for (const UOp& effect : graph.src()) {
    UOp base = effect;
    while (base.is(Op::After) || base.is(Op::Store) || base.is(Op::End)) base = base.src(0);
    KOINE_INVARIANT(effect.dtype() == DType::Void || effect.is(Op::After), "no effect");
    if (level == Level::Program)
      KOINE_INVARIANT(base.is(Op::Param) || base.is(Op::Buffer), "no place");
  }
}

bool still_differs(const StageCheck& check, const UOp& graph, bool fails, double until) {
  if (now_seconds() > until) return false;
  try {
    require_well_formed(graph, check.from);
    int compared = 0;
    const auto finding = compare(check, graph, check.apply(graph), compared);
    return finding && finding->fails == fails;
  } catch (const std::exception&) {
    return false;  // not a graph that this stage takes
  }
}

// The smallest graph found for which the stage still changes a value; null where `before` is none.
UOp reduced(const StageCheck& check, bool fails, double until) {
  if (!still_differs(check, check.before, fails, until)) return {};
  return reduce_failure(check.before,
                        [&](const UOp& g) { return still_differs(check, g, fails, until); });
}

// The same check from where the input of the stage comes from.
StageCheck from_origin(const StageCheck& check) {
  StageCheck out = check;
  out.before = check.origin.graph;
  out.apply = [stage = check.apply, since = check.origin.since](const UOp& u) {
    return stage(since(u));
  };
  out.liberties = check.liberties | check.origin.liberties;
  out.origin = {};
  return out;
}

[[noreturn]] void report(const StageCheck& stage, const Finding& first) {
  const double until = now_seconds() + most_seconds;
  StageCheck check = stage;
  check.kept = nullptr;
  UOp smallest = reduced(check, first.fails, until);
  if (!smallest) smallest = stage.before;
  std::string_view shown = "its input";
  if (stage.origin.graph && stage.origin.since) {
    StageCheck longer = from_origin(check);
    const UOp other = reduced(longer, first.fails, until);
    if (other && graph_size(other) < graph_size(smallest)) {
      smallest = other;
      check = std::move(longer);
      shown = "what its input is made from";
    }
  }
  const UOp after = smallest == stage.before ? stage.after : check.apply(smallest);
  int compared = 0;
  const Finding finding = compare(check, smallest, after, compared).value_or(first);
  internal_error(
      "KOINE_VERIFY=3: stage {} changes a value, {}\n{}, reduced to {} nodes:\n{}"
      "its output:\n{}inputs ({}):\n{}",
      check.stage, first.what, shown, graph_size(smallest), to_text(smallest), to_text(after),
      finding.what, setting_text(finding.inputs));
}

}  // namespace

bool check_stage(const StageCheck& check) {
  int compared = 0;
  if (const auto finding = compare(check, check.before, check.after, compared))
    report(check, *finding);
  return compared > 0;
}

}  // namespace koine

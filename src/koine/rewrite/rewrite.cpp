#include "koine/rewrite/rewrite.hpp"

#include <absl/container/inlined_vector.h>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"

namespace koine {

namespace {
TraceSink& trace_sink() {
  static thread_local TraceSink sink;
  return sink;
}
}  // namespace

void set_trace_sink(TraceSink sink) { trace_sink() = std::move(sink); }

namespace detail {

void trace(std::string_view rule, const UOp& before, const UOp& after) {
  if (trace_sink()) trace_sink()(rule, before, after);
}

namespace {

// State of a node: `final` once known; `next` while its replacement is being rewritten. Both are
// kept alive by the root or as replacements.
struct State {
  const Node* final = nullptr;
  const Node* next = nullptr;
};

[[noreturn]] void report_cycle(const NodeMap<State>& states, const Node* start) {
  std::string text;
  const Node* node = start;
  for (int i = 0; i < 16; ++i) {
    text += fmt::format("--- step {}\n{}", i, to_text(UOp::share(node)));
    const State* state = states.find(node);
    if (state == nullptr || state->next == nullptr) break;
    node = state->next;
    if (node == start) break;
  }
  internal_error("rewriting does not end; the cycle is:\n{}", text);
}

}  // namespace

UOp rewrite_fixpoint(const UOp& root, const Pass& pass) {
  NodeMap<State> states;
  // Most walks are a few nodes: these then need no allocation.
  absl::InlinedVector<UOp, 8> replacements;
  absl::InlinedVector<const Node*, 32> stack{root.node()};
  absl::InlinedVector<UOp, 4> sources;
  RewriteCounters& counters = rewrite_counters();
  const RewriteClock clock;
  // Another thread may mark a node at any time; a node that this walk replaces never is.
  auto known = [&](const Node* node) { return pass.skip != 0 && is_normal(node, pass.skip); };
  auto finished = [&](const Node* node) -> const Node* {
    if (known(node)) return node;
    const State* state = states.find(node);
    return state != nullptr ? state->final : nullptr;
  };
  while (!stack.empty()) {
    const Node* node = stack.back();
    if (known(node)) {
      stack.pop_back();
      continue;
    }
    State& state = states[node];
    if (state.final != nullptr) {
      stack.pop_back();
      continue;
    }
    if (state.next != nullptr) {
      state.final = finished(state.next);
      if (state.final == nullptr)  // it was pushed once; unfinished now, it waits for us
        report_cycle(states, node);
      stack.pop_back();
      continue;
    }
    const bool is_call = node->op == Op::Function || node->op == Op::Call;
    const size_t first = !pass.enter_calls && is_call ? 1 : 0;
    bool ready = true, changed = false;
    for (size_t i = node->source_count; i-- > first;) {
      const Node* source = node->sources()[i].node();
      const Node* done = finished(source);
      if (done == nullptr) stack.push_back(source);
      ready = ready && done != nullptr;
      changed = changed || done != source;
    }
    if (!ready) continue;
    ++counters.visits;
    const UOp current = UOp::share(node);
    UOp next;
    if (changed) {  // it takes its own turn, once, under its own key
      sources.assign(node->src().begin(), node->src().end());
      for (size_t i = first; i < sources.size(); ++i)
        sources[i] = UOp::share(finished(sources[i].node()));
      next = with_sources(current, sources);
    } else {
      next = pass.step(current);
    }
    if (!next) {
      mark_normal(node, pass.mark);
      state.final = node;
      stack.pop_back();
      continue;
    }
    if (!changed) ++counters.fired;
    state.next = next.node();
    const State* waiting = states.find(next.node());
    if (waiting != nullptr && waiting->next != nullptr && waiting->final == nullptr)
      report_cycle(states, node);
    stack.push_back(next.node());
    replacements.push_back(std::move(next));
  }
  return UOp::share(finished(root.node()));
}

}  // namespace detail
}  // namespace koine

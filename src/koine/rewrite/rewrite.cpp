#include "koine/rewrite/rewrite.hpp"

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

// State of a node: `final` once known; `next` while its replacement is being rewritten.
struct State {
  UOp final;
  UOp next;
};

[[noreturn]] void report_cycle(const NodeMap<State>& states, const Node* start) {
  std::string text;
  const Node* node = start;
  for (int i = 0; i < 16; ++i) {
    text += fmt::format("--- step {}\n{}", i, to_text(UOp::share(node)));
    const State* state = states.find(node);
    if (state == nullptr || !state->next) break;
    node = state->next.node();
    if (node == start) break;
  }
  internal_error("rewriting does not end; the cycle is:\n{}", text);
}

}  // namespace

UOp rewrite_fixpoint(const UOp& root, const Pass& pass) {
  NodeMap<State> states;
  std::vector<UOp> keep;  // replaced nodes stay alive while they are keys
  std::vector<const Node*> stack{root.node()};
  std::vector<UOp> sources;
  RewriteCounters& counters = rewrite_counters();
  const RewriteClock clock;
  // Another thread may mark a node at any time; a node that this walk replaces never is.
  auto known = [&](const Node* node) { return pass.skip != 0 && is_normal(node, pass.skip); };
  auto finished = [&](const UOp& u) -> const UOp* {
    if (known(u.node())) return &u;
    const State* state = states.find(u.node());
    return state != nullptr && state->final ? &state->final : nullptr;
  };
  while (!stack.empty()) {
    const Node* node = stack.back();
    if (known(node)) {
      stack.pop_back();
      continue;
    }
    State& state = states[node];
    if (state.final) {
      stack.pop_back();
      continue;
    }
    if (state.next) {
      const UOp* done = finished(state.next);
      if (done == nullptr)  // it was pushed once; unfinished now, it waits for us
        report_cycle(states, node);
      state.final = *done;
      stack.pop_back();
      continue;
    }
    const bool is_call = node->op == Op::Function || node->op == Op::Call;
    const size_t first = !pass.enter_calls && is_call ? 1 : 0;
    bool ready = true, changed = false;
    for (size_t i = node->source_count; i-- > first;) {
      const UOp& source = node->sources()[i];
      const UOp* done = finished(source);
      if (done == nullptr) stack.push_back(source.node());
      ready = ready && done != nullptr;
      changed = changed || (done != nullptr && !(*done == source));
    }
    if (!ready) continue;
    ++counters.visits;
    UOp current = UOp::share(node), next;
    if (changed) {  // it takes its own turn, once, under its own key
      sources.assign(node->src().begin(), node->src().end());
      for (size_t i = first; i < sources.size(); ++i) sources[i] = *finished(sources[i]);
      next = with_sources(current, sources);
    } else {
      next = pass.step(current);
    }
    if (!next) {
      mark_normal(node, pass.mark);
      state.final = std::move(current);
      stack.pop_back();
      continue;
    }
    if (!changed) ++counters.fired;
    keep.push_back(next);
    const State* waiting = states.find(next.node());
    const bool circle = waiting != nullptr && waiting->next && !waiting->final;
    stack.push_back(next.node());
    state.next = std::move(next);
    if (circle) report_cycle(states, node);
  }
  return *finished(root);
}

}  // namespace detail
}  // namespace koine

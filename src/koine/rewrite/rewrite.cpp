#include "koine/rewrite/rewrite.hpp"

#include <absl/container/flat_hash_map.h>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"

namespace koine {

RewriteCounters& rewrite_counters() {
  static thread_local RewriteCounters counters;
  return counters;
}

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

[[noreturn]] void report_cycle(const absl::flat_hash_map<const Node*, State>& states,
                               const Node* start) {
  std::string text;
  const Node* node = start;
  for (int i = 0; i < 16; ++i) {
    text += fmt::format("--- step {}\n{}", i, to_text(UOp::share(node)));
    const auto it = states.find(node);
    if (it == states.end() || !it->second.next) break;
    node = it->second.next.node();
    if (node == start) break;
  }
  internal_error("rewriting does not end; the cycle is:\n{}", text);
}

}  // namespace

UOp rewrite_fixpoint(const UOp& root, const std::function<UOp(const UOp&)>& step,
                     bool enter_calls) {
  absl::flat_hash_map<const Node*, State> states;
  std::vector<UOp> keep;  // replaced nodes stay alive while they are keys
  std::vector<const Node*> stack{root.node()};
  std::vector<UOp> sources;
  RewriteCounters& counters = rewrite_counters();
  keep.push_back(root);
  auto finished = [&](const Node* node) -> const UOp* {
    const auto it = states.find(node);
    return it != states.end() && it->second.final ? &it->second.final : nullptr;
  };
  while (!stack.empty()) {
    const Node* node = stack.back();
    State& state = states[node];
    if (state.final) {
      stack.pop_back();
      continue;
    }
    if (state.next) {
      const UOp* done = finished(state.next.node());
      if (done != nullptr) {
        states[node].final = *done;
        stack.pop_back();
      } else {
        // The replacement is pushed once; meeting it unfinished again means it waits for us.
        report_cycle(states, node);
      }
      continue;
    }
    const size_t first = !enter_calls && (node->op == Op::Function || node->op == Op::Call) ? 1 : 0;
    bool ready = true;
    for (size_t i = node->source_count; i-- > first;)
      if (finished(node->sources()[i].node()) == nullptr) {
        stack.push_back(node->sources()[i].node());
        ready = false;
      }
    if (!ready) continue;
    sources.assign(node->src().begin(), node->src().end());
    bool changed = false;
    for (size_t i = first; i < sources.size(); ++i) {
      const UOp& source = *finished(sources[i].node());
      changed |= !(source == sources[i]);
      sources[i] = source;
    }
    UOp current = UOp::share(node);
    if (changed) current = with_sources(current, sources);
    ++counters.visits;
    UOp next;
    if (changed) {
      next = current;  // its sources are final: it takes its own turn, once, under its own key
    } else {
      next = step(current);
      if (next) ++counters.fired;
    }
    if (!next) {
      states[node].final = current;
      stack.pop_back();
      continue;
    }
    keep.push_back(next);
    const auto waiting = states.find(next.node());
    if (waiting != states.end() && waiting->second.next && !waiting->second.final) {
      states[node].next = next;
      report_cycle(states, node);
    }
    states[node].next = next;
    stack.push_back(next.node());
  }
  return states.at(root.node()).final;
}

}  // namespace detail
}  // namespace koine

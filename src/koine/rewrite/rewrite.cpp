#include "koine/rewrite/rewrite.hpp"

#include <absl/container/inlined_vector.h>

#include "koine/base/error.hpp"
#include "koine/base/interrupt.hpp"
#include "koine/base/of_thread.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/text.hpp"

namespace koine {

void set_trace_sink(TraceSink sink) {
  if (auto* own = of_thread<TraceSink>()) *own = std::move(sink);
}

namespace detail {

void trace(std::string_view rule, const UOp& before, const UOp& after) {
  if (const auto* sink = of_thread<TraceSink>(); sink != nullptr && *sink)
    (*sink)(rule, before, after);
}

namespace {

// A node of the walk; nodes are known by their numbers. The root and the replacements keep all
// alive.
constexpr uint32_t none = NodeNumbers::none;
struct State {
  const Node* node;
  uint32_t links = none;  // where the numbers of its sources begin, once these were asked for
  uint32_t next = none;   // what replaces it, once that is known
  uint32_t final = none;  // what it becomes in the end
};
using States = absl::InlinedVector<State, 8>;

[[noreturn]] void report_cycle(const States& states, uint32_t start) {
  std::string text;
  uint32_t at = start;
  for (int i = 0; i < 16 && at != none; ++i) {
    text += fmt::format("--- step {}\n{}", i, to_text(UOp::share(states[at].node)));
    at = states[at].next;
    if (at == start) break;
  }
  internal_error("rewriting does not end; the cycle is:\n{}", text);
}

}  // namespace

UOp rewrite_fixpoint(const UOp& root, const Pass& pass) {
  // Another thread may mark a node at any time; a node that this walk replaces never is.
  auto known = [&](const Node* node) {
    return (node->ops_below & pass.roots) == 0 || (pass.skip != 0 && is_normal(node, pass.skip));
  };
  if (known(root.node())) return root;
  // Most walks are a few nodes: these then need no allocation.
  NodeNumbers numbers;
  States states;
  absl::InlinedVector<uint32_t, 32> links;  // of all nodes; none: the source is final already
  absl::InlinedVector<UOp, 8> replacements;
  absl::InlinedVector<UOp, 4> sources;
  RewriteCounters& counters = rewrite_counters();
  const RewriteClock clock;
  auto number_of = [&](const Node* node) {
    const auto [number, fresh] = numbers.add(node);
    if (fresh) states.push_back({node});
    return number;
  };
  absl::InlinedVector<uint32_t, 32> stack{number_of(root.node())};
  while (!stack.empty()) {
    const uint32_t self = stack.back();
    State& state = states[self];
    if (state.next != none) {
      state.final = states[state.next].final;
      if (state.final == none)  // it was pushed once; unfinished now, it waits for us
        report_cycle(states, self);
    }
    if (state.final != none) {
      stack.pop_back();
      continue;
    }
    const Node* node = state.node;
    const bool opaque = node->op == Op::Call || (node->op == Op::Function && !pass.enter_calls);
    const uint32_t first = opaque ? 1 : 0;
    if (state.links == none) {
      const auto begin = static_cast<uint32_t>(links.size());
      state.links = begin;
      bool ready = true;
      for (uint32_t i = first; i < node->source_count; ++i) {
        const Node* source = node->sources()[i].node();
        const uint32_t link = known(source) ? none : number_of(source);
        links.push_back(link);
        ready = ready && (link == none || states[link].final != none);
      }
      if (!ready) {
        for (auto i = static_cast<uint32_t>(links.size()); i-- > begin;)
          if (links[i] != none && states[links[i]].final == none) stack.push_back(links[i]);
        continue;
      }
    }
    const uint32_t begin = states[self].links;
    const std::span<const uint32_t> link(links.data() + begin, node->source_count - first);
    if ((++counters.visits & 255) == 0) check_interrupt();
    bool changed = false;
    for (const uint32_t l : link) {
      if (l == none) continue;
      if (states[l].final == none) report_cycle(states, l);  // a source became what waits for it
      changed = changed || states[l].final != l;
    }
    const Borrowed current(node);
    const OriginScope from(origin_of(current));
    UOp next;
    if (changed) {  // it takes its own turn, once, under its own key
      sources.clear();
      for (uint32_t i = 0; i < node->source_count; ++i) {
        const uint32_t l = i < first ? none : link[i - first];
        sources.push_back(l == none ? node->sources()[i]
                                    : UOp::share(states[states[l].final].node));
      }
      next = with_sources(current, sources);
    } else {
      next = pass.step(current);
    }
    if (!next) {
      mark_normal(node, pass.mark);
      states[self].final = self;
      stack.pop_back();
      continue;
    }
    if (!changed) ++counters.fired;
    const uint32_t after = number_of(next.node());
    states[self].next = after;
    if (known(next.node())) states[after].final = after;
    if (states[after].next != none && states[after].final == none) report_cycle(states, self);
    stack.push_back(after);
    replacements.push_back(std::move(next));
  }
  return UOp::share(states[states[0].final].node);
}

}  // namespace detail
}  // namespace koine

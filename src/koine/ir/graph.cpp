#include "koine/ir/graph.hpp"

#include <algorithm>

#include "koine/base/timer.hpp"
#include "koine/ir/build.hpp"

namespace koine {
namespace {

// The first source of a Function or Call is its body.
uint32_t after_body(const Node* node) {
  return node->op == Op::Function || node->op == Op::Call ? 1 : 0;
}
uint32_t after_call_body(const Node* node) { return node->op == Op::Call ? 1 : 0; }

// Visits nodes after their sources. `expand(node)` says whether to go below a node, and
// `first(node)` from which source on.
template <class Expand, class Visit, class First>
void post_order(const Node* root, Expand&& expand, Visit&& visit, First&& first) {
  NodeNumbers done;
  std::vector<std::pair<const Node*, uint32_t>> stack{{root, 0}};
  while (!stack.empty()) {
    auto& [node, next] = stack.back();
    if (next == 0 && done.contains(node)) {
      stack.pop_back();
      continue;
    }
    const uint32_t count = expand(node) ? node->source_count : 0;
    next = std::max(next, first(node));
    bool descended = false;
    while (next < count) {
      const Node* source = node->sources()[next++].node();
      if (!done.contains(source)) {
        stack.emplace_back(source, 0);
        descended = true;
        break;
      }
    }
    if (descended) continue;
    const Node* finished = node;
    stack.pop_back();
    if (done.add(finished).second) visit(finished);
  }
}
template <class Expand, class Visit>
void post_order(const Node* root, Expand&& expand, Visit&& visit) {
  post_order(root, expand, visit, after_call_body);
}

}  // namespace

std::span<const UOp> sources_outside_body(const UOp& u) {
  return u.src().subspan(after_call_body(u.node()));
}

NodeList toposort_with_bodies(const UOp& root) {
  NodeList order(root);
  post_order(
      root.node(), [](const Node*) { return true; },
      [&](const Node* node) { order.push_back(node); }, [](const Node*) { return 0U; });
  return order;
}

NodeList toposort(const UOp& root) {
  NodeList order(root);
  post_order(
      root.node(), [](const Node*) { return true; },
      [&](const Node* node) { order.push_back(node); });
  return order;
}

NodeList toposort(const UOp& root, const std::function<bool(const UOp&)>& enter) {
  NodeList order(root);
  NodeMap<char> entered;
  auto allowed = [&](const Node* node) {
    char& state = entered[node];
    if (state == 0) {
      // enter() may walk and add, so the slot is looked up again.
      const bool yes = enter(UOp::share(node));
      return (entered[node] = yes ? 1 : 2) == 1;
    }
    return state == 1;
  };
  post_order(root.node(), allowed, [&](const Node* node) {
    if (allowed(node)) order.push_back(node);
  });
  return order;
}

NodeList toposort_outside_bodies(const UOp& root) {
  NodeList order(root);
  post_order(
      root.node(), [](const Node*) { return true; },
      [&](const Node* node) { order.push_back(node); }, after_body);
  return order;
}

bool depends_on(const UOp& value, const UOp& range) {
  const auto& ranges = value.ranges();
  return std::find(ranges.begin(), ranges.end(), range.node()) != ranges.end();
}

std::vector<UOp> conjuncts(const UOp& condition) {
  std::vector<UOp> out, pending{condition};
  while (!pending.empty()) {
    const UOp part = pending.back();
    pending.pop_back();
    if (part.is(Op::And)) {
      pending.push_back(part.src(1));
      pending.push_back(part.src(0));
    } else {
      out.push_back(part);
    }
  }
  return out;
}

UOp substitute(const UOp& root, const Substitution& replacements) {
  NodeMap<UOp> result;
  std::vector<UOp> sources;
  post_order(
      root.node(), [&](const Node* node) { return !replacements.contains(UOp::share(node)); },
      [&](const Node* node) {
        const UOp self = UOp::share(node);
        if (auto it = replacements.find(self); it != replacements.end()) {
          result.set(node, it->second);
          return;
        }
        sources.assign(node->src().begin(), node->src().end());
        bool changed = false;
        for (size_t i = after_body(node); i < sources.size(); ++i) {
          const UOp& replaced = result.at(sources[i].node());
          changed |= !(replaced == sources[i]);
          sources[i] = replaced;
        }
        result.set(node, changed ? with_sources(self, sources) : self);
      },
      after_body);
  return result.at(root.node());
}

RewriteCounters& rewrite_counters() {
  static thread_local RewriteCounters counters;
  return counters;
}
RewriteClock::RewriteClock() {
  if (rewrite_counters().depth++ == 0) start_ = now_seconds();
}
RewriteClock::~RewriteClock() {
  RewriteCounters& counters = rewrite_counters();
  if (--counters.depth == 0) counters.seconds += now_seconds() - start_;
}

UOp transform_graph(const UOp& root, const std::function<UOp(const UOp&, const UOp&)>& visit,
                    uint32_t skip) {
  if (is_normal(root.node(), skip)) return root;
  NodeMap<UOp> result;
  std::vector<UOp> sources;
  RewriteCounters& counters = rewrite_counters();
  const RewriteClock clock;
  post_order(
      root.node(), [&](const Node* node) { return !is_normal(node, skip); },
      [&](const Node* node) {
        const UOp self = UOp::share(node);
        if (is_normal(node, skip)) {
          result.set(node, self);
          return;
        }
        bool changed = false;
        const uint32_t first = after_call_body(node);
        for (const UOp& source : node->src().subspan(first))
          changed = changed || !(result.at(source.node()) == source);
        if (changed) {
          sources.assign(node->src().begin(), node->src().begin() + first);
          for (const UOp& source : node->src().subspan(first))
            sources.push_back(result.at(source.node()));
        }
        const UOp rebuilt = changed ? with_sources(self, sources) : self;
        UOp out = visit(self, rebuilt);
        ++counters.visits;
        if (!(out == rebuilt)) ++counters.fired;
        result.set(node, std::move(out));
      });
  return result.at(root.node());
}

UOp rebuild_graph(const UOp& root, const std::function<UOp(const UOp&, std::vector<UOp>&)>& make) {
  NodeMap<UOp> result;
  std::vector<UOp> sources;
  post_order(
      root.node(), [](const Node*) { return true; },
      [&](const Node* node) {
        const uint32_t first = after_call_body(node);
        sources.assign(node->src().begin(), node->src().begin() + first);
        for (const UOp& source : node->src().subspan(first))
          sources.push_back(result.at(source.node()));
        result.set(node, make(UOp::share(node), sources));
      });
  return result.at(root.node());
}

}  // namespace koine

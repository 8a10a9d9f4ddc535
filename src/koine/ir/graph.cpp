#include "koine/ir/graph.hpp"

#include <algorithm>

#include "koine/base/interrupt.hpp"
#include "koine/base/timer.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/origin.hpp"

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
  check_interrupt();
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
  NodeNumbers met;  // those that are not entered too: each is asked about once
  std::vector<std::pair<const Node*, uint32_t>> stack;
  auto meet = [&](const UOp& u) {
    if (met.add(u.node()).second && enter(u))
      stack.emplace_back(u.node(), after_call_body(u.node()));
  };
  meet(root);
  while (!stack.empty()) {
    auto& [node, next] = stack.back();
    if (next < node->source_count) {
      meet(node->sources()[next++]);
    } else {
      order.push_back(node);
      stack.pop_back();
    }
  }
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

namespace {

// What all rebuilding is: `make(node, sources)` of every node below `root`, sources first, with
// what was made of the sources from `first(node)` on. Sources of nodes that `expand` refuses are
// not visited.
template <class Expand, class Make, class First>
UOp rebuild(const UOp& root, Expand&& expand, Make&& make, First&& first) {
  NodeMap<UOp> result;
  std::vector<UOp> changed;
  post_order(
      root.node(), expand,
      [&](const Node* node) {
        std::span<const UOp> sources = node->src();
        changed.clear();
        for (size_t i = first(node); i < sources.size(); ++i) {
          const UOp* made = result.find(sources[i].node());
          if (made == nullptr || *made == sources[i]) continue;
          if (changed.empty()) changed.assign(sources.begin(), sources.end());
          changed[i] = *made;
        }
        if (!changed.empty()) sources = changed;
        const OriginScope from(origin_of(Borrowed(node)));
        result.set(node, make(UOp::share(node), sources));
      },
      first);
  return result.at(root.node());
}

}  // namespace

UOp substitute(const UOp& root, const Substitution& replacements) {
  return rebuild(
      root, [&](const Node* node) { return !replacements.contains(UOp::share(node)); },
      [&](const UOp& node, std::span<const UOp> sources) {
        const auto it = replacements.find(node);
        return it != replacements.end() ? it->second : with_sources(node, sources);
      },
      after_body);
}

UOp transform_graph(const UOp& root, const std::function<UOp(const UOp&, const UOp&)>& visit,
                    uint32_t skip) {
  if (is_normal(root.node(), skip)) return root;
  RewriteCounters& counters = rewrite_counters();
  const RewriteClock clock;
  return rebuild(
      root, [&](const Node* node) { return !is_normal(node, skip); },
      [&](const UOp& node, std::span<const UOp> sources) {
        if (is_normal(node.node(), skip)) return node;
        const UOp rebuilt = with_sources(node, sources);
        UOp out = visit(node, rebuilt);
        ++counters.visits;
        if (!(out == rebuilt)) ++counters.fired;
        return out;
      },
      after_call_body);
}

UOp rebuild_graph(const UOp& root, const std::function<UOp(const UOp&, std::vector<UOp>&)>& make) {
  std::vector<UOp> changeable;
  return rebuild(
      root, [](const Node*) { return true; },
      [&](const UOp& node, std::span<const UOp> sources) {
        changeable.assign(sources.begin(), sources.end());
        return make(node, changeable);
      },
      after_call_body);
}

}  // namespace koine

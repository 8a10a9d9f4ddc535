#include "koine/ir/graph.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>

#include "koine/ir/build.hpp"

namespace koine {
namespace {

// Visits nodes after their sources. `expand(node)` says whether to go below a node.
template <class Expand, class Visit>
void post_order(const Node* root, Expand&& expand, Visit&& visit) {
  absl::flat_hash_set<const Node*> done;
  std::vector<std::pair<const Node*, uint32_t>> stack{{root, 0}};
  while (!stack.empty()) {
    auto& [node, next] = stack.back();
    if (next == 0 && done.contains(node)) {
      stack.pop_back();
      continue;
    }
    const uint32_t count = expand(node) ? node->source_count : 0;
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
    if (done.insert(finished).second) visit(finished);
  }
}

}  // namespace

std::vector<UOp> toposort(const UOp& root) {
  std::vector<UOp> order;
  post_order(
      root.node(), [](const Node*) { return true; },
      [&](const Node* node) { order.push_back(UOp::share(node)); });
  return order;
}

std::vector<UOp> toposort(const UOp& root, const std::function<bool(const UOp&)>& enter) {
  std::vector<UOp> order;
  absl::flat_hash_map<const Node*, bool> entered;
  auto allowed = [&](const Node* node) {
    auto [it, fresh] = entered.try_emplace(node, false);
    if (fresh) it->second = enter(UOp::share(node));
    return it->second;
  };
  post_order(root.node(), allowed, [&](const Node* node) {
    if (allowed(node)) order.push_back(UOp::share(node));
  });
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
  absl::flat_hash_map<const Node*, UOp> result;
  std::vector<UOp> sources;
  post_order(
      root.node(), [&](const Node* node) { return !replacements.contains(UOp::share(node)); },
      [&](const Node* node) {
        const UOp self = UOp::share(node);
        if (auto it = replacements.find(self); it != replacements.end()) {
          result.emplace(node, it->second);
          return;
        }
        sources.assign(node->src().begin(), node->src().end());
        bool changed = false;
        const size_t first = node->op == Op::Function || node->op == Op::Call ? 1 : 0;
        for (size_t i = first; i < sources.size(); ++i) {
          const UOp& replaced = result.at(sources[i].node());
          changed |= !(replaced == sources[i]);
          sources[i] = replaced;
        }
        result.emplace(node, changed ? with_sources(self, sources) : self);
      });
  return result.at(root.node());
}

UOp transform_graph(const UOp& root, const std::function<UOp(const UOp&, const UOp&)>& visit) {
  absl::flat_hash_map<const Node*, UOp> result;
  std::vector<UOp> sources;
  post_order(
      root.node(), [](const Node*) { return true; },
      [&](const Node* node) {
        const UOp self = UOp::share(node);
        sources.assign(node->src().begin(), node->src().end());
        bool changed = false;
        for (UOp& source : sources) {
          const UOp& replaced = result.at(source.node());
          changed |= !(replaced == source);
          source = replaced;
        }
        result.emplace(node, visit(self, changed ? with_sources(self, sources) : self));
      });
  return result.at(root.node());
}

}  // namespace koine

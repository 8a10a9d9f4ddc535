#include "koine/lower/linearize.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// A node of the loop tree. Its items are instructions and inner loops, to be ordered by what they
// need from each other.
struct Loop {
  const Node* range = nullptr;  // null: the whole kernel
  Loop* parent = nullptr;
  int depth = 0;
  std::vector<const Node*> members;
  std::vector<Loop*> inner;
  size_t first = SIZE_MAX;  // earliest position of a member, for a stable order
};

class Linearizer {
 public:
  explicit Linearizer(const UOp& ast) : order_(toposort(ast)) {
    for (size_t i = 0; i < order_.size(); ++i) position_[order_[i].node()] = i;
  }

  UOp run() {
    build_loops();
    emit(root_);
    return UOp::make(Op::Linear, out_);
  }

 private:
  static bool emitted(const UOp& u) {
    switch (u.op()) {
      case Op::Sink:
      case Op::After:
      case Op::Group:
      case Op::End:
        return false;
      default:
        return true;
    }
  }

  // The loop a node runs in: the innermost of the ranges it depends on.
  Loop* home(const Node* node) {
    const UOp u = UOp::share(node);
    Loop* best = &root_;
    for (const Node* r : u.ranges()) {
      Loop* loop = loops_.at(r).get();
      if (loop->depth > best->depth) best = loop;
    }
    return best;
  }

  void build_loops() {
    std::vector<const Node*> ranges;
    for (const UOp& u : order_)
      if (u.is(Op::Range)) ranges.push_back(u.node());
    std::sort(ranges.begin(), ranges.end(), [](const Node* a, const Node* b) {
      return std::get<RangeArg>(a->arg).id < std::get<RangeArg>(b->arg).id;
    });
    // A loop nests in the loops that its closed body still depends on, and, listed in one End, the
    // later range nests in the earlier.
    std::map<const Node*, std::set<std::pair<int64_t, const Node*>>> outer;
    for (const UOp& u : order_) {
      if (!u.is(Op::End)) continue;
      const auto closed = u.src().subspan(1);
      for (size_t i = 0; i < closed.size(); ++i) {
        auto& set = outer[closed[i].node()];
        for (const Node* r : u.ranges()) set.emplace(std::get<RangeArg>(r->arg).id, r);
        for (size_t k = 0; k < i; ++k) set.emplace(closed[k].as<RangeArg>().id, closed[k].node());
      }
    }
    // What encloses an enclosing loop encloses this one.
    for (bool again = true; again;) {
      again = false;
      for (auto& [r, set] : outer) {
        const auto direct = set;
        for (const auto& [id, o] : direct)
          for (const auto& further : outer[o]) again = set.insert(further).second || again;
      }
    }
    for (const Node* r : ranges) {
      loops_.emplace(r, std::make_unique<Loop>());
      loops_.at(r)->range = r;
      KOINE_INVARIANT(outer.contains(r), "a Range is never closed:\n{}", to_text(order_.back()));
    }
    // Depth is the number of enclosing loops: a chain, so the deepest of them is the parent.
    for (const Node* r : ranges) loops_.at(r)->depth = static_cast<int>(outer.at(r).size()) + 1;
    for (const Node* r : ranges) {
      Loop* loop = loops_.at(r).get();
      loop->parent = &root_;
      for (const auto& [id, o] : outer.at(r))
        if (loops_.at(o)->depth > loop->parent->depth) loop->parent = loops_.at(o).get();
      KOINE_INVARIANT(loop->parent->depth == loop->depth - 1, "loops do not nest:\n{}",
                      to_text(order_.back()));
      loop->parent->inner.push_back(loop);
    }
    for (const UOp& u : order_) {
      if (u.is(Op::Range)) {
        touch(loops_.at(u.node())->parent, position_.at(u.node()));
        continue;
      }
      if (!emitted(u) || shape_operand(u)) continue;
      Loop* loop = home(u.node());
      loop->members.push_back(u.node());
      home_[u.node()] = loop;
      touch(loop, position_.at(u.node()));
    }
  }

  static void touch(Loop* loop, size_t position) {
    for (; loop != nullptr; loop = loop->parent) loop->first = std::min(loop->first, position);
  }

  // Sizes in Expand, Reshape and Shrink are not values; neither is the constant in a lane index.
  bool shape_operand(const UOp& u) {
    if (used_as_value_.empty()) find_values();
    return !used_as_value_.contains(u.node());
  }
  void find_values() {
    used_as_value_.insert(order_.back().node());
    for (size_t i = order_.size(); i-- > 0;) {
      const UOp& u = order_[i];
      if (!used_as_value_.contains(u.node())) continue;
      for_each_operand(u, [&](const UOp& s) { used_as_value_.insert(s.node()); });
    }
  }

  // The instructions a node waits for, seen through After, Group and End.
  void requirements(const UOp& u, std::vector<const Node*>& out) {
    std::vector<UOp> stack;
    for_each_operand(u, [&](const UOp& s) { stack.push_back(s); });
    std::set<const Node*> seen;
    while (!stack.empty()) {
      const UOp s = stack.back();
      stack.pop_back();
      if (!seen.insert(s.node()).second) continue;
      if (s.is(Op::After) || s.is(Op::Group) || s.is(Op::End)) {
        for (const UOp& below : s.src()) stack.push_back(below);
      } else if (s.is(Op::Range) || home_.contains(s.node())) {
        out.push_back(s.node());
      }
    }
  }

  // The item of `scope` that holds `node`: itself, or the inner loop around it; -1 when outside.
  const void* item_in(const Loop& scope, const Node* node) {
    Loop* loop;
    if (node->op == Op::Range) {
      loop = loops_.at(node).get();
    } else {
      loop = home_.at(node);
      if (loop == &scope) return node;
    }
    while (loop != nullptr && loop->parent != &scope) loop = loop->parent;
    return loop;
  }

  void members_below(Loop& loop, std::vector<const Node*>& out) {
    std::vector<Loop*> stack{&loop};
    while (!stack.empty()) {
      Loop* l = stack.back();
      stack.pop_back();
      out.insert(out.end(), l->members.begin(), l->members.end());
      if (l->range != nullptr) out.push_back(l->range);
      for (Loop* i : l->inner) stack.push_back(i);
    }
  }

  void emit(Loop& scope) {
    struct Item {
      const Node* node = nullptr;
      Loop* loop = nullptr;
      size_t key;
    };
    std::vector<Item> items;
    for (const Node* n : scope.members) items.push_back({n, nullptr, position_.at(n)});
    for (Loop* l : scope.inner) items.push_back({nullptr, l, l->first});
    absl::flat_hash_map<const void*, size_t> number;
    for (size_t i = 0; i < items.size(); ++i)
      number[items[i].loop ? static_cast<const void*>(items[i].loop) : items[i].node] = i;
    std::vector<std::vector<size_t>> users(items.size());
    std::vector<size_t> waits(items.size(), 0);
    for (size_t i = 0; i < items.size(); ++i) {
      std::vector<const Node*> below;
      if (items[i].loop)
        members_below(*items[i].loop, below);
      else
        below.push_back(items[i].node);
      std::set<size_t> needs;
      for (const Node* n : below) {
        std::vector<const Node*> needed;
        requirements(UOp::share(n), needed);
        for (const Node* r : needed) {
          const void* item = item_in(scope, r);
          if (item == nullptr) continue;
          const auto it = number.find(item);
          if (it != number.end() && it->second != i) needs.insert(it->second);
        }
      }
      for (const size_t n : needs) {
        users[n].push_back(i);
        ++waits[i];
      }
    }
    std::set<std::pair<size_t, size_t>> ready;
    for (size_t i = 0; i < items.size(); ++i)
      if (waits[i] == 0) ready.emplace(items[i].key, i);
    size_t done = 0;
    while (!ready.empty()) {
      const size_t i = ready.begin()->second;
      ready.erase(ready.begin());
      ++done;
      if (items[i].loop) {
        const UOp r = UOp::share(items[i].loop->range);
        out_.push_back(r);
        emit(*items[i].loop);  // depth of the loop nest, not of the graph
        out_.push_back(end(UOp::make(Op::Group, {}), std::vector<UOp>{r}));
      } else {
        out_.push_back(UOp::share(items[i].node));
      }
      for (const size_t u : users[i])
        if (--waits[u] == 0) ready.emplace(items[u].key, u);
    }
    KOINE_INVARIANT(done == items.size(), "instructions wait for each other in a circle:\n{}",
                    to_text(order_.back()));
  }

  std::vector<UOp> order_;
  absl::flat_hash_map<const Node*, size_t> position_;
  absl::flat_hash_map<const Node*, std::unique_ptr<Loop>> loops_;
  absl::flat_hash_map<const Node*, Loop*> home_;
  absl::flat_hash_set<const Node*> used_as_value_;
  Loop root_;
  std::vector<UOp> out_;
};

}  // namespace

UOp linearize(const UOp& ast) { return Linearizer(ast).run(); }

}  // namespace koine

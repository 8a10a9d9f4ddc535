#include "koine/lower/linearize.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <queue>
#include <set>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/verify/verify.hpp"

namespace koine {
namespace {

struct Loop;

// An instruction or an inner loop of a scope, to be ordered by what it needs from its neighbours;
// or a joint, which gathers what many wait for: an After, a Group or an End.
struct Item {
  const Node* node = nullptr;  // null for a loop and a joint
  Loop* loop = nullptr;
  size_t key = SIZE_MAX;     // earliest position of what it holds, for a stable order
  std::vector<Item*> users;  // one entry a need
  size_t waits = 0;
};

// A node of the loop tree.
struct Loop {
  const Node* range = nullptr;  // null: the whole kernel
  Loop* parent = nullptr;
  int depth = 0;
  Item item;  // in the scope of the parent
  std::vector<Item*> inside;
};

// Where an instruction, a joint or a Range is: nodes that are none of them have no scope.
struct Where {
  Loop* scope = nullptr;
  Item* item = nullptr;  // null for a Range, which opens its scope
};

class Linearizer {
 public:
  explicit Linearizer(const UOp& ast) : order_(toposort(ast)), where_(order_.size()) {
    for (const UOp& u : order_) position_.add(u.node());
  }

  UOp run() {
    build_loops();
    place_instructions();
    connect();
    emit(root_);
    return UOp::make(Op::Linear, out_);
  }

 private:
  Where& where(const Node* node) { return where_[position_.find(node)]; }

  [[noreturn]] static void refuse(const UOp& node, const char* rule) {
    report_violation("select", {node, -1, rule});
  }

  static bool is_joint(const UOp& u) { return u.is(Op::After) || u.is(Op::Group) || u.is(Op::End); }

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
      if (!outer.contains(r)) refuse(UOp::share(r), "every Range is closed");
      loops_.push_back(std::make_unique<Loop>());
      Loop* loop = loops_.back().get();
      loop->range = r;
      // The number of enclosing loops: a chain, so the deepest of them is the parent.
      loop->depth = static_cast<int>(outer.at(r).size()) + 1;
      where(r).scope = loop;
    }
    for (const auto& loop : loops_) {
      loop->parent = &root_;
      for (const auto& [id, o] : outer.at(loop->range))
        if (Loop* l = where(o).scope; l->depth > loop->parent->depth) loop->parent = l;
      if (loop->parent->depth != loop->depth - 1) refuse(UOp::share(loop->range), "loops nest");
      loop->item.loop = loop.get();
      loop->parent->inside.push_back(&loop->item);
    }
    for (const auto& loop : loops_) touch(loop->parent, position_.find(loop->range));
  }

  // The loop tree holds something at `position`.
  static void touch(Loop* loop, size_t position) {
    for (; loop->parent != nullptr; loop = loop->parent)
      loop->item.key = std::min(loop->item.key, position);
  }

  // Sizes in Expand, Reshape and Shrink are not values; neither is the constant in a lane index.
  std::vector<bool> used_as_value() {
    std::vector<bool> used(order_.size());
    used.back() = true;
    for (size_t i = order_.size(); i-- > 0;)
      if (used[i])
        for_each_operand(order_[i], [&](const UOp& s) { used[position_.find(s.node())] = true; });
    return used;
  }

  // An instruction runs in the innermost of the loops it depends on; so does what waits for a
  // joint. An AtomicAdd adds in each turn of all loops around it, also of those that it does not
  // depend on.
  void place_instructions() {
    const std::vector<bool> used = used_as_value();
    const auto around = loops_of_atomic_adds({order_.begin(), order_.end()});
    items_.resize(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) {
      const UOp& u = order_[i];
      if (!used[i] || u.is(Op::Sink) || u.is(Op::Range)) continue;
      Loop* scope = &root_;
      auto stands_in = [&](const Node* r) {
        if (Loop* l = where(r).scope; l->depth > scope->depth) scope = l;
      };
      for (const Node* r : u.ranges()) stands_in(r);
      if (u.is(Op::AtomicAdd))
        if (const auto loops = around.find(u); loops != around.end())
          for (const UOp& r : loops->second) stands_in(r.node());
      Item& item = items_[i];
      item.key = i;
      scope->inside.push_back(&item);
      where_[i] = {scope, &item};
      if (is_joint(u)) continue;
      item.node = u.node();
      touch(scope, i);
    }
  }

  // A need orders the two items that hold both ends in the innermost scope around both.
  void connect() {
    for (size_t i = 0; i < order_.size(); ++i) {
      if (where_[i].scope == nullptr) continue;
      for_each_operand(order_[i], [&](const UOp& operand) {
        const size_t r = position_.find(operand.node());
        if (where_[r].scope == nullptr) return;
        Loop *user = where_[i].scope, *source = where_[r].scope;
        Item *user_item = where_[i].item, *source_item = where_[r].item;
        while (user != source) {
          if (user->depth >= source->depth) {
            user_item = &user->item;
            user = user->parent;
          } else {
            source_item = &source->item;
            source = source->parent;
          }
        }
        if (user_item == nullptr || source_item == nullptr || user_item == source_item) return;
        source_item->users.push_back(user_item);
        ++user_item->waits;
      });
    }
  }

  void emit(Loop& scope) {
    auto later = [](const Item* a, const Item* b) { return a->key > b->key; };
    std::priority_queue<Item*, std::vector<Item*>, decltype(later)> ready(later);
    for (Item* item : scope.inside)
      if (item->waits == 0) ready.push(item);
    size_t done = 0;
    while (!ready.empty()) {
      Item* item = ready.top();
      ready.pop();
      ++done;
      if (item->loop != nullptr) {
        const UOp r = UOp::share(item->loop->range);
        out_.push_back(r);
        emit(*item->loop);  // depth of the loop nest, not of the graph
        out_.push_back(end(UOp::make(Op::Group, {}), std::vector<UOp>{r}));
      } else if (item->node != nullptr) {
        out_.push_back(UOp::share(item->node));
      }
      for (Item* user : item->users)
        if (--user->waits == 0) ready.push(user);
    }
    if (done != scope.inside.size())
      refuse(order_.back(), "instructions do not wait for each other in a circle");
  }

  NodeList order_;
  NodeNumbers position_;  // of a node in the order
  std::vector<Where> where_;
  std::vector<Item> items_;
  std::vector<std::unique_ptr<Loop>> loops_;
  Loop root_;
  std::vector<UOp> out_;
};

}  // namespace

UOp linearize(const UOp& ast) { return Linearizer(ast).run(); }

}  // namespace koine

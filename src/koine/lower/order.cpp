#include "koine/lower/order.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <tuple>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"

namespace koine {
namespace {

class Ordering {
 public:
  Ordering(const std::vector<Footprint>& kernels, const Versions& versions)
      : kernels_(kernels), versions_(versions) {
    for (size_t k = 0; k < kernels.size(); ++k)
      for (const UOp& made : kernels[k].makes) makers_[made.node()].push_back(k);
    needs_.resize(kernels.size());
    for (size_t k = 0; k < kernels.size(); ++k) connect(k);
    content_ = contents();
    for (Numbers& needs : needs_)
      std::stable_sort(needs.begin(), needs.end(),
                       [&](size_t a, size_t b) { return content_[a] < content_[b]; });
  }

  KernelOrder run() {
    // A depth-first walk from each kernel that nobody waits for keeps producers near their users.
    std::vector<State> state(kernels_.size(), State::New);
    for (const size_t root : roots())
      if (out_.to_copy.empty()) walk(root, state);
    return std::move(out_);
  }

 private:
  enum class State : uint8_t { New, Open, Done };
  using Numbers = std::vector<size_t>;

  // What each kernel computes, and what those do that it shares memory with, some steps away.
  std::vector<uint64_t> contents() const {
    constexpr int steps = 3;
    constexpr uint64_t reads = 1, stores = 2;
    std::vector<uint64_t> out;
    for (const Footprint& k : kernels_) out.push_back(k.content);
    for (int step = 0; step < steps; ++step) {
      absl::flat_hash_map<const Node*, uint64_t> of_memory;
      for (size_t k = 0; k < kernels_.size(); ++k) {
        for (const UOp& m : kernels_[k].memory) of_memory[m.node()] += hash_mix(reads, out[k]);
        for (const UOp& m : kernels_[k].stored) of_memory[m.node()] += hash_mix(stores, out[k]);
      }
      for (size_t k = 0; k < kernels_.size(); ++k) {
        uint64_t around = 0;
        for (const UOp& m : kernels_[k].memory) around += hash_mix(reads, of_memory[m.node()]);
        for (const UOp& m : kernels_[k].stored) around += hash_mix(stores, of_memory[m.node()]);
        out[k] = hash_mix(out[k], around);
      }
    }
    return out;
  }

  // Those that nobody waits for: a check, and then the one with the shortest way to it first, as
  // the gradient of the last layer is done with what it reads when that of the first one begins.
  // Behind them what waits in circles.
  Numbers roots() const {
    std::vector<size_t> users(kernels_.size()), height(kernels_.size());
    for (const Numbers& needs : needs_)
      for (const size_t n : needs) ++users[n];
    Numbers out, order;  // `order`: users first
    for (size_t k = 0; k < kernels_.size(); ++k)
      if (users[k] == 0) out.push_back(k);
    order = out;
    for (size_t i = 0; i < order.size(); ++i)
      for (const size_t n : needs_[order[i]])
        if (--users[n] == 0) order.push_back(n);
    for (size_t i = order.size(); i-- > 0;)
      for (const size_t n : needs_[order[i]])
        height[order[i]] = std::max(height[order[i]], height[n] + 1);
    auto place = [&](size_t k) { return std::tuple(!kernels_[k].checks, height[k], content_[k]); };
    std::stable_sort(out.begin(), out.end(),
                     [&](size_t a, size_t b) { return place(a) < place(b); });
    for (size_t k = 0; k < kernels_.size(); ++k)
      if (users[k] != 0) out.push_back(k);
    return out;
  }

  const Numbers& makers(const UOp& node) const {
    static const auto& none = *new const Numbers;
    const auto it = makers_.find(node.node());
    return it == makers_.end() ? none : it->second;
  }

  // The kernels that must have run for a state to be there.
  Numbers effects(const UOp& state) const {
    Numbers out;
    absl::flat_hash_set<const Node*> seen;
    std::vector<UOp> pending{state};
    while (!pending.empty()) {
      const UOp u = pending.back();
      pending.pop_back();
      if (!seen.insert(u.node()).second) continue;
      const Numbers& own = makers(u);
      out.insert(out.end(), own.begin(), own.end());
      if (!u.is(Op::After)) continue;
      // Its own stores follow those of the state that they write over.
      const UOp &below = u.src(0), version = versions_.of(below);
      const bool follows = below == version && std::any_of(own.begin(), own.end(), [&](size_t k) {
                             return overwrites(k, version);
                           });
      if (!follows) pending.push_back(below);
      for (const UOp& dependency : u.src().subspan(1))
        for (const UOp& after : afters_in(dependency)) pending.push_back(after);
    }
    return out;
  }

  bool overwrites(size_t k, const UOp& version) const {
    const auto& list = kernels_[k].overwrites;
    return version && std::find(list.begin(), list.end(), version) != list.end();
  }

  void connect(size_t k) {
    auto follow = [&](const UOp& state) {
      for (const size_t earlier : effects(state))
        if (earlier != k) needs_[k].push_back(earlier);
    };
    for (const UOp& state : kernels_[k].reads) {
      follow(state);
      come_before_stores(k, versions_.of(state));
    }
    for (const UOp& version : kernels_[k].overwrites) {
      follow(version);
      // Stores of one After into one version: in the order they are listed.
      for (const size_t other : makers(kernels_[k].makes[0]))
        if (other < k && overwrites(other, version)) needs_[k].push_back(other);
    }
  }

  // The reader of a version runs before the next kernel that really stores over it.
  void come_before_stores(size_t reader, const UOp& read) {
    for (UOp version = read; version;) {
      const UOp after = versions_.overwritten_by(version);
      if (!after) return;
      bool any = false;
      for (const size_t k : makers(after)) {
        if (!overwrites(k, version)) continue;
        any = true;
        if (k == reader) continue;
        needs_[k].push_back(reader);
        old_states_.emplace(std::pair(k, reader), read);
      }
      if (any || !(versions_.of(after) == after)) return;
      version = after;  // what it would store is empty
    }
  }

  void walk(size_t root, std::vector<State>& state) {
    std::vector<std::pair<size_t, size_t>> stack{{root, 0}};
    while (!stack.empty()) {
      auto& [k, next] = stack.back();
      if (next == 0) {
        if (state[k] == State::Done) {
          stack.pop_back();
          continue;
        }
        state[k] = State::Open;
      }
      if (next < needs_[k].size()) {
        const size_t earlier = needs_[k][next++];
        if (state[earlier] == State::Open) return break_circle(stack, earlier);
        if (state[earlier] == State::New) stack.emplace_back(earlier, 0);
        continue;
      }
      state[k] = State::Done;
      out_.sequence.push_back(k);
      stack.pop_back();
    }
  }

  // Kernels that wait for each other: somebody reads an old state, which is copied.
  void break_circle(const std::vector<std::pair<size_t, size_t>>& stack, size_t first) {
    auto look = [&](size_t waits, size_t reader) {
      if (const auto it = old_states_.find({waits, reader}); it != old_states_.end())
        out_.to_copy.push_back(it->second);
    };
    look(stack.back().first, first);
    for (size_t i = stack.size() - 1; stack[i].first != first; --i)
      look(stack[i - 1].first, stack[i].first);
    KOINE_INVARIANT(!out_.to_copy.empty(), "kernels depend on each other in a circle");
  }

  const std::vector<Footprint>& kernels_;
  const Versions& versions_;
  absl::flat_hash_map<const Node*, Numbers> makers_;
  absl::flat_hash_map<std::pair<size_t, size_t>, UOp> old_states_;  // (waits, reader) -> version
  std::vector<Numbers> needs_;  // of each: those that must run earlier
  std::vector<uint64_t> content_;
  KernelOrder out_;
};

}  // namespace

KernelOrder order_kernels(const std::vector<Footprint>& kernels, const Versions& versions) {
  return Ordering(kernels, versions).run();
}

}  // namespace koine

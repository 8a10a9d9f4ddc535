#pragma once
#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

namespace detail {
/// Open addressing, cleared in O(1): a slot of an older generation is empty. A walk uses as many of
/// the first slots as it has need of, so that short ones stay in the near cache.
struct NodeTable {
  static constexpr size_t fewest = 256;
  static constexpr size_t most_kept = size_t{1} << 16;  // 1 MiB; a longer walk frees its table
  struct Slot {
    const Node* node = nullptr;
    uint32_t generation = 0;
    uint32_t number = 0;
  };
  std::vector<Slot> slots = std::vector<Slot>(fewest);
  uint32_t generation = 0;
  void clear();
};
std::unique_ptr<NodeTable> borrow_table();
void give_back(std::unique_ptr<NodeTable> table);
}  // namespace detail

/// How many nodes the walks of this thread have numbered, those that are over: what passes cost,
/// whichever way they look at a graph.
int64_t& walked_nodes();

/// Asks for what walks look at in a node, two lines, before they get there: from the end of its
/// argument, which says of what kind it is, to the first sources.
inline void fetch_ahead(const Node* node) {
  __builtin_prefetch(reinterpret_cast<const char*>(&node->arg + 1) - 1);
  __builtin_prefetch(node->sources());
}

/// How many a walk may expect below each of many values, and how many of those with several users:
/// a step of training has about twenty and seven.
constexpr size_t nodes_per_value = 16, shared_per_value = 7;

/// Numbers the nodes of one walk 0, 1, 2, ... in the order they are added. Walks are short and
/// many, so the tables come from a pool of the thread. Keys are not kept alive.
class NodeNumbers {
 public:
  static constexpr uint32_t none = UINT32_MAX;

  /// `expected`: so many come at once, without finding new places for them.
  explicit NodeNumbers(size_t expected = 0) : table_(detail::borrow_table()) {
    if (2 * expected > mask_)
      use(std::min(std::bit_ceil(2 * expected), detail::NodeTable::most_kept));
  }
  ~NodeNumbers() {
    walked_nodes() += count_;
    detail::give_back(std::move(table_));
  }
  NodeNumbers(const NodeNumbers&) = delete;
  NodeNumbers& operator=(const NodeNumbers&) = delete;

  uint32_t find(const Node* node) const {
    const auto& slots = table_->slots;
    for (size_t i = place(node);; i = (i + 1) & mask_) {
      const auto& slot = slots[i];
      if (slot.generation != table_->generation) return none;
      if (slot.node == node) return slot.number;
    }
  }
  bool contains(const Node* node) const { return find(node) != none; }

  /// The number of `node`, and whether it is new.
  std::pair<uint32_t, bool> add(const Node* node) {
    if (count_ * 2 > mask_) grow();
    auto& slots = table_->slots;
    for (size_t i = place(node);; i = (i + 1) & mask_) {
      auto& slot = slots[i];
      if (slot.generation != table_->generation) {
        slot = {node, table_->generation, count_};
        return {count_++, true};
      }
      if (slot.node == node) return {slot.number, false};
    }
  }
  uint32_t size() const { return count_; }
  /// Asks for the place of a node, before it is looked for.
  void fetch_ahead(const Node* node) const { __builtin_prefetch(&table_->slots[place(node)]); }

 private:
  size_t place(const Node* node) const {
    const auto key = reinterpret_cast<uintptr_t>(node) >> 4;
    return (key * 0x9e3779b97f4a7c15u >> 32) & mask_;
  }
  void grow();
  void use(size_t slots);

  std::unique_ptr<detail::NodeTable> table_;
  size_t mask_ = detail::NodeTable::fewest - 1;  // one less than the slots in use
  uint32_t count_ = 0;
};

/// A value for each node of one walk.
template <class T>
class NodeMap {
 public:
  explicit NodeMap(size_t expected = 0) : numbers_(expected) {}
  T* find(const Node* node) {
    const uint32_t i = numbers_.find(node);
    return i == NodeNumbers::none ? nullptr : &values_[i];
  }
  const T* find(const Node* node) const { return const_cast<NodeMap*>(this)->find(node); }
  bool contains(const Node* node) const { return numbers_.contains(node); }
  /// The value of a node that is there.
  const T& at(const Node* node) const { return values_.at(numbers_.find(node)); }
  /// The value, made on the first call. References hold until the next new node.
  T& operator[](const Node* node) {
    const auto [i, fresh] = numbers_.add(node);
    if (fresh) values_.emplace_back();
    return values_[i];
  }
  void set(const Node* node, T value) { (*this)[node] = std::move(value); }
  /// The value of `node`, and whether it is new: then it is this one. It holds as long as above.
  std::pair<const T&, bool> add(const Node* node, T value) {
    const auto [i, fresh] = numbers_.add(node);
    if (fresh) values_.push_back(std::move(value));
    return {values_[i], fresh};
  }
  size_t size() const { return values_.size(); }
  void fetch_ahead(const Node* node) const { numbers_.fetch_ahead(node); }

 private:
  NodeNumbers numbers_;
  absl::InlinedVector<T, 8> values_;
};

/// Nodes that a root keeps alive; reads like a vector of handles, without counting references.
class NodeList {
 public:
  explicit NodeList(UOp root) : root_(std::move(root)) {}
  void push_back(const Node* node) { nodes_.push_back(Borrowed(node)); }
  const UOp* begin() const { return reinterpret_cast<const UOp*>(nodes_.data()); }
  const UOp* end() const { return begin() + nodes_.size(); }
  const UOp& operator[](size_t i) const { return begin()[i]; }
  const UOp& back() const { return end()[-1]; }
  size_t size() const { return nodes_.size(); }
  bool empty() const { return nodes_.empty(); }
  const UOp& root() const { return root_; }

 private:
  static_assert(sizeof(Borrowed) == sizeof(UOp));
  UOp root_;
  std::vector<Borrowed> nodes_;
};

}  // namespace koine

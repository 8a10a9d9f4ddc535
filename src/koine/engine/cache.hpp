#pragma once
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "koine/base/hash.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// What was made for a key. Safe from several threads. Bounded: beyond so much weight the oldest
/// goes; users keep what they hold.
template <class Key, class Made, class Hash = std::hash<Key>>
class Cache {
 public:
  explicit Cache(size_t most_weight) : most_weight_(most_weight) {}

  /// Null where nothing is known.
  std::shared_ptr<Made> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(key);
    return it == entries_.end() ? nullptr : it->second.made;
  }
  void add(Key key, std::shared_ptr<Made> made, size_t weight = 1) {
    const std::lock_guard lock(mutex_);
    const auto [it, fresh] = entries_.try_emplace(std::move(key), Entry{made, weight});
    if (!fresh) {
      it->second.made = std::move(made);
      return;
    }
    order_.push_back(&it->first);
    weight_ += weight;
    while (weight_ > most_weight_ && order_.size() > 1) drop_oldest();
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    order_.clear();
    entries_.clear();
    weight_ = 0;
  }

 private:
  struct Entry {
    std::shared_ptr<Made> made;
    size_t weight;
  };
  void drop_oldest() {
    const auto it = entries_.find(*order_.front());
    order_.pop_front();
    weight_ -= it->second.weight;
    entries_.erase(it);
  }

  size_t most_weight_, weight_ = 0;
  std::mutex mutex_;
  std::unordered_map<Key, Entry, Hash> entries_;  // a key stays where it is
  std::list<const Key*> order_;                   // oldest first
};

/// A graph, and for what something was made of it: a target, with the switches that matter.
struct GraphKey {
  UOp graph;
  std::string target;
  bool operator==(const GraphKey&) const = default;
};
struct GraphKeyHash {
  size_t operator()(const GraphKey& k) const {
    return hash_mix(k.graph.hash(), hash_text(k.target));
  }
};
template <class Made>
using GraphCache = Cache<GraphKey, Made, GraphKeyHash>;

}  // namespace koine

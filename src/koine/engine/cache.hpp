#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// What was made of a graph for a key (a target, with the switches that matter). Safe from several
/// threads. Bounded: when it is full, the older half of the graphs goes; users keep what they hold.
template <class Made>
class GraphCache {
 public:
  explicit GraphCache(size_t most_graphs) : most_(most_graphs) {}

  /// Null where nothing is known.
  std::shared_ptr<Made> find(const UOp& graph, const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto it = entries_.find(graph);
    if (it == entries_.end()) return nullptr;
    const auto found = it->second.find(key);
    return found == it->second.end() ? nullptr : found->second;
  }
  void add(const UOp& graph, const std::string& key, std::shared_ptr<Made> made) {
    const std::lock_guard lock(mutex_);
    if (order_.size() >= most_) {
      const auto half = order_.begin() + static_cast<std::ptrdiff_t>(most_ / 2);
      for (auto it = order_.begin(); it != half; ++it) entries_.erase(*it);
      order_.erase(order_.begin(), half);
    }
    if (!entries_.contains(graph)) order_.push_back(graph);
    entries_[graph][key] = std::move(made);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
    order_.clear();
  }

 private:
  size_t most_;
  std::mutex mutex_;
  std::unordered_map<UOp, std::unordered_map<std::string, std::shared_ptr<Made>>> entries_;
  std::vector<UOp> order_;  // oldest first
};

}  // namespace koine

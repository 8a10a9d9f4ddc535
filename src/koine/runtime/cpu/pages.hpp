#pragma once
#include <cstddef>
#include <iterator>
#include <map>

namespace koine {

/// Pages of `bytes` bytes side by side. The lowest that are free are given away first, so that what
/// is taken stays close together; those given back join their free neighbours. For one thread.
class Pages {
 public:
  Pages(char* begin, size_t count, size_t bytes) : begin_(begin), bytes_(bytes) {
    free_.emplace(0, count);
  }

  /// Null where so many are not free side by side.
  char* take(size_t count) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const auto [first, size] = *it;
      if (size < count) continue;
      free_.erase(it);
      if (size > count) free_.emplace(first + count, size - count);
      return begin_ + first * bytes_;
    }
    return nullptr;
  }

  /// What `take` gave, whole or in parts.
  void give_back(const char* at, size_t count) {
    const size_t first = static_cast<size_t>(at - begin_) / bytes_;
    auto it = free_.emplace(first, count).first;
    if (const auto next = std::next(it);
        next != free_.end() && next->first == it->first + it->second) {
      it->second += next->second;
      free_.erase(next);
    }
    if (it == free_.begin()) return;
    const auto before = std::prev(it);
    if (before->first + before->second != it->first) return;
    before->second += it->second;
    free_.erase(it);
  }

 private:
  char* begin_;
  size_t bytes_;
  std::map<size_t, size_t> free_;  // first page -> how many
};

}  // namespace koine

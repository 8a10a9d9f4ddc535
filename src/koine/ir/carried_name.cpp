#include "koine/ir/carried_name.hpp"

#include <mutex>
#include <unordered_map>

namespace koine {
namespace {

struct Kept {
  std::function<void()> gone;
  int64_t carriers = 0;
  bool wanted = true;
};
struct Names {
  std::mutex mutex;
  std::unordered_map<std::string, Kept> kept;

  // What `change` does to a name, and what is to be called where that was the last of it.
  template <class Change>
  void update(const std::string& name, Change&& change) {
    std::function<void()> gone;
    {
      const std::lock_guard lock(mutex);
      const auto it = kept.find(name);
      if (it == kept.end()) return;
      change(it->second);
      if (it->second.wanted || it->second.carriers > 0) return;
      gone = std::move(it->second.gone);
      kept.erase(it);
      --detail::kept_names;
    }
    gone();
  }
};
Names& names() {
  static auto& instance = *new Names;
  return instance;
}

}  // namespace

namespace detail {
std::atomic<int64_t> kept_names{0};
void add_carrier(const std::string& name) {
  names().update(name, [](Kept& k) { ++k.carriers; });
}
void drop_carrier(const std::string& name) {
  names().update(name, [](Kept& k) { --k.carriers; });
}
}  // namespace detail

void keep_name(const std::string& name, std::function<void()> gone) {
  const std::lock_guard lock(names().mutex);
  if (names().kept.try_emplace(name, Kept{std::move(gone)}).second) ++detail::kept_names;
}
void let_go_name(const std::string& name) {
  names().update(name, [](Kept& k) { k.wanted = false; });
}

}  // namespace koine

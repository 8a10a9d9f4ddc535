#include "koine/ir/origin.hpp"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "koine/ir/graph.hpp"
#include "koine/ir/uop.hpp"

namespace koine {
namespace {

struct Line {
  std::string file;
  int64_t number;
  std::string function;
};

constexpr size_t most_lines = 4;
constexpr Origin others = Node::several_origins;  // beside those of the set

// Lines are few: as many as a program has. Sets are at most as many as nodes that several made.
struct Table {
  using Set = std::vector<uint32_t>;  // places in `lines`, in order

  std::mutex mutex;
  std::deque<Line> lines;
  std::deque<Set> sets;  // number n is at n - 1
  absl::flat_hash_map<std::pair<std::string, int64_t>, Origin> of_line;
  absl::flat_hash_map<Set, Origin> of_set;
  absl::flat_hash_map<std::pair<Origin, Origin>, Origin> of_both;

  const Set& set(Origin origin) const { return sets[(origin & ~others) - 1]; }
  Origin number_of(Set asked) {
    const auto [it, fresh] = of_set.try_emplace(asked, 0);
    if (fresh) {
      sets.push_back(std::move(asked));
      it->second = static_cast<Origin>(sets.size());
    }
    return it->second;
  }
};
Table& table() {
  static auto& all = *new Table;
  return all;
}

std::vector<Line> lines_of(Origin origin) {
  if (origin == 0) return {};
  const std::lock_guard lock(table().mutex);
  std::vector<Line> out;
  for (const uint32_t place : table().set(origin)) out.push_back(table().lines[place]);
  return out;
}

constinit thread_local Origin scoped = 0;
std::atomic<OriginHook> hook{nullptr};

std::string name_of_file(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

Origin origin_at(std::string_view file, int64_t line, std::string_view function) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const auto [it, fresh] = t.of_line.try_emplace({std::string(file), line}, 0);
  if (fresh) {
    t.lines.push_back({std::string(file), line, std::string(function)});
    it->second = t.number_of({static_cast<uint32_t>(t.lines.size() - 1)});
  }
  return it->second;
}

Origin detail::joined(Origin known, Origin added) {
  Table& t = table();
  const std::lock_guard lock(t.mutex);
  const auto [it, fresh] = t.of_both.try_emplace({known, added}, 0);
  if (!fresh) return it->second;
  Table::Set all = t.set(known);
  for (const uint32_t line : t.set(added))
    if (std::find(all.begin(), all.end(), line) == all.end()) all.push_back(line);
  const bool more = all.size() > most_lines || ((known | added) & others) != 0;
  if (all.size() > most_lines) all.resize(most_lines);
  std::sort(all.begin(), all.end());
  return it->second = t.number_of(std::move(all)) | (more ? others : 0);
}

OriginScope::OriginScope(Origin origin) : saved_(scoped) {
  if (origin != 0) scoped = origin;
}
OriginScope::~OriginScope() { scoped = saved_; }

Here::Here(const std::source_location& place)
    : OriginScope(origin_at(place.file_name(), place.line(), "")) {}

void set_origin_hook(OriginHook asked) { hook.store(asked, std::memory_order_relaxed); }

Origin detail::present_origin() {
  if (scoped != 0) return scoped;
  const OriginHook asked = hook.load(std::memory_order_relaxed);
  return asked != nullptr ? asked() : 0;
}

Origin origin_of(const UOp& node) { return node.node()->origin.load(std::memory_order_relaxed); }

std::string origin_text(const UOp& node) {
  const Origin origin = origin_of(node);
  std::string out;
  const std::vector<Line> lines = lines_of(origin);
  for (const Line& line : lines)
    out += fmt::format("{}{}:{}{}", out.empty() ? "" : ", ", name_of_file(line.file), line.number,
                       line.function.empty() ? "" : " in " + line.function);
  if ((origin & others) != 0) out += " and others";
  return lines.size() > 1 ? "one of " + out : out;
}

std::string origins_below(const UOp& root, size_t most) {
  std::set<Origin> found;
  for (const UOp& u : toposort(root)) {
    if (u.is(Op::Const) || u.dtype() == DType::Index || u.dtype() == DType::Void) continue;
    found.insert(origin_of(u));
  }
  std::map<std::string, std::set<int64_t>> by_file;
  size_t count = 0, named = 0;
  for (const Origin origin : found)
    for (const Line& line : lines_of(origin))
      count += by_file[name_of_file(line.file)].insert(line.number).second ? 1 : 0;
  std::string out;
  for (const auto& [file, numbers] : by_file) {
    std::string list;
    for (const int64_t number : numbers)
      if (named < most) {
        list += (list.empty() ? "" : ", ") + std::to_string(number);
        ++named;
      }
    if (!list.empty()) out += fmt::format("{}{}:{}", out.empty() ? "" : ", ", file, list);
  }
  if (count > named) out += fmt::format(" and {} more", count - named);
  return out;
}

}  // namespace koine

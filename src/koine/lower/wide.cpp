#include "koine/lower/wide.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <span>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// Scalar accesses of one memory, each so many elements behind one place.
struct Neighbours {
  UOp memory, place, gate;
  std::vector<std::pair<int64_t, UOp>> accesses;
};

using Run = std::span<const std::pair<int64_t, UOp>>;

// A place as another and a constant number of elements behind it.
std::pair<UOp, int64_t> place_and_offset(const UOp& place) {
  if (place.is(Op::Add) && place.src(1).is(Op::Const))
    return {place.src(0), const_int(place.src(1))};
  if (place.is(Op::Const)) return {index_const(0), const_int(place)};
  return {place, 0};
}

// Lists of them, in the order in which they are met.
class Lists {
 public:
  void add(const UOp& access, const UOp& gate) {
    const UOp& address = access.src(0);
    if (!is_address(address) || address.src().size() != 2 || !address.src(1).is_scalar()) return;
    const UOp& buffer = buffer_at(address);
    if (!buffer.is(Op::Param) && buffer.as<BufferArg>().space != AddrSpace::Local) return;
    const auto [place, offset] = place_and_offset(address.src(1));
    const auto [it, is_new] = by_place_.try_emplace(
        Key{address.src(0).node(), place.node(), gate ? gate.node() : nullptr}, lists_.size());
    if (is_new) lists_.push_back({address.src(0), place, gate, {}});
    lists_[it->second].accesses.emplace_back(offset, access);
  }

  std::vector<Neighbours>& all() { return lists_; }

 private:
  using Key = std::array<const Node*, 3>;
  std::map<Key, size_t> by_place_;
  std::vector<Neighbours> lists_;
};

// Calls `use` for each run of 2, 4, 8 ... of them that one access takes.
void for_each_run(Neighbours& list, int64_t bytes, const std::function<void(Run)>& use) {
  auto& accesses = list.accesses;
  std::ranges::stable_sort(accesses, {}, &std::pair<int64_t, UOp>::first);
  const auto most =
      static_cast<size_t>(bytes / item_size(buffer_at(accesses[0].second.src(0)).dtype()));
  for (size_t i = 0; i < accesses.size();) {
    size_t lanes = most;
    const auto fits = [&] {
      if (i + lanes > accesses.size()) return false;
      for (size_t k = 1; k < lanes; ++k)
        if (accesses[i + k].first != accesses[i].first + static_cast<int64_t>(k)) return false;
      const UOp begin = add(list.place, index_const(accesses[i].first));
      return is_const(simplify_index(mod(begin, index_const(static_cast<int64_t>(lanes)))), 0);
    };
    while (lanes > 1 && !fits()) lanes /= 2;
    if (lanes > 1) use(std::span(accesses).subspan(i, lanes));
    i += std::max<size_t>(lanes, 1);
  }
}

// So many places from one on.
UOp neighbours(const UOp& memory, const UOp& begin, size_t count) {
  const UOp shape = shape_of({static_cast<int64_t>(count)});
  std::vector<UOp> numbers;
  for (size_t k = 0; k < count; ++k) numbers.push_back(index_const(static_cast<int64_t>(k)));
  const UOp first = expand(reshape(simplify_index(begin), shape_of({1})), shape);
  return index(memory, {add(first, stack(numbers))});
}

UOp in_wide_loads(const UOp& ast, int64_t bytes) {
  Lists lists;
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Load) && u.src().size() == 1 && u.is_scalar()) lists.add(u, {});
  struct Part {
    int64_t begin;  // of its run, behind the place that all have
    int64_t lane;
    size_t lanes;
  };
  absl::flat_hash_map<const Node*, Part> parts;
  for (Neighbours& list : lists.all())
    for_each_run(list, bytes, [&](Run run) {
      for (size_t k = 0; k < run.size(); ++k)
        parts.emplace(run[k].second.node(),
                      Part{run[0].first, static_cast<int64_t>(k), run.size()});
    });
  if (parts.empty()) return ast;
  return transform_graph(ast, [&](const UOp& original, const UOp& node) {
    const auto it = parts.find(original.node());
    if (it == parts.end()) return node;
    const auto& [begin, lane, lanes] = it->second;
    const UOp& address = node.src(0);
    const UOp from = add(place_and_offset(address.src(1)).first, index_const(begin));
    return index(load(neighbours(address.src(0), from, lanes)), {index_const(lane)});
  });
}

UOp stores_together(const UOp& group, int64_t bytes) {
  Lists lists;
  for (const UOp& u : group.src())
    if (u.is(Op::Store) && u.src(1).is_scalar())
      lists.add(u, u.src().size() == 3 ? u.src(2) : UOp());
  absl::flat_hash_map<const Node*, UOp> wide;  // in place of the first of a run; null: of others
  for (Neighbours& list : lists.all()) {
    const bool apart = std::ranges::adjacent_find(list.accesses, {}, [](const auto& a) {
                         return a.first;
                       }) == list.accesses.end();
    if (!apart) continue;
    for_each_run(list, bytes, [&](Run run) {
      std::vector<UOp> values;
      for (const auto& [offset, access] : run) values.push_back(access.src(1));
      const UOp shape = shape_of({static_cast<int64_t>(run.size())});
      const UOp gate = list.gate ? expand(reshape(list.gate, shape_of({1})), shape) : UOp();
      for (const auto& [offset, access] : run) wide.emplace(access.node(), UOp());
      wide[run[0].second.node()] =
          store(neighbours(list.memory, add(list.place, index_const(run[0].first)), run.size()),
                stack(values), gate);
    });
  }
  if (wide.empty()) return group;
  std::vector<UOp> src;
  for (const UOp& u : group.src())
    if (const auto it = wide.find(u.node()); it == wide.end())
      src.push_back(u);
    else if (it->second)
      src.push_back(it->second);
  return koine::group(src);
}

}  // namespace

UOp in_wide_accesses(const UOp& ast, int64_t bytes) {
  return transform_graph(in_wide_loads(ast, bytes), [&](const UOp&, const UOp& node) {
    return node.is(Op::Group) && !node.src().empty() ? stores_together(node, bytes) : node;
  });
}

}  // namespace koine

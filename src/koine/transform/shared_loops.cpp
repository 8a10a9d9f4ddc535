#include "koine/transform/shared_loops.hpp"

#include <algorithm>
#include <unordered_map>

#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"

namespace koine {
namespace {

bool is_loop_result(const UOp& u) { return is_call_result(u) && is_loop(u.src(0).src(0)); }

bool starts_with(std::span<const UOp> all, std::span<const UOp> first) {
  return first.size() <= all.size() && std::equal(first.begin(), first.end(), all.begin());
}

bool depends_on_call(std::span<const UOp> values, const UOp& call) {
  bool found = false;
  toposort(sink(values), [&](const UOp& u) {
    found = found || u == call;
    return !found;
  });
  return found;
}

// --- one loop for several ------------------------------------------------------------------------

// Loops that become one: what they are, and where the results of each are in it.
struct Shared {
  Loop whole;
  std::vector<std::vector<UOp>> values;  // by function
  std::vector<std::pair<UOp, std::vector<size_t>>> members;

  explicit Shared(const UOp& call) : whole(call) {
    for (const UOp& f : whole.functions) values.push_back({f.src().begin(), f.src().end()});
    add(whole);
  }

  bool takes(const Loop& other) const {
    if (!(other.body.op() == whole.body.op() && other.reversed == whole.reversed &&
          other.count == whole.count && other.functions.size() == whole.functions.size()))
      return false;
    const size_t own = other.roles.size();
    if (!starts_with(whole.arguments(), other.arguments()) ||
        !std::equal(other.roles.begin(), other.roles.end(), whole.roles.begin()))
      return false;
    if (whole.body.is(Op::While) && !(other.functions[0] == whole.functions[0])) return false;
    for (size_t i = 0; i < other.carries(); ++i)
      if (!(other.step().src(i) == whole.step().src(i))) return false;
    return own == whole.roles.size() ||
           !depends_on_call(whole.arguments().subspan(own), other.call);
  }

  // What a loop collects beside its carries, or a Switch gives, is added where it is missing.
  void add(const Loop& other) {
    std::vector<size_t> at;
    const bool branches = other.body.is(Op::Switch);
    const size_t first = branches ? 0 : other.functions.size() - 1, carries = other.carries();
    for (size_t k = 0; k < other.step().src().size(); ++k) {
      if (!branches && k < carries) {
        at.push_back(k);
        continue;
      }
      auto& last = values.back();
      size_t place = branches ? 0 : whole.carries();
      auto same = [&](size_t p) {
        for (size_t f = first; f < values.size(); ++f)
          if (!(values[f][p] == other.functions[f].src(k))) return false;
        return true;
      };
      while (place < last.size() && !same(place)) ++place;
      if (place == last.size())
        for (size_t f = first; f < values.size(); ++f)
          values[f].push_back(other.functions[f].src(k));
      at.push_back(place);
    }
    members.emplace_back(other.call, std::move(at));
  }

  // The body of all; functions over Params of the same slots.
  UOp body() const {
    std::vector<UOp> src;
    for (const std::vector<UOp>& v : values) src.push_back(tuple(v));
    if (whole.count) src.push_back(whole.count);
    return with_sources(whole.body, src);
  }
};

// Replaces the results of loops that are parts of others. False: there are none.
bool share(UOp& graph) {
  std::vector<UOp> calls;
  for (const UOp& u : toposort_outside_bodies(graph))
    if (u.is(Op::Call) && is_loop(u.src(0))) calls.push_back(u);
  std::stable_sort(calls.begin(), calls.end(),
                   [](const UOp& a, const UOp& b) { return a.src().size() > b.src().size(); });
  std::vector<Shared> groups;
  std::unordered_multimap<UOp, size_t> by_first;  // argument
  for (const UOp& call : calls) {
    const Loop loop(call);
    const UOp& key = loop.arguments().empty() ? loop.body : loop.arguments()[0];
    bool taken = false;
    const auto [begin, end] = by_first.equal_range(key);
    for (auto it = begin; it != end && !taken; ++it) {
      if (!groups[it->second].takes(loop)) continue;
      groups[it->second].add(loop);
      taken = true;
    }
    if (taken) continue;
    by_first.emplace(key, groups.size());
    groups.emplace_back(call);
  }
  // Where some have fewer arguments than what they are part of, their results name arguments that
  // are none of their own sources. One such group at a time: what depends on which changes.
  for (const Shared& g : groups) {
    const bool longer = std::ranges::any_of(g.members, [&](const auto& member) {
      return member.first.src().size() < g.whole.call.src().size();
    });
    if (!longer) continue;
    const UOp made = with_source(g.whole.call, 0, g.body());
    Substitution replaced;
    for (const auto& [call, at] : g.members)
      for (size_t k = 0; k < at.size(); ++k)
        replaced.emplace(get_tuple(call, static_cast<int64_t>(k)),
                         get_tuple(made, static_cast<int64_t>(at[k])));
    graph = substitute(graph, replaced);
    return true;
  }
  std::unordered_map<UOp, std::pair<const Shared*, const std::vector<size_t>*>> of_call;
  for (const Shared& g : groups)
    for (const auto& [call, at] : g.members)
      if (g.members.size() > 1) of_call.emplace(call, std::pair(&g, &at));
  if (of_call.empty()) return false;
  graph = transform_graph(graph, [&](const UOp& original, const UOp& node) {
    if (!is_loop_result(original)) return node;
    const auto it = of_call.find(original.src(0));
    if (it == of_call.end()) return node;
    const auto& [group, at] = it->second;
    return get_tuple(with_source(node.src(0), 0, group->body()),
                     static_cast<int64_t>((*at)[static_cast<size_t>(node.as<int64_t>())]));
  });
  return true;
}

// --- what is read --------------------------------------------------------------------------------

// Carries that no step changes.
std::vector<bool> unchanged_results(const Loop& loop) {
  std::vector<bool> out(loop.step().src().size());
  const std::vector<size_t> carries = loop.positions(LoopRole::Carry);
  const std::vector<UOp> params = loop.params(loop.step());
  for (size_t i = 0; i < carries.size(); ++i) out[i] = loop.step().src(i) == params[carries[i]];
  return out;
}

// Which results and arguments of a loop matter, where some results are read.
struct Needed {
  std::vector<bool> results, arguments, unchanged;

  Needed(const Loop& loop, const std::vector<bool>& read)
      : results(read), arguments(loop.roles.size()), unchanged(unchanged_results(loop)) {
    const std::vector<size_t> carries = loop.positions(LoopRole::Carry);
    std::vector<bool> seen(results.size());
    if (loop.body.is(Op::While)) see(loop.functions[0].src(0));
    if (loop.body.is(Op::Switch)) arguments[0] = true;
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < carries.size(); ++i) results[i] = results[i] || arguments[carries[i]];
      for (size_t k = 0; k < results.size(); ++k) {
        if (!results[k] || seen[k]) continue;
        seen[k] = changed = true;
        if (loop.body.is(Op::Switch))
          for (const UOp& f : loop.functions) see(f.src(k));
        else
          see(loop.step().src(k));
        if (k < carries.size()) arguments[carries[k]] = true;
      }
    }
  }
  bool all() const {
    return std::find(unchanged.begin(), unchanged.end(), true) == unchanged.end() &&
           std::find(results.begin(), results.end(), false) == results.end() &&
           std::find(arguments.begin(), arguments.end(), false) == arguments.end();
  }

 private:
  void see(const UOp& value) {
    for (const auto& [slot, param] : params_of(tuple(std::vector<UOp>{value})))
      arguments[static_cast<size_t>(slot)] = true;
  }
};

// The results of a loop without what is not needed, over its arguments as they are now.
std::vector<UOp> reduced(const Loop& loop, const UOp& now, const Needed& needed) {
  const bool branches = loop.body.is(Op::Switch);
  const std::vector<UOp> params = loop.params();
  const std::vector<size_t> carries = loop.positions(LoopRole::Carry);
  std::vector<LoopRole> roles = loop.roles;
  for (size_t i = 0; i < carries.size(); ++i)
    if (needed.unchanged[i]) roles[carries[i]] = LoopRole::Constant;
  std::vector<LoopArgument> arguments;
  for (size_t k = branches ? 1 : 0; k < roles.size(); ++k) {
    if (!needed.arguments[k]) continue;
    const UOp& given = now.src(k + 1);
    arguments.push_back(
        {roles[k], given, params[k] ? params[k] : new_buffer(given.shape(), given.dtype(), {})});
  }
  std::vector<std::vector<UOp>> values(loop.functions.size());
  auto stays = [&](size_t k) { return needed.results[k] && !needed.unchanged[k]; };
  for (size_t k = 0; k < needed.results.size(); ++k)
    for (size_t f = branches ? 0 : values.size() - 1; stays(k) && f < values.size(); ++f)
      values[f].push_back(loop.functions[f].src(k));
  const UOp call = branches ? switch_call(now.src(1), arguments, values)
                   : loop.body.is(Op::While)
                       ? while_call(arguments, loop.functions[0].src(0), values.back())
                       : scan_call(arguments, values.back(), loop.count, loop.reversed);
  std::vector<UOp> out(needed.results.size());
  int64_t next = 0;
  for (size_t k = 0; k < out.size(); ++k)
    if (stays(k)) out[k] = get_tuple(call, next++);
  for (size_t i = 0; i < carries.size(); ++i)
    if (needed.unchanged[i]) out[i] = now.src(carries[i] + 1);
  return out;
}

UOp without_unread_parts(const UOp& graph) {
  std::unordered_map<UOp, std::vector<bool>> read;
  for (const UOp& u : toposort_outside_bodies(graph)) {
    if (!is_loop_result(u)) continue;
    auto& list = read[u.src(0)];
    list.resize(loop_results(u.src(0).src(0)).size());
    list[static_cast<size_t>(u.as<int64_t>())] = true;
  }
  std::unordered_map<UOp, std::vector<UOp>> made;
  return transform_graph(graph, [&](const UOp& original, const UOp& node) {
    if (!is_loop_result(original)) return node;
    auto [it, fresh] = made.try_emplace(original.src(0));
    if (fresh) {
      const Loop loop(original.src(0));
      const Needed needed(loop, read.at(original.src(0)));
      if (!needed.all()) it->second = reduced(loop, node.src(0), needed);
    }
    return it->second.empty() ? node : it->second[static_cast<size_t>(node.as<int64_t>())];
  });
}

}  // namespace

UOp with_shared_loops(const UOp& graph) {
  if ((graph.node()->ops_below & mask_of(Op::Call)) == 0) return graph;
  UOp out = graph;
  while (share(out)) {
  }
  return without_unread_parts(out);
}

}  // namespace koine

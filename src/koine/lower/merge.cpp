#include "koine/lower/merge.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <queue>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/contents.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/folds_apart.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// A launch that may still change: a Kernel, and those that must run before.
struct Draft {
  UOp ast;
  std::vector<UOp> buffers;
  std::string reason;
  std::vector<size_t> needs;
  Device device() const {
    const auto on =
        std::find_if(buffers.begin(), buffers.end(), [](const UOp& b) { return bool(b.device()); });
    return on == buffers.end() ? Device() : on->device();
  }
};

// A kernel of one loop nest whose Stores go to places that nothing else in it touches, but for the
// rows that it fills for itself.
struct Nest {
  std::vector<UOp> loops;
  std::vector<UOp> stores;
  std::vector<UOp> loads;
  std::vector<UOp> rows;   // LOCAL buffers
  std::vector<UOp> slots;  // Params that stand for buffers, by slot
  size_t operations = 0;   // on values
};

bool is_in_row(const UOp& access) { return accessed_buffer(access).is(Op::Buffer); }
int64_t slot_of(const UOp& access) { return accessed_buffer(access).as<BufferArg>().slot; }

// Where Stores go: all places that a Store may write, and what is left of them by each number that
// they are multiples of, as columns are by the length of a row.
class Places {
 public:
  /// Whether two Stores into one buffer never meet, wherever their loops are.
  bool are_apart(const UOp& a, const UOp& b) {
    const Remainders &x = of(a), &y = of(b);  // of a node-based map

    for (const auto& [divisor, left] : x)
      for (const auto& [other, right] : y)
        if (divisor == other && (left.high < right.low || right.high < left.low)) return true;
    return false;
  }
  bool is_apart_from(const UOp& store, const std::vector<UOp>& others) {
    return std::all_of(others.begin(), others.end(),
                       [&](const UOp& other) { return are_apart(store, other); });
  }

 private:
  using Remainders = std::vector<std::pair<Bits, Interval>>;  // divisor 0: the place itself

  const Remainders& of(const UOp& store) {
    const UOp& place = store.src(0).src(1);
    const auto [it, fresh] = known_.try_emplace(place);
    if (!fresh) return it->second;
    it->second.emplace_back(0, place.bounds());
    for (const UOp& u : toposort(place)) {
      const bool scaled = u.is(Op::Mul) && u.dtype() == DType::Index && u.src(1).is(Op::Const);
      if (!scaled || const_int(u.src(1)) < 2) continue;
      const auto divisor = static_cast<Bits>(const_int(u.src(1)));
      it->second.emplace_back(divisor, simplify_index(mod(place, u.src(1))).bounds());
    }
    return it->second;
  }

  std::unordered_map<UOp, Remainders> known_;
};

// Whether a Reduce sums products of two values each of which has a loop that the other lacks.
bool is_contraction(const UOp& reduce) {
  for (const UOp& u : toposort(reduce.src(0))) {
    if (!u.is(Op::Mul) || !is_float(u.dtype())) continue;
    auto lacks = [](const UOp& a, const UOp& b) {
      return std::any_of(a.ranges().begin(), a.ranges().end(), [&](const Node* r) {
        return std::find(b.ranges().begin(), b.ranges().end(), r) == b.ranges().end();
      });
    };
    if (lacks(u.src(0), u.src(1)) && lacks(u.src(1), u.src(0))) return true;
  }
  return false;
}

std::optional<Nest> nest_of(const Draft& kernel, Places& places) {
  const bool by_hand = kernel.ast.arg().index() != 0;  // it has a name
  if (kernel.reason == asked_for || by_hand || !kernel.ast.is(Op::Sink) ||
      kernel.ast.src().size() != 1)
    return std::nullopt;
  UOp body = kernel.ast.src(0);
  Nest out;
  if (body.is(Op::End)) {
    if (body.is(Mark::InOrder)) return std::nullopt;
    out.loops.assign(body.src().begin() + 1, body.src().end());
    body = UOp(body.src(0));
  }
  out.stores = body.is(Op::Group) ? std::vector<UOp>(body.src().begin(), body.src().end())
                                  : std::vector<UOp>{body};
  absl::flat_hash_map<int64_t, std::vector<UOp>> stored;
  for (const UOp& s : out.stores) {
    if (!s.is(Op::Store) || s.src().size() != 2 || !is_address(s.src(0)) || is_in_row(s))
      return std::nullopt;
    std::vector<UOp>& others = stored[slot_of(s)];
    if (!places.is_apart_from(s, others)) return std::nullopt;
    others.push_back(s);
  }
  for (const UOp& u : toposort(kernel.ast)) {
    out.operations += operations_of(u);
    if (u.is(Op::After) && !strip_after(u).is(Op::Buffer)) return std::nullopt;
    if (u.is(Op::Barrier)) return std::nullopt;
    if (u.is(Op::Buffer)) out.rows.push_back(u);
    if (u.is(Op::Param) && !is_variable(u)) out.slots.push_back(u);
    if (u.is(Op::Load) && !is_in_row(u)) {
      if (stored.contains(slot_of(u))) return std::nullopt;
      out.loads.push_back(u);
    }
    // A product has a register tile, which repeats many times what stands beside it.
    if (u.is(Op::Reduce) && is_contraction(u)) return std::nullopt;
  }
  std::sort(out.slots.begin(), out.slots.end(), [](const UOp& a, const UOp& b) {
    return a.as<BufferArg>().slot < b.as<BufferArg>().slot;
  });
  return out;
}

int64_t bytes_of(const std::vector<UOp>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0}, [](int64_t sum, const UOp& row) {
    return sum + row.numel() * item_size(row.dtype());
  });
}

// Kernels that have become one, by their positions.
class Merger {
 public:
  Merger(const UOp& schedule, const CompileOptions& how)
      : strict_(how.strict), row_bytes_(how.row_bytes) {
    const std::vector<Kernel> launches = kernels_of(schedule);
    std::vector<std::vector<size_t>> needs = dependencies_of(launches);
    absl::flat_hash_set<const Node*> sent, received;
    for (const Kernel& launch : launches) {
      if (!is_copy(launch.ast)) continue;
      received.insert(launch.buffers[0].node());
      sent.insert(launch.buffers[1].node());
    }
    for (size_t k = 0; k < launches.size(); ++k) {
      const Kernel& launch = launches[k];
      kernels_.push_back({launch.ast,
                          {launch.buffers.begin(), launch.buffers.end()},
                          std::string(launch.reason),
                          std::move(needs[k])});
      nests_.push_back(nest_of(kernels_[k], places_));
      group_.push_back(k);
      for (const UOp& b : kernels_[k].buffers) readers_[b.node()].push_back(k);
      sends_.push_back(false);
      receives_.push_back(false);
      for (size_t slot = 0; slot < launch.buffers.size(); ++slot) {
        const Node* const b = launch.buffers[slot].node();
        sends_[k] = sends_[k] || (launch.stores(slot) && sent.contains(b));
        receives_[k] = receives_[k] || (!launch.stores(slot) && received.contains(b));
      }
    }
  }

  UOp run() {
    for (size_t k = 0; k < kernels_.size(); ++k)
      if (nests_[k]) merge_with_neighbours(k);
    drop_unread();
    return in_order();
  }

 private:
  // Earlier kernels that this one reads from, or reads a buffer with; the latest first.
  std::vector<size_t> neighbours(size_t k) const {
    std::vector<size_t> out;
    for (const UOp& b : kernels_[k].buffers) {
      const auto& list = readers_.at(b.node());
      size_t looked = 0;
      for (auto it = std::lower_bound(list.begin(), list.end(), k);
           it != list.begin() && looked < most_neighbours; ++looked)
        out.push_back(*--it);
    }
    std::sort(out.begin(), out.end(), std::greater<>());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  // One that did not fit is tried again where the kernel has become another since.
  void merge_with_neighbours(size_t k) {
    absl::flat_hash_set<size_t> tried;
    for (const size_t other : neighbours(k)) {
      const size_t first = merged_into(other);
      if (tried.insert(first).second && merge(first, k)) tried.clear();
    }
  }

  // The kernel into which one has gone.
  size_t merged_into(size_t k) {
    while (group_[k] != k) k = group_[k] = group_[group_[k]];
    return k;
  }

  bool merge(size_t first, size_t second) {
    if (first == second || !nests_[first] || !nests_[second]) return false;
    const Nest &a = *nests_[first], &b = *nests_[second];
    if (a.loops != b.loops || a.operations + b.operations > most_fused_operations ||
        a.stores.size() + b.stores.size() > most_merged_stores)
      return false;
    if (bytes_of(a.rows) + bytes_of(b.rows) > row_bytes_) return false;
    if (!(kernels_[first].device() == kernels_[second].device())) return false;
    // What others wait for does not wait for what they send: copies of a collective go at once.
    if ((sends_[first] && receives_[second]) || (receives_[first] && sends_[second])) return false;
    const bool feeds = depends(second, first);
    if (depends(first, second)) return false;
    if (is_between(first, second) || is_between(second, first)) return false;
    std::optional<Draft> both = joined(first, second, feeds);
    if (!both) return false;
    std::vector<size_t>& needs = both->needs;
    needs = kernels_[first].needs;
    needs.insert(needs.end(), kernels_[second].needs.begin(), kernels_[second].needs.end());
    kernels_[second] = std::move(*both);
    nests_[second] = nest_of(kernels_[second], places_);
    group_[first] = second;
    sends_[second] = sends_[second] || sends_[first];
    receives_[second] = receives_[second] || receives_[first];
    return true;
  }

  bool depends(size_t user, size_t source) {
    return std::any_of(kernels_[user].needs.begin(), kernels_[user].needs.end(),
                       [&](size_t n) { return merged_into(n) == source; });
  }

  // Whether a kernel other than the two must run after `source` and before `user`; also where that
  // is too far to see.
  bool is_between(size_t source, size_t user) {
    absl::flat_hash_set<size_t> seen{source, user};
    std::vector<size_t> pending;
    auto visit = [&](size_t k) {
      for (const size_t n : kernels_[k].needs) {
        const size_t g = merged_into(n);
        if (g == source && k != user) return true;
        if (seen.insert(g).second) pending.push_back(g);
      }
      return seen.size() > most_kernels_on_a_path;
    };
    bool found = visit(user);
    while (!found && !pending.empty()) {
      const size_t k = pending.back();
      pending.pop_back();
      found = visit(k);
    }
    return found;
  }

  // Both bodies over the same loops; what the first stores, the second takes as a value.
  std::optional<Draft> joined(size_t first, size_t second, bool feeds) {
    const Draft &a = kernels_[first], &b = kernels_[second];
    Draft out = a;
    out.reason = b.reason;
    Substitution renamed;
    absl::flat_hash_map<std::pair<const Node*, DType>, int64_t> slots;
    for (const UOp& p : nests_[first]->slots) {
      const int64_t slot = p.as<BufferArg>().slot;
      slots.emplace(std::pair(a.buffers[static_cast<size_t>(slot)].node(), p.dtype()), slot);
    }
    for (const UOp& p : nests_[second]->slots) {
      const UOp& buffer = b.buffers[static_cast<size_t>(p.as<BufferArg>().slot)];
      const auto [it, fresh] = slots.try_emplace(std::pair(buffer.node(), p.dtype()),
                                                 static_cast<int64_t>(out.buffers.size()));
      if (fresh) out.buffers.push_back(buffer);
      renamed.emplace(p, with_slot(p, it->second));
    }
    if (out.buffers.size() > most_merged_buffers) return std::nullopt;
    renumber_inner(first, second, renamed);
    const UOp second_ast = substitute(b.ast, renamed);
    std::optional<UOp> ast = forwarded(*nests_[first], second_ast, feeds);
    if (!ast) return std::nullopt;
    out.ast = *ast;
    return stores_under_two_dtypes(out) ? std::nullopt : std::optional(out);
  }

  // Memory that is seen with two dtypes has two slots, and loads from one do not wait for stores to
  // the other.
  static bool stores_under_two_dtypes(const Draft& k) {
    absl::flat_hash_set<const Node*> distinct;
    for (const UOp& b : k.buffers) distinct.insert(b.node());
    if (distinct.size() == k.buffers.size()) return false;
    const NodeList order = toposort(k.ast);
    return std::any_of(order.begin(), order.end(), [&](const UOp& u) {
      return u.is(Op::Store) && !is_in_row(u) &&
             std::count(k.buffers.begin(), k.buffers.end(),
                        k.buffers[static_cast<size_t>(slot_of(u))]) > 1;
    });
  }

  // The folds and the rows of the second kernel get loops and memory of their own.
  void renumber_inner(size_t first, size_t second, Substitution& renamed) const {
    const std::vector<UOp>& loops = nests_[second]->loops;
    std::vector<UOp> inner = kernel_ranges(kernels_[second].ast);
    std::erase_if(inner, [&](const UOp& r) {
      return std::find(loops.begin(), loops.end(), r) != loops.end();
    });
    if (!inner.empty()) {
      const std::vector<UOp> taken = kernel_ranges(kernels_[first].ast);
      int64_t next = taken.empty() ? 0 : taken.back().as<RangeArg>().id + 1;
      for (const UOp& r : inner) renamed.emplace(r, range(next++, r.src(0), r.as<RangeArg>().type));
    }
    int64_t slot = 0;
    for (const UOp& row : nests_[first]->rows) slot = std::max(slot, row.as<BufferArg>().slot + 1);
    for (const UOp& row : nests_[second]->rows) {
      BufferArg arg = row.as<BufferArg>();
      arg.slot += slot;
      renamed.emplace(row, UOp::make(Op::Buffer, row.src(), std::move(arg)));
    }
  }

  std::optional<UOp> forwarded(const Nest& a, const UOp& second, bool feeds) {
    absl::flat_hash_map<int64_t, std::vector<UOp>> written;  // by slot
    for (const UOp& s : a.stores) written[slot_of(s)].push_back(s);
    absl::flat_hash_set<int64_t> touched;
    for (const UOp& l : a.loads) touched.insert(slot_of(l));
    Substitution values;
    UOp body = second.src(0);
    bool follows = false;  // a Store into memory that the first has stored into elsewhere
    for (const UOp& u : toposort(second)) {
      if ((!u.is(Op::Store) && !u.is(Op::Load)) || is_in_row(u)) continue;
      if (u.is(Op::Store) && touched.contains(slot_of(u))) return std::nullopt;
      const auto it = written.find(slot_of(u));
      if (it == written.end()) continue;
      if (u.is(Op::Store)) {
        if (!places_.is_apart_from(u, it->second)) return std::nullopt;
        follows = true;
        continue;
      }
      const auto same = std::find_if(it->second.begin(), it->second.end(),
                                     [&](const UOp& s) { return s.src(0) == u.src(0); });
      if (same == it->second.end()) return std::nullopt;  // another element, or dtype
      const UOp& value = same->src(1);
      values.emplace(u, u.src().size() == 3 ? where(u.src(2), value, u.src(1)) : value);
    }
    if (feeds && values.empty() && !follows) return std::nullopt;  // it waits for something else
    body = substitute(body, values);
    std::vector<UOp> stores = a.stores;
    const UOp inner = body.is(Op::End) ? body.src(0) : body;
    if (inner.is(Op::Group))
      stores.insert(stores.end(), inner.src().begin(), inner.src().end());
    else
      stores.push_back(inner);
    const UOp both = share_commuted(sink(std::vector<UOp>{end(group(stores), a.loops)}));
    return folds_apart(rewrite(both, kernel_rules(strict_)));
  }

  // --- the merged schedule -------------------------------------------------------------------

  UOp in_order() {
    std::vector<size_t> waits(kernels_.size());
    std::vector<std::vector<size_t>> users(kernels_.size()), needs(kernels_.size());
    for (size_t k = 0; k < kernels_.size(); ++k) {
      if (group_[k] != k) continue;
      for (const size_t n : kernels_[k].needs)
        if (merged_into(n) != k) needs[k].push_back(merged_into(n));
      std::sort(needs[k].begin(), needs[k].end());
      needs[k].erase(std::unique(needs[k].begin(), needs[k].end()), needs[k].end());
      waits[k] = needs[k].size();
      for (const size_t n : needs[k]) users[n].push_back(k);
    }
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    for (size_t k = 0; k < kernels_.size(); ++k)
      if (group_[k] == k && waits[k] == 0) ready.push(k);
    std::vector<UOp> out;
    while (!ready.empty()) {
      const size_t k = ready.top();
      ready.pop();
      out.push_back(kernel_call(kernels_[k].ast, kernels_[k].buffers, kernels_[k].reason));
      for (const size_t user : users[k])
        if (--waits[user] == 0) ready.push(user);
    }
    const bool all = std::all_of(waits.begin(), waits.end(), [](size_t n) { return n == 0; });
    KOINE_INVARIANT(all, "merged kernels wait for each other");
    return UOp::make(Op::Linear, out);
  }

  // Temporaries that only their own kernel used are values of it now.
  void drop_unread() {
    absl::flat_hash_map<const Node*, int> users;
    for (size_t k = 0; k < kernels_.size(); ++k)
      if (group_[k] == k)
        for (const UOp& b : kernels_[k].buffers) ++users[b.node()];
    for (size_t k = 0; k < kernels_.size(); ++k) {
      if (group_[k] != k || !nests_[k] || nests_[k]->stores.size() < 2) continue;
      std::vector<UOp> kept;
      for (const UOp& s : nests_[k]->stores)
        if (const UOp& b = kernels_[k].buffers[static_cast<size_t>(slot_of(s))];
            !b.is(Op::Buffer) || users.at(b.node()) > 1)
          kept.push_back(s);
      if (kept.size() < nests_[k]->stores.size())
        kernels_[k] = with_stores(kernels_[k], kept, nests_[k]->loops);
    }
  }

  // The same kernel with these Stores alone.
  static Draft with_stores(const Draft& k, const std::vector<UOp>& stores,
                           const std::vector<UOp>& loops) {
    const UOp body = stores.size() == 1 ? stores[0] : group(stores);
    return {sink(std::vector<UOp>{end(body, loops)}), k.buffers, k.reason, k.needs};
  }

  bool strict_;
  int64_t row_bytes_;  // that the rows of a kernel may take
  Places places_;
  std::vector<Draft> kernels_;
  std::vector<std::optional<Nest>> nests_;
  std::vector<size_t> group_;  // kernel -> that into which it went
  absl::flat_hash_map<const Node*, std::vector<size_t>> readers_;  // of a buffer, ascending
  std::vector<bool> sends_,
      receives_;  // whether a copy reads what a kernel stores, or brings what it reads
};

}  // namespace

UOp merge_kernels(const UOp& schedule, const CompileOptions& how) {
  return Merger(schedule, how).run();
}

}  // namespace koine

#include "koine/lower/merge.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <span>
#include <utility>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/bufferize.hpp"
#include "koine/lower/column_sums.hpp"
#include "koine/lower/contents.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/folds_apart.hpp"
#include "koine/lower/forwarding.hpp"
#include "koine/lower/loop_order.hpp"
#include "koine/lower/nest.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/shared_rows.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/target/target.hpp"

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

std::optional<Nest> nest_in(const Draft& kernel, Places& places) {
  const bool by_hand = kernel.ast.arg().index() != 0;  // it has a name
  return kernel.reason == asked_for || by_hand ? std::nullopt : nest_of(kernel.ast, places);
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
      : strict_(how.strict),
        begins_sums_(!how.strict && how.multiprocessors == 0),
        row_bytes_(how.row_bytes),
        cached_bytes_(how.cached_bytes),
        next_buffer_(next_temporary(schedule)) {
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
      nests_.push_back(nest_in(kernels_[k], places_));
      group_.push_back(k);
      place_.push_back(k);
      sums_.emplace_back();
      for (const UOp& b : kernels_[k].buffers) readers_[b.node()].push_back(k);
      along_columns_.push_back(false);
      sends_.push_back(false);
      receives_.push_back(false);
      for (size_t slot = 0; slot < launch.buffers.size(); ++slot) {
        const Node* const b = launch.buffers[slot].node();
        sends_[k] = sends_[k] || (launch.stores(slot) && sent.contains(b));
        receives_[k] = receives_[k] || (!launch.stores(slot) && received.contains(b));
      }
    }
    find_writes();
    users_.resize(kernels_.size());
    for (size_t k = 0; k < kernels_.size(); ++k)
      for (const size_t n : kernels_[k].needs) users_[n].push_back(k);
  }

  UOp run() {
    for (const bool siblings : {false, true}) {
      siblings_ = siblings;
      for (size_t k = 0; k < kernels_.size(); ++k)
        if (nests_[k] && group_[k] == k) merge_with_neighbours(k);
    }
    for (size_t k = 0; begins_sums_ && k < kernels_.size(); ++k)
      if (group_[k] == k) begin_sums_with_neighbours(k);
    drop_unread();
    return in_order();
  }

 private:
  // Of a small write into memory that was there before, the last one over the same loops: a launch
  // would cost as much as the write, as for a row of two caches.
  void find_writes() {
    std::map<std::vector<const Node*>, size_t> last;
    write_before_.resize(kernels_.size());
    for (size_t k = 0; k < kernels_.size(); ++k) {
      if (!nests_[k] || kernels_[k].reason != assignment ||
          estimate_of(kernels_[k].ast).steps > most_operations_of_a_part)
        continue;
      std::vector<const Node*> loops;
      for (const UOp& loop : nests_[k]->loops) loops.push_back(loop.node());
      const auto [it, fresh] = last.try_emplace(std::move(loops), k);
      if (!fresh) write_before_[k] = std::exchange(it->second, k);
    }
  }

  // Earlier kernels that this one reads from, or reads a buffer with, and small writes; the latest
  // first.
  std::vector<size_t> neighbours(size_t k) const {
    std::vector<size_t> out;
    for (const UOp& b : kernels_[k].buffers) {
      const auto& list = readers_.at(b.node());
      size_t looked = 0;
      for (auto it = std::lower_bound(list.begin(), list.end(), k);
           it != list.begin() && looked < most_neighbours; ++looked)
        out.push_back(*--it);
    }
    if (const std::optional<size_t> write = write_before_[k]) out.push_back(*write);
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

  // Whether one kernel may hold what two hold.
  bool fit_together(size_t first, size_t second) const {
    if (first == second || !nests_[first] || !nests_[second]) return false;
    const Nest &a = *nests_[first], &b = *nests_[second];
    if (a.operations + b.operations > most_fused_operations ||
        a.stores.size() + b.stores.size() > most_merged_stores)
      return false;
    if (bytes_of(a.rows) + bytes_of(b.rows) > row_bytes_) return false;
    if (!(kernels_[first].device() == kernels_[second].device())) return false;
    // What others wait for does not wait for what they send: copies of a collective go at once.
    return (!sends_[first] || !receives_[second]) && (!receives_[first] || !sends_[second]);
  }
  // Whether the rows of what two have become are not too many.
  bool has_room_for_rows(const Nest& both, const Nest& a, const Nest& b) const {
    return bytes_of(both.rows) <= row_bytes_ &&
           both.rows.size() <=
               std::max<size_t>({most_rows_of_a_kernel, a.rows.size() + b.rows.size()});
  }

  bool merge(size_t first, size_t second) {
    if (!fit_together(first, second)) return false;
    const Nest &a = *nests_[first], &b = *nests_[second];
    const bool feeds = depends(second, first);
    if (depends(first, second)) return false;
    if (siblings_ != (!feeds && a.loops.size() != b.loops.size())) return false;
    std::optional<Nest> moved;  // one of the two, with its loops in the order of the other's
    const auto [x_at, y_at, alike] = in_step(first, second, moved);
    const Nest &x = *x_at, &y = *y_at;
    const auto [own, other] = std::ranges::mismatch(x.loops, y.loops);
    if (own != x.loops.end() && other != y.loops.end()) return false;
    // Those that share outer loops alone read the same there, or one what the other stores.
    const bool equal = x.loops.size() == y.loops.size();
    if (!equal && (x.loops.empty() || y.loops.empty())) return false;
    if (siblings_ && !alike) return false;
    std::optional<Between> others = between(first, second);
    if (!others) return false;
    const bool columns = moved || along_columns_[first] || along_columns_[second];
    std::optional<Draft> both = joined(kernels_[first], x, kernels_[second], y, feeds, columns);
    if (!both) return false;
    std::optional<Nest> nest = nest_in(*both, places_);
    if ((columns || siblings_) &&
        !(nest && rows_fit(*nest, std::min(x.loops.size(), y.loops.size()))))
      return false;
    if (nest && !has_room_for_rows(*nest, a, b)) return false;
    std::vector<size_t>& needs = both->needs;
    needs = kernels_[first].needs;
    needs.insert(needs.end(), kernels_[second].needs.begin(), kernels_[second].needs.end());
    kernels_[second] = std::move(*both);
    nests_[second] = std::move(nest);
    group_[first] = second;
    users_[second].insert(users_[second].end(), users_[first].begin(), users_[first].end());
    keep_places({second}, {std::max(place_[first], place_[second])}, std::move(*others));
    along_columns_[second] = columns;
    sends_[second] = sends_[second] || sends_[first];
    receives_[second] = receives_[second] || receives_[first];
    return true;
  }

  void begin_sums_with_neighbours(size_t k) {
    for (const size_t other : neighbours(k)) {
      const size_t first = merged_into(other);
      if (begin_sums(first, k) || begin_sums(k, first)) return;
    }
  }

  // Sums over the rows that another kernel goes over anyway begin there: what both read comes from
  // memory once. Their kernel goes on with what was added up of some rows each.
  bool begin_sums(size_t rows, size_t columns) {
    if (!fit_together(rows, columns) || depends(rows, columns)) return false;
    const Nest &x = *nests_[rows], &y = *nests_[columns];
    const Draft& whole = kernels_[columns];
    std::optional<ColumnSums> sums =
        column_sums({x, kernels_[rows].buffers}, {y, whole.buffers}, cached_bytes_);
    if (!sums || (sums_[rows] && !sums_[rows]->go_on_alike(*sums))) return false;
    std::optional<Between> others = between(rows, columns);
    if (!others) return false;
    Draft begun{sums->begun, whole.buffers, kernels_[rows].reason, {}};
    for (const UOp& p : sums->partial)
      begun.buffers.push_back(
          UOp::make(Op::Buffer, {p.src(0)}, BufferArg{next_buffer_++, p.dtype(), whole.device()}));
    const std::optional<Nest> inside = nest_in(begun, places_);
    if (!inside) return false;
    std::optional<Draft> both =
        joined(kernels_[rows], x, begun, *inside, depends(columns, rows), false);
    std::optional<Nest> nest = both ? nest_in(*both, places_) : std::nullopt;
    if (!nest || !has_room_for_rows(*nest, x, *inside)) return false;
    for (size_t i = 0; i < sums->partial.size(); ++i) {
      const UOp& memory = begun.buffers[whole.buffers.size() + i];
      const auto at = std::ranges::find(both->buffers, memory) - both->buffers.begin();
      sums->partial[i] = with_slot(sums->partial[i], at);
      readers_[memory.node()] = {std::min(rows, columns), std::max(rows, columns)};
    }
    const Kernel rest(kernel_call(sums->rest, begun.buffers, whole.reason));
    for (const size_t n : whole.needs) {
      const size_t source = merged_into(n);
      if (source == rows || source == columns) continue;
      both->needs.push_back(source);
      users_[source].push_back(rows);
    }
    kernels_[columns].ast = rest.ast;
    kernels_[columns].buffers.assign(rest.buffers.begin(), rest.buffers.end());
    kernels_[columns].needs.push_back(rows);
    users_[rows].push_back(columns);
    receives_[rows] = receives_[rows] || receives_[columns];
    kernels_[rows] = std::move(*both);
    nests_[rows] = std::move(nest);
    nests_[columns] = nest_in(kernels_[columns], places_);
    if (sums_[rows])
      sums->partial.insert(sums->partial.end(), sums_[rows]->partial.begin(),
                           sums_[rows]->partial.end());
    sums_[rows] = std::move(sums);
    keep_places({rows, columns}, {place_[rows], place_[columns]}, std::move(*others));
    return true;
  }

  // Loops that walk over the same memory stand in the order of the kernel that has no choice: a
  // fold of columns has these outside, and what is stored for each of their elements follows.
  struct Sides {
    const Nest *first, *second;
    bool alike = false;  // they walk over the same memory
  };
  Sides in_step(size_t first, size_t second, std::optional<Nest>& moved) {
    const Nest *a = &*nests_[first], *b = &*nests_[second];
    const bool first_moves = a->loops.size() > b->loops.size() ||
                             (a->loops.size() == b->loops.size() && !has_free_order(*b));
    const Nest &wide = first_moves ? *a : *b, &narrow = first_moves ? *b : *a;
    const bool mixed = wide.loops.size() > narrow.loops.size() || !has_free_order(narrow);
    // A machine whose threads share little memory has one for each element instead.
    const bool keeps_rows = row_bytes_ >= Target{}.row_bytes;
    if (!keeps_rows || !mixed || narrow.loops.empty() || !has_free_order(wide)) return {a, b};
    const std::vector<UOp> order =
        loops_in_order_of({narrow, kernels_[first_moves ? second : first].buffers},
                          {wide, kernels_[first_moves ? first : second].buffers});
    if (order.empty()) return {a, b};
    if (order == wide.loops) return {a, b, true};
    moved = nest_of(in_loop_order(wide, order, narrow), places_);
    (first_moves ? a : b) = &*moved;
    return {a, b, true};
  }

  bool depends(size_t user, size_t source) {
    return std::any_of(kernels_[user].needs.begin(), kernels_[user].needs.end(),
                       [&](size_t n) { return merged_into(n) == source; });
  }

  // Kernels that stand between two: those that the later one waits for, and those that wait for the
  // earlier one.
  struct Between {
    std::vector<size_t> before, after;
  };
  // Null where one of them is both, and where there are too many to look at.
  std::optional<Between> between(size_t first, size_t second) {
    const size_t early = place_[first] < place_[second] ? first : second,
                 late = early == first ? second : first;
    Between out;
    absl::flat_hash_set<size_t> before, after;
    auto walk = [&](size_t from, const auto& next, auto& seen, std::vector<size_t>& found) {
      for (size_t i = 0, k = from;; k = found[i++]) {
        for (const size_t n : next(k)) {
          const size_t g = merged_into(n);
          if (place_[g] <= place_[early] || place_[g] >= place_[late] || !seen.insert(g).second)
            continue;
          if (&seen == &after && before.contains(g)) return false;
          found.push_back(g);
        }
        if (found.size() > most_kernels_between) return false;
        if (i == found.size()) return true;
      }
    };
    const auto needs = [&](size_t k) { return std::span<const size_t>(kernels_[k].needs); };
    const auto users = [&](size_t k) { return std::span<const size_t>(users_[k]); };
    if (!walk(late, needs, before, out.before) || !walk(early, users, after, out.after))
      return std::nullopt;
    return out;
  }

  // What has become of two, which has these places: what waited for the earlier one comes behind
  // it, and each kernel still behind all that it waits for.
  void keep_places(const std::vector<size_t>& made, std::vector<size_t> places, Between between) {
    const auto earlier = [&](size_t a, size_t b) { return place_[a] < place_[b]; };
    std::sort(between.before.begin(), between.before.end(), earlier);
    std::sort(between.after.begin(), between.after.end(), earlier);
    std::vector<size_t> order = std::move(between.before);
    order.insert(order.end(), between.after.begin(), between.after.end());
    for (const size_t k : order) places.push_back(place_[k]);
    order.insert(order.end() - static_cast<std::ptrdiff_t>(between.after.size()), made.begin(),
                 made.end());
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < order.size(); ++i) place_[order[i]] = places[i];
  }

  // Both bodies over the same loops; what the first stores, the second takes as a value.
  std::optional<Draft> joined(const Draft& a, const Nest& x, const Draft& b, const Nest& y,
                              bool feeds, bool columns) {
    Draft out = a;
    out.reason = b.reason;
    Substitution renamed;
    absl::flat_hash_map<std::pair<const Node*, DType>, int64_t> slots;
    for (const UOp& p : x.slots) {
      const int64_t slot = p.as<BufferArg>().slot;
      slots.emplace(std::pair(a.buffers[static_cast<size_t>(slot)].node(), p.dtype()), slot);
    }
    for (const UOp& p : y.slots) {
      const UOp& buffer = b.buffers[static_cast<size_t>(p.as<BufferArg>().slot)];
      const auto [it, fresh] = slots.try_emplace(std::pair(buffer.node(), p.dtype()),
                                                 static_cast<int64_t>(out.buffers.size()));
      if (fresh) out.buffers.push_back(buffer);
      renamed.emplace(p, with_slot(p, it->second));
    }
    if (out.buffers.size() > most_merged_buffers) return std::nullopt;
    Substitution renamed_first;
    if (x.loops.size() < y.loops.size())
      renumber_inner(x, y, renamed_first);
    else
      renumber_inner(y, x, renamed);
    renumber_rows(x, y, renamed);
    const std::optional<Nest> before = nest_of(substitute(x.kernel, renamed_first), places_),
                              behind = nest_of(substitute(y.kernel, renamed), places_);
    if (!before || !behind) return std::nullopt;  // one memory in two slots of a kernel
    std::optional<UOp> ast = joined_nests(*before, *behind, feeds, columns);
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

  // The folds and fills of a kernel get loops that another one does not have.
  static void renumber_inner(const Nest& nest, const Nest& other, Substitution& renamed) {
    int64_t next = other.next_range;
    for (const UOp& r : kernel_ranges(nest.kernel))
      if (!is_among(nest.loops, r))
        renamed.emplace(r, range(next++, r.src(0), r.as<RangeArg>().type));
  }
  // The rows of the second kernel get memory of their own.
  static void renumber_rows(const Nest& first, const Nest& second, Substitution& renamed) {
    for (const UOp& row : second.rows) {
      BufferArg arg = row.as<BufferArg>();
      arg.slot += first.next_row;
      renamed.emplace(row, UOp::make(Op::Buffer, row.src(), std::move(arg)));
    }
  }

  // One nest of the Stores of both; what the first stores, the second takes as a value.
  std::optional<UOp> joined_nests(const Nest& a, const Nest& b, bool feeds, bool columns) {
    absl::flat_hash_map<int64_t, std::vector<UOp>> written;  // by slot
    for (const auto& [s, depth] : a.stores) written[slot_of(s)].push_back(s);
    absl::flat_hash_set<int64_t> touched;
    for (const UOp& l : a.loads) touched.insert(slot_of(l));
    bool follows = false;  // a Store into memory that the first has stored into elsewhere
    for (const auto& [s, depth] : b.stores) {
      if (touched.contains(slot_of(s))) return std::nullopt;
      const auto it = written.find(slot_of(s));
      if (it == written.end()) continue;
      if (!places_.is_apart_from(s, it->second)) return std::nullopt;
      follows = true;
    }
    const auto forwarding = forward(a, b);
    if (!forwarding || (columns && forwarding->has_rows)) return std::nullopt;
    const bool reads = !forwarding->values.empty();
    if (feeds && !reads && !follows) return std::nullopt;  // it waits for something else
    const size_t shared = std::min(a.loops.size(), b.loops.size());
    if (forwarding->common < shared && !walk_alike(a, b, a.loops[shared - 1])) return std::nullopt;
    const bool equal = a.loops.size() == b.loops.size() && !forwarding->has_rows;
    if (!equal && (follows || reads != feeds || !may_share_rows(a, b, forwarding->common)))
      return std::nullopt;
    std::vector<PlacedStore> stores = forwarding->stores;
    for (const auto& [s, depth] : b.stores)
      stores.push_back({substitute(s, forwarding->values), depth});
    const auto& loops = a.loops.size() < b.loops.size() ? b.loops : a.loops;
    const UOp both = share_commuted(nested(loops, stores));
    const UOp out = folds_apart(rewrite(both, kernel_rules(strict_)));
    return columns ? out : share_rows(out, loops);
  }

  // Whether two kernels go over the same elements along a loop, and not over others that are as
  // many by chance.
  static bool walk_alike(const Nest& a, const Nest& b, const UOp& loop) {
    absl::flat_hash_set<const Node*> places;
    auto note = [&](const UOp& access) {
      if (depends_on(access.src(0), loop)) places.insert(access.src(0).node());
    };
    for (const UOp& l : a.loads) note(l);
    for (const auto& [s, depth] : a.stores) note(s);
    return std::any_of(b.loads.begin(), b.loads.end(),
                       [&](const UOp& l) { return places.contains(l.src(0).node()); });
  }

  // Whether kernels that share their outer loops alone, which go over rows, leave threads enough to
  // do in these, and no fold goes on along an inner one.
  static bool may_share_rows(const Nest& a, const Nest& b, size_t common) {
    if (common == 0 || a.is_running || b.is_running) return false;
    return turns_of(std::span(a.loops).first(common)) >= enough_parts ||
           estimate_of(a.kernel).steps + estimate_of(b.kernel).steps < most_operations_of_a_part;
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
      const UOp ast = sums_[k] ? add_up(kernels_[k].ast, *sums_[k]) : kernels_[k].ast;
      out.push_back(kernel_call(ast, kernels_[k].buffers, kernels_[k].reason));
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
      std::vector<PlacedStore> kept;
      for (const PlacedStore& s : nests_[k]->stores)
        if (const UOp& b = kernels_[k].buffers[static_cast<size_t>(slot_of(s.store))];
            !b.is(Op::Buffer) || users.at(b.node()) > 1)
          kept.push_back(s);
      if (kept.size() < nests_[k]->stores.size()) kernels_[k].ast = nested(nests_[k]->loops, kept);
    }
  }

  bool strict_, begins_sums_;
  bool siblings_ =
      false;              // last: those that share outer loops alone and read nothing of each other
  int64_t row_bytes_;     // that the rows of a kernel may take
  int64_t cached_bytes_;  // that a second pass finds in a cache
  int64_t next_buffer_;
  Places places_;
  std::vector<Draft> kernels_;
  std::vector<std::optional<Nest>> nests_;
  std::vector<size_t> group_;  // kernel -> that into which it went
  std::vector<size_t> place_;  // each behind all that it waits for
  std::vector<std::vector<size_t>> users_;
  std::vector<std::optional<size_t>> write_before_;
  std::vector<std::optional<ColumnSums>> sums_;  // that a kernel of rows begins for another one
  std::vector<bool> along_columns_;  // whether some of its loops stand in the order of another's
  absl::flat_hash_map<const Node*, std::vector<size_t>> readers_;  // of a buffer, ascending
  std::vector<bool> sends_,
      receives_;  // whether a copy reads what a kernel stores, or brings what it reads
};

}  // namespace

UOp merge_kernels(const UOp& schedule, const CompileOptions& how) {
  return Merger(schedule, how).run();
}

}  // namespace koine

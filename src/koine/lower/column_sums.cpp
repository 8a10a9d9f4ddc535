#include "koine/lower/column_sums.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>

#include "koine/interp/liberties.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/kernel_plan.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// Values that one partial sum adds up one by one, which rounds as the leaf of a sum's tree does;
// and so few that partial sums are much to store.
constexpr int64_t most_steps = 16, least_steps = 4;

bool is_known(std::span<const UOp> loops) {
  return std::ranges::all_of(loops, [](const UOp& l) { return l.src(0).is(Op::Const); });
}

// Steps of a loop for each partial sum: as many as leave parts enough for threads, equal ones where
// there are some; 0: none.
int64_t steps_of(std::span<const UOp> outer) {
  const int64_t n = const_int(outer.back().src(0));
  const double others = turns_of(outer.first(outer.size() - 1));
  int64_t some = 0;
  for (int64_t steps = most_steps; steps >= least_steps; --steps) {
    if (n % steps != 0 || others * static_cast<double>(n / steps) < enough_parts) continue;
    if (others * static_cast<double>(divisor(n / steps, most_parts)) >= enough_parts) return steps;
    if (some == 0) some = steps;
  }
  return some;
}

// The sums that a value is made of, none of them in another one.
std::vector<UOp> sums_of(const UOp& value) {
  std::vector<UOp> out;
  toposort(value, [&](const UOp& u) {
    if (u.is(Op::Reduce)) out.push_back(u);
    return !u.is(Op::Reduce);
  });
  return out;
}

// What is read in a sum, and what the rows touch of the same memory.
class MemoryOfBoth {
 public:
  MemoryOfBoth(const Placed& rows, const Placed& columns, std::span<const UOp> outer)
      : columns_(columns), outer_(outer) {
    auto note = [&](const UOp& access) {
      touched_[rows.buffers[static_cast<size_t>(slot_of(access))].node()].push_back(access);
    };
    for (const auto& [store, depth] : rows.nest.stores) note(store);
    for (const UOp& load : rows.nest.loads) note(load);
  }

  // The loops of the rows in place of those of the sum; empty: they go over other memory. Notes
  // what memory both go over.
  std::vector<UOp> loops_of(const UOp& sum) {
    std::vector<UOp> out;
    for (const UOp& load : toposort(sum.src(0))) {
      if (!load.is(Op::Load) || is_in_row(load)) continue;
      const Node* memory = columns_.buffers[static_cast<size_t>(slot_of(load))].node();
      const auto it = touched_.find(memory);
      if (it == touched_.end()) continue;
      for (const UOp& access : it->second) {
        const std::vector<UOp> found = loops_alike(sum, load, access);
        if (found.empty() || (!out.empty() && found != out)) continue;
        out = found;
        shared_.emplace(memory, item_size(load.dtype()));
        break;
      }
    }
    return out;
  }

  // Bytes for each element that come from memory once instead of twice, if the columns go on with
  // this kernel.
  double saved(const UOp& rest) const {
    double out = 0;
    for (const auto& [memory, bytes] : shared_) out += static_cast<double>(bytes);
    for (const UOp& slot : slots_of(rest)) {
      const auto at = static_cast<size_t>(slot.as<BufferArg>().slot);
      if (at >= columns_.buffers.size()) continue;
      if (const auto it = shared_.find(columns_.buffers[at].node()); it != shared_.end())
        out -= static_cast<double>(it->second);
    }
    return out;
  }

 private:
  // What the sum folds follows outer loops, and its columns anything as long that takes their
  // steps.
  std::vector<UOp> loops_alike(const UOp& sum, const UOp& load, const UOp& access) const {
    const UOp &place = load.src(0).src(1), &other = access.src(0).src(1);
    std::vector<UOp> out;
    for (const UOp& r : reduced_ranges(sum)) {
      const int64_t step = step_of(place, r);
      const auto same = std::ranges::find_if(outer_, [&](const UOp& l) {
        return step != 0 && l.src(0) == r.src(0) && !is_among(out, l) && step_of(other, l) == step;
      });
      if (same == outer_.end()) return {};
      out.push_back(*same);
    }
    for (const UOp& column : columns_.nest.loops) {
      const int64_t step = step_of(place, column);
      const bool walks = std::ranges::any_of(other.ranges(), [&](const Node* n) {
        const UOp range = UOp::share(n);
        return range.src(0) == column.src(0) && step_of(other, range) == step;
      });
      if (step == 0 || !walks) return {};
    }
    // Lanes lie along the columns, as the rows have them.
    return step_of(place, columns_.nest.loops.back()) == 1 ? out : std::vector<UOp>();
  }

  const Placed& columns_;
  std::span<const UOp> outer_;
  absl::flat_hash_map<const Node*, std::vector<UOp>> touched_;
  absl::flat_hash_map<const Node*, int64_t> shared_;
};

// Nothing in the kernel of columns has the number of a loop of the rows.
Substitution with_own_numbers(const Nest& columns, const Nest& rows) {
  int64_t next = std::max(columns.next_range, rows.next_range);
  Substitution out;
  for (const UOp& r : kernel_ranges(columns.kernel))
    if (!is_among(columns.loops, r)) out.emplace(r, range(next++, r.src(0), r.as<RangeArg>().type));
  return out;
}

}  // namespace

std::optional<ColumnSums> column_sums(const Placed& rows, const Placed& columns,
                                      int64_t cached_bytes) {
  const Nest &x = rows.nest, &y = columns.nest;
  if (y.loops.empty() || x.loops.size() <= y.loops.size()) return std::nullopt;
  if (x.is_running || y.is_running || !y.rows.empty()) return std::nullopt;
  const std::span<const UOp> loops(x.loops);
  ColumnSums out;
  const auto outer = loops.first(x.loops.size() - y.loops.size()),
             inner = loops.subspan(outer.size());
  out.loop = outer.back();
  if (!is_known(loops) || turns_of(inner) < lanes_of_columns) return std::nullopt;
  for (size_t i = 0; i < inner.size(); ++i)
    if (!(inner[i].src(0) == y.loops[i].src(0))) return std::nullopt;
  out.steps = steps_of(outer);
  if (out.steps == 0) return std::nullopt;

  MemoryOfBoth both(rows, columns, outer);
  struct Begun {
    UOp sum, value;  // the value in the loops of the rows
  };
  std::vector<Begun> begun;
  const Substitution renamed = with_own_numbers(y, x);
  for (const auto& [store, depth] : y.stores) {
    if (depth != y.loops.size()) return std::nullopt;
    for (const UOp& sum : sums_of(store.src(1))) {
      const bool is_sum =
          sum.as<ReduceArg>().op == Op::Add && is_float(sum.dtype()) && !start_of(sum);
      if (!is_sum || reduced_ranges(sum).size() != outer.size()) continue;
      if (std::ranges::any_of(begun, [&](const Begun& b) { return b.sum == sum; })) continue;
      const std::vector<UOp> found = both.loops_of(sum);
      if (found.empty()) continue;
      Substitution moved = renamed;
      for (size_t i = 0; i < found.size(); ++i)
        moved.insert_or_assign(reduced_ranges(sum)[i], found[i]);
      for (size_t i = 0; i < inner.size(); ++i) moved.emplace(y.loops[i], inner[i]);
      const UOp value = substitute(sum.src(0), moved);
      begun.push_back({sum, cast(value, fold_dtype(sum.dtype()))});
    }
  }
  if (begun.empty()) return std::nullopt;
  std::vector<UOp> sizes, place,
      parts;  // of a partial sum: loops of the rows, and sums of the rest
  int64_t next = y.next_range, count = 1;
  for (size_t i = 0; i < loops.size(); ++i) {
    const int64_t n = const_int(loops[i].src(0));
    const bool split = loops[i] == out.loop;
    sizes.push_back(index_const(split ? n / out.steps : n));
    place.push_back(split ? idiv(loops[i], index_const(out.steps)) : loops[i]);
    count *= const_int(sizes.back());
    if (i < outer.size()) parts.push_back(range(next++, sizes.back(), AxisType::Reduce));
  }
  Indices read(parts.begin(), parts.end());
  read.insert(read.end(), y.loops.begin(), y.loops.end());
  std::vector<PlacedStore> stores;
  Substitution continued;
  for (const auto& [sum, value] : begun) {
    const auto slot = static_cast<int64_t>(columns.buffers.size() + out.partial.size());
    const UOp memory = param(slot, shape_of({count}), value.dtype());
    out.partial.push_back(memory);
    stores.push_back(
        {store(index(memory, {flat_index(stack(sizes), place)}), value), loops.size()});
    const UOp partial = load(index(memory, {flat_index(stack(sizes), read)}));
    continued.emplace(sum, cast(reduce_ranges(Op::Add, partial, parts), sum.dtype()));
  }
  out.begun =
      rewrite(nested(x.loops, stores), kernel_rules(false));  // places as the rows have them
  out.rest = substitute(y.kernel, continued);
  double each = 0;  // bytes of the partial sums of a column, which are stored and read
  for (const UOp& memory : out.partial) each += static_cast<double>(item_size(memory.dtype()));
  const double saved = both.saved(out.rest), spent = 2 * each / static_cast<double>(out.steps);
  const bool pays = saved > spent && saved * turns_of(loops) > static_cast<double>(cached_bytes);
  return pays && each * turns_of(inner) <= most_bytes_of_rows ? std::optional(out) : std::nullopt;
}

UOp add_up(const UOp& kernel, const ColumnSums& sums) {
  const std::vector<UOp> loops = kernel_ranges(kernel);
  const auto at = std::ranges::find(loops, sums.loop) - loops.begin();
  const Opt opt{OptOp::Split, static_cast<int>(at), sums.steps, AxisType::Loop, false};
  const UOp split = apply_opt(kernel, opt);
  const UOp step = kernel_ranges(split)[static_cast<size_t>(at) + 1];
  const UOp is_first = eq(step, index_const(0));
  return transform_graph(split, [&](const UOp&, const UOp& node) {
    if (!node.is(Op::Store) || is_in_row(node)) return node;
    const UOp &address = node.src(0), &value = node.src(1), &memory = address.src(0);
    if (!is_among(sums.partial, memory)) return node;
    const UOp there = index(after(memory, {step}), {address.src(1)});
    return store(there, where(is_first, value, add(load(there), value)));
  });
}

}  // namespace koine

#include "koine/lower/shared_rows.hpp"

#include <algorithm>
#include <map>

#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/target/target.hpp"

namespace koine {
namespace {

// A value, and the loop that it is computed along.
struct Along {
  UOp value, loop;
};

class RowSharing {
 public:
  RowSharing(const UOp& kernel, std::span<const UOp> around)
      : around_(around), order_(toposort(kernel)), next_range_(next_range_of(kernel)) {
    for (const UOp& u : order_) {
      if (u.is(Op::Buffer)) {
        next_row_ = std::max(next_row_, u.as<BufferArg>().slot + 1);
        bytes_ += u.numel() * item_size(u.dtype());
        ++rows_;
      }
      if (u.is(Op::After)) note_row(u);
      if (u.is(Op::Range) && u.src(0).is(Op::Const) && !is_among(around, u)) look_along(u);
    }
  }

  /// What is computed alike, and the row that it is read from instead. Empty: nothing.
  Substitution run() const {
    for (auto it = alike_.rbegin(); it != alike_.rend(); ++it) {
      const std::vector<Along>& all = it->second;
      if (all.size() < 2) continue;
      const UOp row = row_of(all[0]);
      if (!row) continue;
      Substitution out;
      for (const Along& a : all)
        if (!is_filling(row, a)) out.emplace(a.value, load(index(row, {a.loop})));
      if (!out.empty()) return out;
    }
    return {};
  }

 private:
  // The loop that stands for each of a length.
  UOp any_loop(const UOp& size) const { return range(next_range_, size, AxisType::Loop); }

  // Finds the values along a loop, by what they are along any.
  void look_along(const UOp& loop) {
    Substitution along_any{{loop, any_loop(loop.src(0))}};
    for (size_t i = 0; i < order_.size(); ++i) {
      const UOp& u = order_[i];
      if (u == loop || !depends_on(u, loop)) continue;
      std::vector<UOp> src(u.src().begin(), u.src().end());
      for (UOp& s : src)
        if (const auto it = along_any.find(s); it != along_any.end()) s = it->second;
      if (u.is(Op::Range) || u.is(Op::End) || u.is(Op::Reduce)) continue;
      const UOp same = with_sources(u, src);
      along_any.emplace(u, same);
      if (!is_worth_a_row(u)) continue;
      alike_[place_.emplace(same, i).first->second].push_back({u, loop});
    }
  }

  // An operation for each element of a row, of memory.
  bool is_worth_a_row(const UOp& u) const {
    return is_operation(u) && !u.is(Op::Cast) && !u.is(Op::Bitcast) &&
           u.ranges().size() == around_.size() + 1 &&
           std::all_of(around_.begin(), around_.end(),
                       [&](const UOp& loop) { return depends_on(u, loop); }) &&
           (u.node()->ops_below & mask_of(Op::Load)) != 0;
  }

  // Rows that the kernel has, of one loop from the first element on.
  void note_row(const UOp& after) {
    const UOp& fill = after.src(1);
    if (!after.src(0).is(Op::Buffer) || !fill.is(Op::End) || fill.src().size() != 2) return;
    const UOp& store = fill.src(0);
    if (store.is(Op::Store) && store.src(0).src(1) == fill.src(1))
      known_.push_back({after, {store.src(1), fill.src(1)}});
  }

  bool is_filling(const UOp& row, const Along& a) const {
    const UOp& fill = row.src(1);
    return fill.src(0).src(1) == a.value && fill.src(1) == a.loop;
  }

  UOp row_of(const Along& a) const {
    const UOp& size = a.loop.src(0);
    const UOp any = any_loop(size), value = substitute(a.value, {{a.loop, any}});
    for (const auto& [row, filled] : known_)
      if (filled.loop.src(0) == size && substitute(filled.value, {{filled.loop, any}}) == value)
        return row;
    const double bytes = largest(size) * static_cast<double>(item_size(value.dtype()));
    if (rows_ == most_rows_of_a_kernel ||
        static_cast<double>(bytes_) + bytes > static_cast<double>(Target{}.row_bytes))
      return {};
    const UOp row = UOp::make(Op::Buffer, {shape_of({const_int(size)})},
                              BufferArg{next_row_, value.dtype(), {}, AddrSpace::Local});
    return after(row, {end(store(index(row, {any}), value), std::vector<UOp>{any})});
  }

  std::span<const UOp> around_;
  NodeList order_;
  int64_t next_range_, next_row_ = 0, bytes_ = 0;
  int rows_ = 0;
  std::vector<std::pair<UOp, Along>> known_;
  std::unordered_map<UOp, size_t> place_;       // of what is alike: where it is first met
  std::map<size_t, std::vector<Along>> alike_;  // by that; what is made of others comes later
};

}  // namespace

UOp share_rows(const UOp& kernel, std::span<const UOp> loops) {
  // Rows stand in the loops that folds of rows do.
  size_t around = loops.size();
  bool folds = false;
  for (const UOp& u : toposort(kernel))
    if (u.is(Op::Reduce) && !u.ranges().empty()) {
      folds = true;
      around = std::min(around, u.ranges().size());
    }
  if (!folds) return kernel;
  for (UOp out = kernel;;) {
    const Substitution shared = RowSharing(out, loops.first(around)).run();
    if (shared.empty()) return out;
    out = substitute(out, shared);
  }
}

}  // namespace koine

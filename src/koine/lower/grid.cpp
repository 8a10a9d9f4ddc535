#include "koine/lower/grid.hpp"

#include <algorithm>
#include <functional>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/group_limits.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/ranges.hpp"

namespace koine {
namespace {

std::vector<UOp> axes_of(const UOp& ast, AxisType type) {
  std::vector<UOp> out;
  for (const UOp& r : kernel_ranges(ast))
    if (type_of(r) == type) out.push_back(r);
  return out;
}

UOp special(const std::string& name, const UOp& bound) {
  return UOp::make(Op::Special, {bound}, name);
}

// All axes, the first outermost, as parts of one Special.
void share_special(const std::vector<UOp>& axes, const std::string& name, Substitution& places) {
  if (axes.empty()) return;
  UOp all = index_const(1);
  for (const UOp& r : axes) all = simplify_index(mul(all, r.src(0)));
  UOp rest = special(name, all);
  for (size_t k = axes.size(); k-- > 0;) {
    const UOp& size = axes[k].src(0);
    places.emplace(axes[k], k == 0 ? rest : simplify_index(mod(rest, size)));
    rest = simplify_index(idiv(rest, size));
  }
}

// The first of the axes that share a number.
std::vector<UOp> first_of_each(const std::vector<std::vector<UOp>>& numbers) {
  std::vector<UOp> out;
  for (const std::vector<UOp>& axes : numbers) out.push_back(axes[0]);
  return out;
}

// One Special an axis where there are enough from number `first` on, within limits.
void number(const std::vector<UOp>& axes, std::string (*name)(size_t), size_t first,
            const std::array<int64_t, 3>& most, Substitution& places) {
  bool apart = first + axes.size() <= most.size();
  for (size_t k = 0; apart && k < axes.size(); ++k)
    apart = axes[axes.size() - 1 - k].src(0).bounds().high <= most[first + k];
  if (!apart) return share_special(axes, name(first), places);
  for (size_t k = 0; k < axes.size(); ++k) {
    const UOp& axis = axes[axes.size() - 1 - k];
    places.emplace(axis, special(name(first + k), axis.src(0)));
  }
}

// A node whose ranges have become numbers: what lists Ranges no longer lists them.
UOp without_ranges(const UOp& node, std::vector<UOp>& src, const Substitution& places) {
  if (node.is(Op::End) || node.is(Op::After)) {
    for (size_t i = node.src().size(); --i > 0;)
      if (places.contains(node.src(i))) src.erase(src.begin() + static_cast<std::ptrdiff_t>(i));
    if (src.size() == 1) return src[0];
  }
  return with_sources(node, src);
}

// Folds that the threads of a group do together.
class GroupFolds {
 public:
  GroupFolds(const UOp& ast, const Substitution& places)
      : numbers_(thread_axes(ast)), threads_(first_of_each(numbers_)), places_(places) {
    for (const UOp& u : toposort(ast)) {
      if (u.is(Op::Range)) next_range_ = std::max(next_range_, u.as<RangeArg>().id + 1);
      if (u.is(Op::Buffer)) next_buffer_ = std::max(next_buffer_, u.as<BufferArg>().slot + 1);
    }
  }

  /// A Reduce over some of their axes, of sources whose axes are numbers already.
  UOp together(const UOp& reduce, const std::vector<UOp>& src) {
    const UOp start = start_of(reduce) ? src.back() : UOp();
    const Op op = reduce.as<ReduceArg>().op;
    std::vector<UOp> alone, shared;  // ranges of a thread's part, and of the others' parts
    const std::span<const UOp> ranges = reduced_ranges(reduce);
    for (size_t i = 0; i < ranges.size(); ++i)
      if (type_of(ranges[i]) == AxisType::GroupReduce)
        shared.push_back(ranges[i]);
      else
        alone.push_back(src[i + 1]);
    UOp part = alone.empty() ? src[0] : reduce_ranges(op, src[0], alone);
    // Axis by axis: a thread folds the sum of their sizes, not their product.
    for (size_t i = shared.size(); i-- > 0;) {
      const UOp again = range(next_range_++, shared[i].src(0), AxisType::Reduce);
      const UOp memory = stored(part), theirs = load(index(memory, {place_of(shared[i], again)}));
      part = reduce_ranges(op, theirs, std::vector<UOp>{again}, i == 0 ? start : UOp());
    }
    return part;
  }

 private:
  // LOCAL memory with the part of each thread, behind the Barrier.
  UOp stored(const UOp& part) {
    lanes_.clear();
    std::vector<UOp> loops;
    for (const Node* n : part.ranges())
      (becomes_shape(std::get<RangeArg>(n->arg).type) ? lanes_ : loops).push_back(UOp::share(n));
    int64_t size = 1;
    for (const auto* axes : {&threads_, &lanes_})
      for (const UOp& r : *axes) size *= const_int(r.src(0));
    const UOp buffer = UOp::make(Op::Buffer, {shape_of({size})},
                                 BufferArg{next_buffer_++, part.dtype(), {}, AddrSpace::Local});
    // In a loop, all have read the parts of the round before.
    UOp memory = buffer;
    if (!loops.empty()) {
      std::vector<UOp> waits{UOp::make(Op::Group, {})};
      waits.insert(waits.end(), loops.begin(), loops.end());
      memory = after(buffer, {UOp::make(Op::Barrier, waits)});
    }
    const UOp filled = store(index(memory, {place_of({}, {})}), part);
    return after(buffer, {UOp::make(Op::Barrier, {lanes_.empty() ? filled : end(filled, lanes_)})});
  }

  // Of a thread's part: its own, with `again` in place of the number of `shared`.
  UOp place_of(const UOp& shared, const UOp& again) const {
    UOp out = index_const(0);
    auto add_axis = [&](const UOp& size, const UOp& at) { out = add(mul(out, size), at); };
    for (const std::vector<UOp>& axes : numbers_) {
      const bool here = std::ranges::find(axes, shared) != axes.end();
      add_axis(axes[0].src(0), here ? again : places_.at(axes[0]));
    }
    for (const UOp& r : lanes_) add_axis(r.src(0), r);
    return simplify_index(out);
  }

  std::vector<std::vector<UOp>> numbers_;
  std::vector<UOp> threads_, lanes_;
  const Substitution& places_;
  int64_t next_range_ = 0, next_buffer_ = 0;
};

// Of threads that would store one value to one place the first does: where along all axes of a
// number that the Store does not depend on. Null: each has a place of its own.
UOp stores_alone(const UOp& store, const std::vector<std::vector<UOp>>& numbers,
                 const Substitution& places) {
  UOp out;
  for (const std::vector<UOp>& axes : numbers)
    if (places.contains(axes[0]) &&
        std::ranges::none_of(axes, [&](const UOp& a) { return depends_on(store, a); })) {
      const UOp first = eq(places.at(axes[0]), index_const(0));
      out = out ? bit_and(out, first) : first;
    }
  return out;
}

// A node whose ranges have become numbers of threads.
UOp on_threads(const UOp& node, std::vector<UOp>& src, const std::vector<std::vector<UOp>>& numbers,
               const Substitution& places) {
  if (node.is(Op::Store) && is_address(node.src(0)) && accessed_buffer(node).is(Op::Param))
    if (const UOp alone = stores_alone(node, numbers, places))
      return store(src[0], src[1], src.size() == 3 ? bit_and(src[2], alone) : alone);
  return without_ranges(node, src, places);
}

// Each axis with a number of its own.
std::vector<std::vector<UOp>> alone_each(const std::vector<UOp>& axes) {
  std::vector<std::vector<UOp>> out;
  for (const UOp& axis : axes) out.push_back({axis});
  return out;
}

// A row of LOCAL memory that threads fill together is there when all have done their part. Of
// threads along no axis of it the first fills it.
UOp filled_together(const UOp& fill, std::vector<UOp> src,
                    const std::vector<std::vector<UOp>>& numbers, const Substitution& places) {
  std::vector<std::vector<UOp>> others;
  for (const std::vector<UOp>& axes : numbers)
    if (std::ranges::none_of(axes,
                             [&](const UOp& a) { return is_among(fill.src().subspan(1), a); }))
      others.push_back(axes);
  if (const UOp alone = stores_alone(fill.src(0), others, places)) {
    std::vector<UOp> stored(src[0].src().begin(), src[0].src().end());
    src[0] = store(stored[0], stored[1], stored.size() == 3 ? bit_and(stored[2], alone) : alone);
  }
  return UOp::make(Op::Barrier, {without_ranges(fill, src, places)});
}

// The axes of a type as parts of one Special.
UOp to_special(const UOp& ast, AxisType type, const std::string& name) {
  Substitution places;
  share_special(axes_of(ast, type), name, places);
  if (places.empty()) return ast;
  // Lanes of a warp have their elements already.
  const auto axes = alone_each(type == AxisType::Warp ? std::vector<UOp>() : kernel_ranges(ast));
  return rebuild_graph(ast, [&](const UOp& node, std::vector<UOp>& src) {
    const auto it = places.find(node);
    return it != places.end() ? it->second : on_threads(node, src, axes, places);
  });
}

}  // namespace

UOp threads_to_special(const UOp& ast) { return to_special(ast, AxisType::Thread, "thread"); }

UOp warps_to_special(const UOp& ast) {
  return to_special(ast, AxisType::Warp, index_in_group_name(0));
}

UOp to_grid(const UOp& ast, const Groups& groups) {
  Substitution places;
  const size_t warps = axes_of(ast, AxisType::Warp).empty() ? 0 : 1;  // which have lidx0
  number(axes_of(ast, AxisType::Global), group_index_name, 0, groups.most_groups, places);
  const std::vector<std::vector<UOp>> threads = thread_axes(ast);
  number(first_of_each(threads), index_in_group_name, warps, groups.most_in_group, places);
  for (const std::vector<UOp>& axes : threads)
    for (const UOp& axis : axes) places.try_emplace(axis, places.at(axes[0]));
  if (places.empty()) return ast;
  GroupFolds folds(ast, places);
  std::vector<std::vector<UOp>> axes = alone_each(axes_of(ast, AxisType::Global));
  axes.insert(axes.end(), threads.begin(), threads.end());
  const std::vector<UOp> fills = row_fills(ast);
  return rebuild_graph(ast, [&](const UOp& node, std::vector<UOp>& src) -> UOp {
    if (const auto it = places.find(node); it != places.end()) return it->second;
    if (node.is(Op::Reduce) && std::ranges::any_of(reduced_ranges(node), [](const UOp& r) {
          return type_of(r) == AxisType::GroupReduce;
        }))
      return folds.together(node, src);
    if (std::ranges::find(fills, node) != fills.end() && is_filled_together(node, threads))
      return filled_together(node, src, threads, places);
    return on_threads(node, src, axes, places);
  });
}

}  // namespace koine

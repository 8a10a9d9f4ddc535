#include "koine/lower/expand.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/derive.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/fragments.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/lower/scan.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/target/target.hpp"

namespace koine {
namespace {

bool contains(const std::vector<const Node*>& list, const Node* node) {
  return std::find(list.begin(), list.end(), node) != list.end();
}

// Which axis of shape each range becomes. Ranges that never meet in one value may share the lane
// axis, the last one; UNROLL axes come first and are never lanes.
struct Layout {
  absl::flat_hash_map<const Node*, size_t> axis;
  absl::flat_hash_map<int64_t, size_t> by_id;  // of ranges
  std::vector<int64_t> sizes;
  size_t unrolled = 0;  // how many of the axes are UNROLL: the first
};

Layout make_layout(const UOp& ast, const NodeList& order) {
  std::vector<UOp> shaped;
  for (const UOp& r : kernel_ranges(ast))
    if (becomes_shape(r.as<RangeArg>().type)) shaped.push_back(r);
  // A fold has the axes that it goes along, also those that its value does not depend on.
  auto has = [&](const UOp& u, const UOp& r) {
    return contains(u.ranges(), r.node()) || (u.is(Op::Reduce) && is_among(reduced_ranges(u), r));
  };
  auto meet = [&](const UOp& a, const UOp& b) {
    return std::any_of(order.begin(), order.end(),
                       [&](const UOp& u) { return has(u, a) && has(u, b); });
  };
  std::vector<std::vector<UOp>> axes;  // last is the lanes
  for (size_t i = shaped.size(); i-- > 0;) {
    const UOp& r = shaped[i];
    const bool unroll = r.as<RangeArg>().type == AxisType::Unroll;
    if (!unroll && !axes.empty() && axes[0][0].as<RangeArg>().type != AxisType::Unroll &&
        axes[0][0].src(0) == r.src(0) &&
        std::none_of(axes[0].begin(), axes[0].end(), [&](const UOp& o) { return meet(o, r); }))
      axes[0].push_back(r);
    else
      axes.push_back({r});
  }
  std::reverse(axes.begin(), axes.end());
  std::stable_partition(axes.begin(), axes.end(), [](const std::vector<UOp>& group) {
    return group[0].as<RangeArg>().type == AxisType::Unroll;
  });
  if (!axes.empty() && axes.back()[0].as<RangeArg>().type == AxisType::Unroll) axes.push_back({});
  Layout out;
  for (size_t k = 0; k < axes.size(); ++k) {
    out.unrolled += !axes[k].empty() && axes[k][0].as<RangeArg>().type == AxisType::Unroll;
    out.sizes.push_back(axes[k].empty() ? 1 : const_int(axes[k][0].src(0)));
    for (const UOp& r : axes[k]) {
      out.axis.emplace(r.node(), k);
      out.by_id.emplace(r.as<RangeArg>().id, k);
    }
  }
  // Edits make none that are longer; a kernel made by hand may ask for them.
  const int64_t most = Target().most_lanes;
  KOINE_REQUIRE(out.sizes.empty() || out.sizes.back() <= most, Value,
                "the innermost UPCAST or GROUP_REDUCE has {} steps, a vector at most {} lanes: "
                "split it",
                out.sizes.back(), most);
  return out;
}

// The values 0..n-1 along one axis of the layout.
UOp iota_along(size_t axis, const Layout& layout) {
  std::vector<UOp> values;
  for (int64_t i = 0; i < layout.sizes[axis]; ++i) values.push_back(index_const(i));
  std::vector<int64_t> sizes(layout.sizes.size(), 1);
  sizes[axis] = layout.sizes[axis];
  return reshape(stack(values), shape_of(sizes));
}

UOp broadcast_to(const UOp& value, const UOp& shape) {
  if (value.shape() == shape) return value;
  if (shape.src().empty()) return value;
  if (value.is_scalar()) {
    const std::vector<int64_t> ones(shape.src().size(), 1);
    return koine::expand(reshape(value, shape_of(ones)), shape);
  }
  return koine::expand(value, shape);
}

// Running folds whose loops allow it, by the loops that they go along; and what stands around
// these.
class RunningFolds {
 public:
  explicit RunningFolds(const UOp& ast) {
    std::vector<UOp> loops;
    int nests = 0;
    for (const UOp& u : toposort(ast)) {
      if (!u.is(Op::End)) continue;
      ++nests;
      loops.assign(u.src().begin() + 1, u.src().end());
    }
    const std::vector<UOp> all = loops;
    // One inside of another fold starts anew at each of its steps.
    auto stands_alone = [&](const UOp& reduce) {
      return std::all_of(reduce.ranges().begin(), reduce.ranges().end(), [&](const Node* r) {
        return std::any_of(all.begin(), all.end(), [&](const UOp& l) { return l.node() == r; });
      });
    };
    std::erase_if(loops, [](const UOp& r) {
      return !r.is(Op::Range) || becomes_shape(r.as<RangeArg>().type);
    });
    if (nests != 1) return;
    for (const UOp& u : toposort(ast)) {
      const std::vector<UOp> levels = running_levels(u);
      if (levels.empty() || levels.size() > loops.size() || !stands_alone(u)) continue;
      if (!std::equal(levels.begin(), levels.end(), loops.end() - ssize(levels))) continue;
      levels_ = levels;
      running_.push_back(u);
    }
    around_.assign(loops.begin(), loops.end() - ssize(levels_));
  }

  bool contains(const UOp& reduce) const {
    return std::find(running_.begin(), running_.end(), reduce) != running_.end();
  }
  const std::vector<UOp>& levels() const { return levels_; }
  const std::vector<UOp>& around() const { return around_; }

  /// The kernel with each of them as a Reduce that goes on, of the element that a step
  /// adds.
  UOp marked(const UOp& ast) const {
    return transform_graph(ast, [&](const UOp& original, const UOp& node) {
      if (!contains(original)) return node;
      const UOp& counter = node.src(1);
      const UOp newest = simplify_index(sub(counter.src(0), index_const(1)));
      const UOp element = simplify(substitute(node.src(0), {{counter, newest}}));
      const ReduceArg goes_on{node.as<ReduceArg>().op, {}, true};
      const UOp fold = UOp::make(Op::Reduce, {element}, goes_on);
      if (goes_on.op != Op::Add || !is_float(fold.dtype())) return fold;
      // The accumulator starts from -0, a sum of several elements from 0.
      const UOp first = lt(newest, index_const(1)), zero = constant_int(fold.dtype(), 0);
      return add(fold, where(first, neutral_of(Op::Add, fold.dtype()), zero));
    });
  }

 private:
  static std::ptrdiff_t ssize(const std::vector<UOp>& list) {
    return static_cast<std::ptrdiff_t>(list.size());
  }

  std::vector<UOp> running_, levels_, around_;
};

class Expander {
 public:
  explicit Expander(const UOp& ast)
      : running_(ast),
        order_(toposort(in_fragments(running_.marked(ast)))),
        layout_(make_layout(order_.back(), order_)) {}

  UOp run() {
    for (const UOp& node : order_) done_.set(node.node(), expand_node(node));
    return done_.at(order_.back().node());
  }

 private:
  UOp expand_node(const UOp& node) {
    if (node.is(Op::Range)) {
      const auto it = layout_.axis.find(node.node());
      return it == layout_.axis.end() ? node : iota_along(it->second, layout_);
    }
    std::vector<UOp> src;
    for (const UOp& s : node.src()) src.push_back(done_.at(s.node()));
    switch (node.op()) {
      case Op::Wmma:
        return fragments(node, src);
      case Op::Reduce:
        return node.as<ReduceArg>().goes_on ? running_fold(node.as<ReduceArg>().op, src[0])
                                            : reduction(node, src);
      case Op::End: {
        std::vector<UOp> loops;
        for (size_t i = 1; i < src.size(); ++i)
          if (src[i].is(Op::Range)) loops.push_back(src[i]);
        return folds_.empty() ? end(src[0], loops) : closed_with_folds(src[0]);
      }
      case Op::Store: {
        if (node.src(0).is(Op::Buffer)) return keep(node.src(0), src[1]);
        const UOp all = broadcast_shape(Op::Store, src);
        const UOp address = with_source(src[0], 1, broadcast_to(src[0].src(1), all));
        const UOp value = broadcast_to(src[1], all);
        if (src.size() == 3) return store(address, value, broadcast_to(src[2], all));
        return store(address, value);
      }
      case Op::AtomicAdd: {
        const UOp all = broadcast_shape(Op::Store, src);
        const UOp address = with_source(src[0], 1, broadcast_to(src[0].src(1), all));
        return UOp::make(Op::AtomicAdd, {address, broadcast_to(src[1], all)});
      }
      case Op::Load: {
        if (src.size() < 3) break;
        // The gate may have lanes where the address has none, and the reverse.
        const UOp all = broadcast_shape(Op::Load, src);
        if (all == src[0].shape() || !src[0].is(Op::Index)) break;
        const UOp address = with_source(src[0], 1, broadcast_to(src[0].src(1), all));
        return load(address, broadcast_to(src[1], all), broadcast_to(src[2], all));
      }
      default:
        break;
    }
    return with_sources(node, src);
  }

  // Of a Wmma the axes of its elements, and an accumulator with those of A and B that are no
  // UNROLL.
  UOp fragments(const UOp& node, std::vector<UOp> src) {
    WmmaArg arg = node.as<WmmaArg>();
    std::vector<int64_t> whole(layout_.sizes.size(), 1);
    auto to_axes = [&](Ints& ids, UOp* matrix) {
      std::vector<int64_t> sizes = matrix == nullptr || matrix->is_scalar()
                                       ? std::vector<int64_t>(layout_.sizes.size(), 1)
                                       : matrix->sizes();
      for (int64_t& id : ids) {
        id = static_cast<int64_t>(layout_.by_id.at(id));
        const auto k = static_cast<size_t>(id);
        sizes[k] = layout_.sizes[k];
      }
      if (matrix != nullptr) *matrix = broadcast_to(*matrix, shape_of(sizes));
      for (size_t k = 0; k < sizes.size(); ++k) whole[k] = std::max(whole[k], sizes[k]);
    };
    to_axes(arg.a, &src[0]);
    to_axes(arg.b, &src[1]);
    to_axes(arg.accumulator, nullptr);
    std::fill_n(whole.begin(), layout_.unrolled, 1);  // what is summed
    src[2] = broadcast_to(src[2], shape_of(whole));
    return UOp::make(Op::Wmma, src, arg);
  }

  // Stores into a register of the value's shape.
  UOp keep(const UOp& buffer, const UOp& value) {
    const UOp kept = accumulator(value);
    done_.set(buffer.node(), kept);
    return store(kept, value);
  }

  UOp reduction(const UOp& node, const std::vector<UOp>& src) {
    const Op op = node.as<ReduceArg>().op;
    UOp value = src[0];
    const bool on_core = value.is(Op::Wmma);
    const UOp given = start_of(node) ? src.back() : UOp();
    std::vector<UOp> loops;
    std::vector<int64_t> unrolled, grouped;
    for (const UOp& r : reduced_ranges(node)) {
      const auto it = layout_.axis.find(r.node());
      if (it == layout_.axis.end())
        loops.push_back(r);
      else
        (r.as<RangeArg>().type == AxisType::Unroll ? unrolled : grouped)
            .push_back(static_cast<int64_t>(it->second));
    }
    // The value must really have the axes it is reduced over.
    std::vector<int64_t> full =
        value.is_scalar() ? std::vector<int64_t>(layout_.sizes.size(), 1) : value.sizes();
    bool widen = false;
    for (const auto& list : {unrolled, grouped})
      for (const int64_t axis : list) {
        widen |= full[static_cast<size_t>(axis)] != layout_.sizes[static_cast<size_t>(axis)];
        full[static_cast<size_t>(axis)] = layout_.sizes[static_cast<size_t>(axis)];
      }
    if (widen && !on_core) value = broadcast_to(value, shape_of(full));
    UOp shape = on_core ? value.src(2).shape() : value.shape();
    if (!unrolled.empty() && !on_core) {
      for (const int64_t axis : unrolled) full[static_cast<size_t>(axis)] = 1;
      shape = shape_of(full);
    }
    // The values of a step, onto what was folded before it.
    auto onto = [&](const UOp& before) {
      if (on_core) return with_source(value, 2, before);
      return unrolled.empty() ? binary(op, before, value)
                              : koine::reduce(op, value, unrolled, before);
    };
    // Lanes that fold after the loop start from what changes nothing each.
    const bool from_given = given && grouped.empty();
    const UOp begin = from_given ? given
                      : given    ? neutral_of(op, value.dtype())
                                 : fold_start(op, value.dtype(), reduced_ranges(node));
    const UOp first = broadcast_to(begin, shape);
    UOp result = onto(first);
    if (!loops.empty()) {
      const UOp acc = accumulator(first);
      std::vector<UOp> outer;
      auto surround = [&](const std::vector<const Node*>& ranges) {
        for (const Node* r : ranges)
          if (std::none_of(loops.begin(), loops.end(), [&](const UOp& l) { return l.node() == r; }))
            outer.push_back(UOp::share(r));
      };
      surround(result.ranges());
      for (const UOp& l : loops) surround(l.src(0).ranges());
      std::vector<UOp> inside{store(outer.empty() ? acc : after(acc, outer), first)};
      inside.insert(inside.end(), loops.begin(), loops.end());
      const UOp current = after(acc, inside);
      result = load(after(acc, {end(store(current, onto(load(current))), loops)}));
    }
    if (!grouped.empty()) result = koine::reduce(op, result, grouped);
    return given && !from_given ? binary(op, given, result) : result;
  }

  UOp accumulator(const UOp& like) {
    return UOp::make(Op::Buffer, {like.shape()},
                     BufferArg{next_accumulator_++, like.dtype(), {}, AddrSpace::Reg});
  }

  // One accumulator a level: of the steps that its loop has taken since it began. A result is what
  // the outer levels hold and, last, the innermost one's.
  UOp running_fold(Op op, const UOp& element) {
    const UOp identity = broadcast_to(neutral_of(op, element.dtype()), element.shape());
    std::vector<UOp> outside = running_.around();
    Fold fold{op, {}, {}, {}, {}};
    UOp before;  // of the levels but the innermost
    for (const UOp& level : running_.levels()) {
      if (!fold.held.empty()) before = before ? binary(op, before, fold.held.back()) : fold.held[0];
      const UOp acc = accumulator(element);
      const UOp start = store(outside.empty() ? acc : after(acc, outside), identity);
      fold.accumulators.push_back(acc);
      fold.current.push_back(after(acc, std::vector<UOp>{start, level}));
      fold.held.push_back(load(fold.current.back()));
      outside.push_back(level);
    }
    fold.grown = binary(op, fold.held.back(), element);
    folds_.push_back(fold);
    return before ? binary(op, before, fold.grown) : fold.grown;
  }

  // The loops around a body, level by level: at the end of each its accumulators go into the next.
  UOp closed_with_folds(const UOp& body) {
    const std::vector<UOp>& levels = running_.levels();
    std::vector<UOp> effects{body};
    for (const Fold& fold : folds_) effects.push_back(store(fold.current.back(), fold.grown));
    for (size_t k = levels.size() - 1; k > 0; --k) {
      const UOp inner = end(group(effects), std::vector<UOp>{levels[k]});
      effects.clear();
      for (const Fold& fold : folds_) {
        const UOp whole = load(after(fold.accumulators[k], {inner}));
        effects.push_back(store(fold.current[k - 1], binary(fold.op, fold.held[k - 1], whole)));
      }
    }
    std::vector<UOp> loops = running_.around();
    loops.push_back(levels[0]);
    return end(effects.size() == 1 ? effects[0] : group(effects), loops);
  }

  // A running fold that is made, with a place in each list for each of its levels, outermost first.
  struct Fold {
    Op op;
    std::vector<UOp> accumulators, current, held;  // memory, the same in its loop, and its value
    UOp grown;                                     // the innermost value after a step
  };

  RunningFolds running_;
  NodeList order_;
  Layout layout_;
  NodeMap<UOp> done_;
  std::vector<Fold> folds_;
  int64_t next_accumulator_ = 0;
};

}  // namespace

UOp expand(const UOp& ast) { return Expander(ast).run(); }

namespace {

// Partial results as they are, and after the last block what is made of them: in a loop that turns
// once then and never before, and reads the result from a register and all else from memory there,
// so that nothing of it runs elsewhere.
std::vector<UOp> stores_of_blocks(const UOp& stored, const UOp& gate, const UOp& reduction,
                                  const UOp& total, const UOp& last,
                                  const std::vector<UOp>& ranges) {
  const UOp others = logical_not(last);
  const UOp partial = store(stored.src(0), total, gate ? bit_and(gate, others) : others);
  const UOp once = range(ranges.back().as<RangeArg>().id + 1,
                         where(last, index_const(1), index_const(0)), AxisType::Loop);
  const UOp kept =
      UOp::make(Op::Buffer, {shape_of({})}, BufferArg{0, total.dtype(), {}, AddrSpace::Reg});
  const UOp result = load(after(kept, {store(kept, total), once}));
  Substitution there{{reduction, result}};
  for (const UOp& u : toposort(stored.src(1)))
    if (u.is(Op::Param) && u.as<BufferArg>().name.empty()) there.emplace(u, after(u, {once}));
  const UOp final_store = store(stored.src(0), substitute(stored.src(1), there), gate);
  return {partial, end(final_store, std::vector<UOp>{once})};
}

}  // namespace

UOp block_reduces(const UOp& ast, bool in_order) {
  UOp reduction, stored, closing;
  for (const UOp& u : toposort(ast)) {
    if (u.is(Op::Reduce)) reduction = u;
    if (u.is(Op::Store) && stored) return ast;  // one output keeps the partial sums
    if (u.is(Op::AtomicAdd)) return ast;        // and can be read again
    if (u.is(Op::Store)) stored = u;
    if (u.is(Op::End)) closing = u;
  }
  if (!reduction || !closing) return ast;
  int64_t innermost_loop = -1;
  for (const UOp& r : closing.src().subspan(1))
    innermost_loop = std::max(innermost_loop, r.as<RangeArg>().id);
  std::vector<UOp> outer, inner;
  for (const UOp& r : reduced_ranges(reduction)) {
    const RangeArg& arg = r.as<RangeArg>();
    const bool around = arg.id < innermost_loop && arg.type == AxisType::Reduce &&
                        r.src(0).ranges().empty();  // no loop says how long it is
    (around ? outer : inner).push_back(r);
  }
  if (outer.empty()) return ast;
  const Op op = reduction.as<ReduceArg>().op;
  UOp first = constant_bool(true), last = constant_bool(true);
  for (const UOp& r : outer) {
    first = bit_and(first, lt(r, index_const(1)));
    last = bit_and(last, eq(r, sub(r.src(0), index_const(1))));
  }
  const UOp gate = stored.src().size() == 3 ? stored.src(2) : UOp();
  const UOp later = logical_not(first);
  const UOp& value = reduction.src(0);
  const UOp start = start_of(reduction);
  const UOp partial = load(stored.src(0), start ? start : identity_of(op, value.dtype()),
                           gate ? bit_and(gate, later) : later);
  UOp total;
  if (inner.empty())
    total = in_order ? binary(op, partial, value) : binary(op, value, partial);
  else if (in_order)
    total = reduce_as(reduction, value, inner, partial);
  else  // the partial result is loaded after the loop, where registers are free
    total = binary(
        op, reduce_as(reduction, value, inner, start ? neutral_of(op, value.dtype()) : UOp()),
        partial);
  std::vector<UOp> loops(closing.src().begin() + 1, closing.src().end());
  loops.insert(loops.end(), outer.begin(), outer.end());
  std::sort(loops.begin(), loops.end(),
            [](const UOp& a, const UOp& b) { return a.as<RangeArg>().id < b.as<RangeArg>().id; });
  const UOp effect =
      stored.src(1) == reduction
          ? store(stored.src(0), total, gate)
          : group(stores_of_blocks(stored, gate, reduction, total, last, kernel_ranges(ast)));
  return sink(std::vector<UOp>{end(effect, loops)});
}

}  // namespace koine

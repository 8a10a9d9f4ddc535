#include "koine/lower/decide.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>

#include "koine/base/interrupt.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/bufferize.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/joins.hpp"
#include "koine/lower/picked_sum.hpp"
#include "koine/lower/reasons.hpp"
#include "koine/lower/rows.hpp"
#include "koine/lower/running.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// Walks the places that values are read at; `Reasons` says which values get memory.
class Decider {
 public:
  Decider(const UOp& program, int64_t row_bytes, const CompileOptions& how)
      : program_(program),
        facts_(program, how.strict),
        reasons_(facts_, row_bytes, how.tensor_cores, next_range_) {
    uses_.resize(facts_.order().size());
  }

  UOp run() {
    for (const uint32_t i : facts_.consumers_first()) {
      if (i % 64 == 0) check_interrupt();
      visit(facts_.order()[i], std::move(uses_[i]));
    }
    return transform_graph(program_, [&](const UOp& original, const UOp& node) {
      if (original.is(Op::Sink)) return effects(original, node);
      if (original.is(Op::Store)) return at_memory(original, node);
      if (original.is(Op::After)) return decided(original, at_memory(original, node));
      if (is_movement(original.op())) views_.emplace(original.node(), node);
      return decided(original, node);
    });
  }

 private:
  // The value where it was decided to lie.
  UOp decided(const UOp& original, const UOp& node) const {
    // Who asked for memory gets that which others read.
    if (original.is(Op::Contiguous) && !original.is_marked() &&
        !facts_.reason_of(original.src(0)).empty())
      return node.src(0);
    if (const auto row = rows_.find(original.node()); row != rows_.end())
      return UOp::make(Op::Load, {node},
                       LoadArg{{}, AddrSpace::Local, row->second.axes, row->second.reason});
    const std::string_view reason = facts_.reason_of(original);
    return reason.empty() ? node : in_memory(original, node, std::string(reason));
  }

  // What is written is the memory itself, also where others read its view from a copy. This is of a
  // Store, an After or a view.
  UOp at_memory(const UOp& original, const UOp& node) {
    const UOp& below = original.src(0);
    UOp memory = node.src(0);
    if (is_movement(below.op())) memory = at_memory(below, views_.at(below.node()));
    return with_source(node, 0, memory);
  }

  // What the program runs stays an effect, also where its value has memory now.
  static UOp effects(const UOp& original, const UOp& node) {
    std::vector<UOp> src(node.src().begin(), node.src().end());
    for (size_t i = 0; i < src.size(); ++i)
      if (src[i].is(Op::Contiguous) && original.src(i).is(Op::After)) src[i] = UOp(src[i].src(0));
    return with_sources(node, src);
  }

  // --- the walk ------------------------------------------------------------------------------

  void visit(const UOp& u, std::vector<Use> uses) {
    if (u.is(Op::Sink)) return outputs();
    if (u.is(Op::After)) stores(u);
    if (const Node* output = facts_.output_of(u)) {
      std::erase_if(uses, [&](const Use& use) { return use.kernel != output; });
    } else if (facts_.in_memory(u)) {
      return;
    } else if (asks_for_buffer(u)) {
      uses = {open(u, u.node())};
    } else if (const std::string_view reason = reasons_.of(u, uses); !reason.empty()) {
      facts_.give_memory(u, reason);
      uses = {open_part(u, uses)};
    } else if (auto row = reasons_.row(u, uses)) {
      reasons_.holds(*row, uses[0].kernel);
      uses = where_rows_are_filled(u, row->axes, uses, next_range_);
      rows_.emplace(u.node(), std::move(*row));
    } else if (goes_to_local(u)) {
      uses = where_rows_are_filled(u, row_axes(u), uses, next_range_);
    }
    const bool lies_in_memory = facts_.in_memory(u) || asks_for_buffer(u);
    if (lies_in_memory && !uses.empty() && filled_by_parts(u)) return;
    for (const Use& use : uses) pass_on(u, use);
  }

  // A join in memory of many parts, or some part of which folds: each part has a kernel, with loops
  // of its own.
  bool filled_by_parts(const UOp& u) {
    const UOp& value = u.is(Op::Contiguous) ? u.src(0) : u;
    auto read_once = [&](const UOp& node) {
      return node == u || (facts_.consumers(node) == 1 && facts_.output_of(node) == nullptr);
    };
    auto is_own = [&](const Join::Part& part) {
      return read_once(part.source) && facts_.folds(part.source) &&
             !facts_.in_memory(part.source) &&
             elements_of(part.source) >= least_elements_of_a_part &&
             (part.stored == part.source || !join_of(part.source));
    };
    const auto join = join_of(value);
    if (!join) return false;
    const bool many = has_many_parts(*join) && !u.is_marked();
    if (!many && (!std::all_of(join->inner.begin(), join->inner.end(), read_once) ||
                  std::count_if(join->parts.begin(), join->parts.end(), std::not_fn(is_own)) >
                      most_copied_parts ||
                  std::none_of(join->parts.begin(), join->parts.end(), is_own)))
      return false;
    for (const Join::Part& part : join->parts)
      if (part.shown && facts_.reads_memory(part.shown)) return false;
    if (!shows_its_parts(*join)) return false;
    if (many) facts_.give_memory(value, join_of_many);
    for (const Join::Part& part : join->parts) {
      if (is_own(part))
        read_from_memory(part.source, part_of_a_join);
      else
        read(part.source, open(part.source, part.source.node()));
    }
    return true;
  }

  void outputs() {
    for (const UOp& effect : program_.src())
      if (effect.is(Op::Store)) {
        const UOp value = stored_value(effect);
        read(value, open(value, effect.node()));
      }
  }

  // The Stores of one dependency on one device are a kernel.
  void stores(const UOp& after) {
    for (const UOp& dependency : after.src().subspan(1)) {
      std::vector<std::vector<UOp>> kernels;
      for (const UOp& s : stores_in(dependency)) {
        auto same = std::ranges::find_if(
            kernels, [&](const auto& k) { return k[0].src(0).device() == s.src(0).device(); });
        if (same == kernels.end()) same = kernels.emplace(same);
        same->push_back(s);
      }
      for (const std::vector<UOp>& kernel : kernels) one_kernel(kernel);
    }
  }
  void one_kernel(const std::vector<UOp>& stores) {
    const Node* kernel = stores[0].node();
    reasons_.assigns(kernel);
    const bool together = share_loops(stores);
    Use use;
    for (const UOp& s : stores) {
      if (!together || s == stores[0]) use = open(s.src(1), kernel);
      use.stored = stores.size() == 1 && s.src().size() == 2;
      store(s, use);
    }
  }
  void store(const UOp& s, Use use) {
    read(s.src(1), use);
    if (s.src().size() == 3) read_broadcast(s.src(2), use);
    for (UOp view = s.src(0); is_movement(view.op()); view = view.src(0))
      use = view.is(Op::Index) ? indexed(view, use) : moved_to_source(view, use);
  }

  // The loops over all elements of a value.
  Use open(const UOp& value, const Node* kernel) {
    Use use{kernel, {}, {}, {}, true};
    use.at = open_loops(value, next_range_, use.loops);
    return use;
  }

  // The loops over what is read of a value that gets memory.
  Use open_part(const UOp& u, const std::vector<Use>& uses) {
    if (reasons_.is_wanted(u) || join_of(u)) return open(u, u.node());
    // A running fold goes on from its start, to its end.
    const PartRead part =
        part_read(u, uses, u.is(Op::Reduce) ? running_axis(facts_, u) : std::nullopt);
    if (!part.much_less) {
      const Ints order = is_product(u) && uses.size() == 1 ? order_read(u, uses[0]) : Ints();
      if (order.empty()) return open(u, u.node());
      orders_.emplace(u.node(), order);
      const UOp held = permute(u, order);
      return moved_to_source(held, open(held, u.node()));
    }
    const UOp held = shrink(u, part.offset, part.shape);
    parts_.emplace(u.node(), part);
    return moved_to_source(held, open(held, u.node()));
  }
  static bool is_product(const UOp& u) {
    return u.is(Op::Reduce) && u.as<ReduceArg>().op == Op::Add && u.src(0).is(Op::Mul) &&
           is_float(u.dtype());
  }
  UOp in_memory(const UOp& original, const UOp& node, std::string reason) const {
    if (const auto order = orders_.find(original.node()); order != orders_.end())
      return permute_back(
          UOp::make(Op::Contiguous, {permute(node, order->second)}, std::move(reason)),
          order->second);
    const auto part = parts_.find(original.node());
    if (part == parts_.end()) return UOp::make(Op::Contiguous, {node}, std::move(reason));
    const auto& [much_less, offset, shape, elements] = part->second;
    const UOp held = UOp::make(Op::Contiguous, {shrink(node, offset, shape)}, std::move(reason));
    return pad(held, offset, original.shape(), constant_int(node.dtype(), 0));
  }

  void read(const UOp& node, Use use) {
    if (node.is(Op::Const) || node.is(Op::Param) || node.is(Op::Buffer)) return;
    if (node.is(Op::Reduce)) use.guard = guard_of(use.at, use.guard);
    std::vector<Use>& known = uses_[facts_.number(node)];
    const auto same = std::find_if(known.begin(), known.end(), [&](const Use& other) {
      return other.kernel == use.kernel && other.at == use.at;
    });
    if (same == known.end()) {
      known.push_back(std::move(use));
    } else if (!(same->guard == use.guard)) {  // computed where either wants it
      same->guard = same->guard && use.guard ? simplify(bit_or(same->guard, use.guard)) : UOp();
    }
  }
  void read_broadcast(const UOp& node, const Use& use) {
    read(node, use.at_place(aligned(node, use.at)));
  }
  void read_from_memory(const UOp& node, std::string_view reason) {
    if (!facts_.in_memory(node) && !asks_for_buffer(node)) reasons_.wants_memory(node, reason);
  }

  // The sources of a node that is computed at a place are read at these.
  void pass_on(const UOp& u, Use use) {
    const bool chooses = u.is(Op::Pad) || u.is(Op::Index) || u.is(Op::Stack);
    use.stored = use.stored &&
                 (shows_memory(u.op()) || u.is(Op::Assume) || (is_movement(u.op()) && !chooses));
    if (is_elementwise(u.op())) {
      use.in_window = use.in_window && u.is(Op::Where);
      for (const UOp& s : u.src()) read_broadcast(s, use);
      return;
    }
    switch (u.op()) {
      case Op::Reduce:
        return reduction(u, use);
      case Op::Load:
        return load(u, use);
      case Op::Stack:
        return stacked(u, use);
      case Op::Bitcast:
        if (item_size(u.src(0).dtype()) == item_size(u.dtype())) return read(u.src(0), use);
        return read_from_memory(u.src(0), "bitcast to another item size");
      case Op::Pad:
        if (u.src().size() == 4) read_broadcast(u.src(3), use);
        return read(u.src(0), moved_to_source(u, use));
      case Op::Index:
        return read(u.src(0), indexed(u, use));
      case Op::Assume:
        return read(u.src(0), use);
      case Op::Fence:
        if (!facts_.reads_memory(u.src(0))) return read(u.src(0), use);
        return read_from_memory(fenced_value(u.src(0)), "it is read again later");
      default:
        if (shows_memory(u.op())) return read(u.src(0), use);
        if (is_movement(u.op())) read(u.src(0), moved_to_source(u, use));
    }
  }

  void reduction(const UOp& u, const Use& use) {
    Use body = use;
    body.loops = loops_around(use);
    body.in_window = false;
    if (const auto scan = reasons_.scan(u, use)) {
      body.at[folded_axis(u)] = scan->entering;
      body.folded_on = true;
      return read(u.src(0), std::move(body));
    }
    const size_t outer = body.loops.size();
    for (const int64_t axis : u.as<ReduceArg>().axes) {
      const auto i = static_cast<size_t>(axis);
      const UOp size = u.src(0).dim(i);
      if (is_const(size, 0)) return;  // nothing to reduce
      if (is_const(size, 1)) continue;
      body.at[i] = range(next_range_++, size, AxisType::Reduce);
      body.loops.push_back(body.at[i]);
    }
    if (u.as<ReduceArg>().op == Op::Add)
      sum_where_picked(facts_, u.src(0), outer, body, next_range_);
    read(u.src(0), std::move(body));
  }

  // What a Fence needs in memory: below views, where that is memory already, or no larger.
  UOp fenced_value(const UOp& value) const {
    UOp all = value, equal = value;
    while (is_view(all.op())) all = UOp(all.src(0));
    if (facts_.in_memory(all) || asks_for_buffer(all)) return all;
    while (is_view(equal.op()) && !equal.is(Op::Shrink)) equal = UOp(equal.src(0));
    return equal;
  }

  void load(const UOp& u, const Use& use) {
    const bool gated = u.src().size() == 3;
    if (!goes_to_local(u) && !gated) return read_from_memory(u.src(0), "read on another device");
    Use inside = use;
    if (gated) {
      read_broadcast(u.src(1), inside);
      read_broadcast(u.src(2), inside);
      inside.guard = conjunction(inside.guard, element(u.src(2), aligned(u.src(2), inside.at)));
    }
    read(u.src(0), std::move(inside));
  }

  void stacked(const UOp& u, const Use& use) {
    Use rest = use.at_place({use.at.begin() + 1, use.at.end()});
    rest.in_window = false;
    for (const auto& [source, here] : choices_of(u, use.at[0])) {
      rest.guard = conjunction(use.guard, here);
      read(source, rest);
    }
  }

  // The place in the source of an Index: each index is a value of its own, read at a place.
  Use indexed(const UOp& u, const Use& use) {
    Use out = use;
    out.in_window = false;
    UOp inside;
    out.at = koine::indexed(u, use.at, inside, [&](const UOp& which, const Indices& its) {
      Use there = out.at_place(its);
      there.guard = guard_of(its, use.guard);
      read(which, std::move(there));
      return element(which, its);
    });
    out.guard = conjunction(use.guard, inside);
    return out;
  }

  // A value that is not looked into: all that counts is which loops it depends on.
  static UOp element(const UOp& node, const Indices& at) {
    return at.empty() ? node : index(node, at);
  }

  UOp program_;
  ValueFacts facts_;
  int64_t next_range_ = 0;
  Reasons reasons_;
  std::vector<std::vector<Use>> uses_;  // by number
  absl::flat_hash_map<const Node*, Row> rows_;
  absl::flat_hash_map<const Node*, UOp> views_;       // movements, before they got memory
  absl::flat_hash_map<const Node*, PartRead> parts_;  // of values in memory
  absl::flat_hash_map<const Node*, Ints> orders_;     // of the axes of values in memory
};

}  // namespace

UOp decide(const UOp& program, int64_t row_bytes, const CompileOptions& how) {
  return Decider(program, row_bytes, how).run();
}

}  // namespace koine

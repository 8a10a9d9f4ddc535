#include "koine/lower/decide.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "koine/base/hash.hpp"
#include "koine/base/options.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/index.hpp"
#include "koine/lower/scan.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/rules/window.hpp"

namespace koine {
namespace {

// That a kernel reads a value: at which place, under which condition (null: always), inside of
// which loops, outermost first.
struct Use {
  const Node* kernel;
  Indices at;
  UOp guard;
  std::vector<UOp> loops;
  bool folded_on = false;  // by a running fold, which has one body
  bool in_window = false;  // by a sum over few places, which may go over what it sums as well
};

// For a look at how a value follows from positions: what is a leaf stands for itself.
class Leaves : public KernelReads {
 public:
  explicit Leaves(std::function<bool(const UOp&)> is_leaf) : is_leaf_(std::move(is_leaf)) {}
  bool is_read(const UOp& node) override { return is_leaf_(node); }
  UOp param_of(const UOp& node, DType dtype, const UOp& elements) override {
    const auto [it, fresh] =
        slots_.try_emplace({node.node(), dtype}, static_cast<int64_t>(slots_.size()));
    return param(it->second, stack(std::vector<UOp>{elements}), dtype);
  }
  void wait_for(const UOp&) override {}

 private:
  std::function<bool(const UOp&)> is_leaf_;
  absl::flat_hash_map<std::pair<const Node*, DType>, int64_t> slots_;
};

// The loops that a place depends on.
class Dependence {
 public:
  explicit Dependence(const Use& use) {
    for (const UOp& index : use.at) add(index);
    if (use.guard) add(use.guard);
  }
  bool on(const UOp& loop) const {
    return std::find(used_.begin(), used_.end(), loop.node()) != used_.end();
  }

 private:
  void add(const UOp& index) {
    used_.insert(used_.end(), index.ranges().begin(), index.ranges().end());
  }
  std::vector<const Node*> used_;
};

// The loops around what is computed at a place: those it depends on, and what these stand in.
std::vector<UOp> loops_around(const Use& use) {
  const Dependence place(use);
  std::vector<UOp> out = use.loops;
  while (!out.empty() && !place.on(out.back())) out.pop_back();
  return out;
}

// A value of which LOCAL memory holds a row at a time: the row's axes, and why.
struct Row {
  Ints axes;
  double bytes;
  std::string reason;
};

struct RowsHeld {
  int count = 0;
  double bytes = 0;
};
constexpr int most_rows = 8;  // of a kernel, whose code would grow without bound

// The loops that a value is read along at a place, where each goes over a whole axis and nothing
// else at this place depends on it; null for other axes.
std::vector<UOp> whole_axes(const UOp& value, const Use& use) {
  std::vector<UOp> out(value.rank());
  for (size_t i = 0; i < value.rank(); ++i) {
    const UOp& index = use.at[i];
    if (!index.is(Op::Range) || !(index.src(0) == value.dim(i))) continue;
    Use others = use;
    others.at[i] = index_const(0);
    if (!Dependence(others).on(index)) out[i] = index;
  }
  return out;
}

// What storing and loading an element costs, in operations on values that lie in registers.
constexpr double cost_of_memory = 32;

class Decider {
 public:
  Decider(const UOp& program, int64_t row_bytes)
      : program_(program), order_(toposort(program)), most_row_bytes_(row_bytes) {
    for (const UOp& u : order_) numbers_.add(u.node());
    uses_.resize(order_.size());
    consumers_.resize(order_.size());
    reads_memory_.resize(order_.size());
    picks_.resize(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) {
      for (const UOp& source : sources_outside_body(order_[i])) ++consumers_[number(source)];
      reads_memory_[i] = sees_memory(order_[i]);
      picks_[i] = tests_a_position(order_[i]);
    }
    for (const UOp& effect : program.src())
      if (effect.is(Op::Store)) hold(effect);
  }

  UOp run() {
    for (const uint32_t i : consumers_first()) visit(order_[i], std::move(uses_[i]));
    return transform_graph(program_, [&](const UOp& original, const UOp& node) {
      // Who asked for memory gets that which others read.
      if (original.is(Op::Contiguous) && original.tag() == 0 &&
          decided_.contains(original.src(0).node()))
        return node.src(0);
      if (const auto row = rows_.find(original.node()); row != rows_.end())
        return UOp::make(Op::Load, {node},
                         LoadArg{{}, AddrSpace::Local, row->second.axes, row->second.reason});
      const auto it = decided_.find(original.node());
      return it == decided_.end() ? node
                                  : UOp::make(Op::Contiguous, {node}, std::string(it->second));
    });
  }

 private:
  uint32_t number(const UOp& u) const { return numbers_.find(u.node()); }

  // Hashes that neither the order of operands nor the number of a Param changes.
  std::vector<uint64_t> contents() const {
    std::vector<uint64_t> out(order_.size());
    for (uint32_t i = 0; i < order_.size(); ++i) {
      const UOp& u = order_[i];
      const bool memory = u.is(Op::Param) && !is_variable(u), commutes = is_commutative(u.op());
      const auto op = static_cast<uint64_t>(u.op());
      uint64_t hash = hash_mix(op, memory ? static_cast<uint64_t>(u.dtype()) : arg_hash(u.arg()));
      uint64_t operands = 0;
      if (u.is(Op::Call)) hash = hash_mix(hash, u.src(0).hash());
      for (const UOp& s : sources_outside_body(u))
        operands =
            commutes ? operands + hash_mix(op, out[number(s)]) : hash_mix(operands, out[number(s)]);
      out[i] = hash_mix(hash, operands);
    }
    return out;
  }

  // By height, so that all consumers of a node come before it; equal heights by content.
  std::vector<uint32_t> consumers_first() const {
    const std::vector<uint64_t> content = contents();
    std::vector<uint32_t> height(order_.size()), out(order_.size());
    for (uint32_t i = 0; i < order_.size(); ++i)
      for (const UOp& s : sources_outside_body(order_[i]))
        height[i] = std::max(height[i], height[number(s)] + 1);
    std::iota(out.begin(), out.end(), 0u);
    std::sort(out.begin(), out.end(), [&](uint32_t a, uint32_t b) {
      if (height[a] != height[b]) return height[a] > height[b];
      return content[a] != content[b] ? content[a] < content[b]
                                      : order_[a].hash() < order_[b].hash();
    });
    return out;
  }

  // What is made of constants alone folds away.
  bool sees_memory(const UOp& u) const {
    if (u.is(Op::Param)) return !is_variable(u);
    if (u.is(Op::Buffer) || u.is(Op::After) || u.is(Op::Load) || u.is(Op::Call)) return true;
    return std::any_of(u.src().begin(), u.src().end(),
                       [&](const UOp& s) { return reads_memory_[number(s)]; });
  }

  // Whether a condition compares positions with numbers: the compiler makes a load, or a store, at
  // the one position out of what such a condition picks, so it is worth nothing in memory.
  bool tests_a_position(const UOp& u) const {
    if (u.dtype() != DType::Bool || !is_elementwise(u.op()) || u.src().size() != 2) return false;
    auto known = [&](const UOp& s) { return !reads_memory_[number(s)]; };
    auto is_position = [&](UOp s) {
      while (is_movement(s.op()) && !s.is(Op::Stack)) s = UOp(s.src(0));
      return known(s) && !s.is(Op::Const);
    };
    const UOp &a = u.src(0), &b = u.src(1);
    return picks_[number(a)] || picks_[number(b)] ||
           (u.is(Op::CmpNe) && known(a) != known(b) && (is_position(a) || is_position(b)));
  }

  // --- memory --------------------------------------------------------------------------------

  // An output holds its value for all who read that.
  void hold(const UOp& store) {
    const UOp value = stored_value(store);
    if (!value.is(Op::After) && !in_memory(value)) held_.emplace(value.node(), store.node());
  }
  bool in_memory(const UOp& node) const {
    for (const UOp* u = &node;; u = &u->src(0)) {
      if (u->is(Op::Param) || u->is(Op::Buffer) || is_call_result(*u) || held_.contains(u->node()))
        return true;
      if (decided_.contains(u->node()) || !shows_memory(u->op()))
        return decided_.contains(u->node());
    }
  }

  // --- the walk ------------------------------------------------------------------------------

  void visit(const UOp& u, std::vector<Use> uses) {
    if (u.is(Op::Sink)) return outputs();
    if (u.is(Op::After)) stores(u);
    if (const auto held = held_.find(u.node()); held != held_.end()) {
      std::erase_if(uses, [&](const Use& use) { return use.kernel != held->second; });
    } else if (in_memory(u)) {
      return;
    } else if (asks_for_buffer(u)) {
      uses = {open(u, u.node())};
    } else if (const std::string_view reason = reason_for(u, uses); !reason.empty()) {
      decided_.emplace(u.node(), reason);
      uses = {open(u, u.node())};
    } else if (auto row = row_of(u, uses)) {
      RowsHeld& rows = rows_held_[uses[0].kernel];
      ++rows.count;
      rows.bytes += row->bytes;
      uses = filled(u, row->axes, uses);
      rows_.emplace(u.node(), std::move(*row));
    } else if (goes_to_local(u)) {
      uses = filled(u, row_axes(u), uses);
    }
    for (const Use& use : uses) pass_on(u, use);
  }

  void outputs() {
    for (const UOp& effect : program_.src())
      if (effect.is(Op::Store)) {
        const UOp value = stored_value(effect);
        read(value, open(value, effect.node()));
      }
  }

  // The Stores of one dependency on one device are a kernel; those of one shape share its loops.
  void stores(const UOp& after) {
    for (const UOp& dependency : after.src().subspan(1)) {
      std::vector<std::pair<UOp, Use>> nests;
      for (const UOp& s : stores_in(dependency)) {
        auto same = std::find_if(nests.begin(), nests.end(), [&](const auto& nest) {
          return nest.first.src(1).shape() == s.src(1).shape() &&
                 nest.first.src(0).device() == s.src(0).device();
        });
        if (same == nests.end()) {
          const Node* kernel = s.node();
          for (const auto& [other, use] : nests)
            if (other.src(0).device() == s.src(0).device()) kernel = use.kernel;
          assigning_.insert(kernel);
          same = nests.insert(nests.end(), {s, open(s.src(1), kernel)});
        }
        store(s, same->second);
      }
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
    Use use{kernel, {}, {}, {}};
    use.at = open_loops(value, next_range_, use.loops);
    return use;
  }

  void read(const UOp& node, Use use) {
    if (node.is(Op::Const) || node.is(Op::Param) || node.is(Op::Buffer)) return;
    std::vector<Use>& known = uses_[number(node)];
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
    read(node,
         {use.kernel, aligned(node, use.at), use.guard, use.loops, use.folded_on, use.in_window});
  }
  void read_from_memory(const UOp& node, std::string_view reason) {
    if (!in_memory(node) && !asks_for_buffer(node)) wanted_.emplace(node.node(), reason);
  }

  // The sources of a node that is computed at a place are read at these.
  void pass_on(const UOp& u, const Use& use) {
    if (is_elementwise(u.op())) {
      Use its = use;
      its.in_window = its.in_window && u.is(Op::Where);
      for (const UOp& s : u.src()) read_broadcast(s, its);
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
      default:
        if (shows_memory(u.op())) return read(u.src(0), use);
        if (is_movement(u.op())) read(u.src(0), moved_to_source(u, use));
    }
  }

  static Use moved_to_source(const UOp& u, const Use& use) {
    UOp inside;
    Indices at = moved(u, use.at, inside);
    return {use.kernel, std::move(at), conjunction(use.guard, inside),
            use.loops,  use.folded_on, use.in_window};
  }

  void reduction(const UOp& u, const Use& use) {
    Use body{use.kernel, use.at, use.guard, loops_around(use), use.folded_on, false};
    if (const auto scan = scan_at(u, use)) {
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
    if (u.as<ReduceArg>().op == Op::Add) sum_where_picked(u.src(0), outer, body);
    read(u.src(0), std::move(body));
  }

  // Whether a value is 0 but at places that a condition picks.
  bool is_chosen_by_place(const UOp& value) const {
    if (!value.is(Op::Where) || !(is_const(value.src(1), 0) || is_const(value.src(2), 0)))
      return false;
    const uint32_t test = number(value.src(0));
    return picks_[test] || !reads_memory_[test];
  }
  // What a condition on positions picks is summed there alone: in few steps of a loop
  // (`reduce_rules`), or where it is stored (`find_scatter`). `outer`: loops around the sum.
  void sum_where_picked(UOp value, size_t outer, Use& body) {
    while (value.is(Op::Cast)) value = UOp(value.src(0));
    if (!is_chosen_by_place(value)) return;
    const UOp& test = value.src(0);
    const bool hit = is_const(value.src(2), 0);
    Leaves leaves([&](const UOp& n) {
      return reads_memory_[number(n)] && !is_elementwise(n.op()) && !is_movement(n.op());
    });
    Indexer indexer(leaves, next_range_);
    UOp condition = indexer.element(test, aligned(test, body.at));
    condition = rewrite(hit ? condition : logical_not(condition), kernel_rules());
    for (size_t i = outer; i < body.loops.size();) {
      const std::optional<Window> window = window_of(condition, body.loops[i]);
      if (window) condition = run_over(*window, i, body);
      body.in_window = body.in_window || window;
      i = window ? outer : i + 1;
    }
    for (size_t i = 0; i < outer; ++i)
      if (is_stored_where_picked(condition, body.loops[i], body.loops, outer)) {
        body.loops.erase(body.loops.begin() + static_cast<std::ptrdiff_t>(i));
        std::rotate(body.loops.begin(), body.loops.begin() + static_cast<std::ptrdiff_t>(outer - 1),
                    body.loops.end());
        return;
      }
  }

  // A loop of a sum runs over a window alone; gives what is left of the condition.
  UOp run_over(const Window& window, size_t i, Use& body) {
    const UOp whole = body.loops[i];
    UOp at = window.last;
    if (window.count == 1) {
      body.loops.erase(body.loops.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      body.loops[i] = range(next_range_++, index_const(window.count), AxisType::Reduce);
      at = simplify(add(sub(at, index_const(window.count - 1)), body.loops[i]));
    }
    const Substitution there{{whole, at}};
    for (UOp& index : body.at) index = simplify(substitute(index, there));
    return rewrite(substitute(window.rest, there), kernel_rules());
  }

  // Whether the elements of a sum say at which place along a loop around it they belong.
  static bool is_stored_where_picked(const UOp& condition, const UOp& loop,
                                     const std::vector<UOp>& loops, size_t outer) {
    UOp at;
    for (const UOp& part : conjuncts(condition)) {
      if (const UOp place = at ? UOp() : equal_to(part, loop))
        at = place;
      else if (depends_on(part, loop))
        return false;
    }
    return at && std::any_of(loops.begin() + static_cast<std::ptrdiff_t>(outer), loops.end(),
                             [&](const UOp& inner) { return depends_on(at, inner); });
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
    const UOp& which = use.at[0];
    const auto count = static_cast<int64_t>(u.src().size());
    Use rest{use.kernel, {use.at.begin() + 1, use.at.end()}, use.guard, use.loops, use.folded_on};
    for (int64_t k = 0; k < count; ++k) {
      if (which.is(Op::Const) && std::clamp<int64_t>(const_int(which), 0, count - 1) != k) continue;
      const UOp here = which.is(Op::Const) ? UOp() : simplify(eq(which, index_const(k)));
      rest.guard = conjunction(use.guard, here);
      read(u.src(static_cast<size_t>(k)), rest);
    }
  }

  // The place in the source of an Index: each index is a value of its own, read at a place.
  Use indexed(const UOp& u, const Use& use) {
    UOp inside;
    Indices at = koine::indexed(u, use.at, inside, [&](const UOp& which, const Indices& its) {
      read(which, {use.kernel, its, use.guard, use.loops, use.folded_on});
      return element(which, its);
    });
    return {use.kernel, std::move(at), conjunction(use.guard, inside), use.loops, use.folded_on};
  }

  // A value that is not looked into: all that counts is which loops it depends on.
  static UOp element(const UOp& node, const Indices& at) {
    return at.empty() ? node : index(node, at);
  }

  // --- decisions -----------------------------------------------------------------------------

  // Why a node gets memory of its own; empty: it does not.
  std::string_view reason_for(const UOp& u, const std::vector<Use>& uses) {
    if (const auto wanted = wanted_.find(u.node()); wanted != wanted_.end()) return wanted->second;
    if (!is_elementwise(u.op()) && !u.is(Op::Reduce)) return {};
    if (uses.empty() || !reads_memory_[number(u)]) return {};  // a shape, or a constant
    if (u.is(Op::Reduce))
      if (const std::string_view reason = broken_fold(u, uses); !reason.empty()) return reason;
    if (picks_[number(u)]) return {};
    const bool several = std::any_of(uses.begin(), uses.end(),
                                     [&](const Use& use) { return use.kernel != uses[0].kernel; });
    if (several && (u.is(Op::Reduce) || cost_between_folds(u) >= 4))
      return "several kernels read it";
    // What is folded twice may be rounded in two ways.
    if (u.is(Op::Reduce) && uses.size() > 1) return "a reduce read at several places";
    for (const Use& use : uses) {
      if (is_large_product(u, use) &&
          products_.try_emplace(use.kernel, u.node()).first->second != u.node())
        return "a product beside another";
      if (data_decides(use) && (u.is(Op::Reduce) || is_read_more_often_than_held(u, use)))
        return "read at places that data decides";
      if (const std::string_view reason = repeated(u, use); !reason.empty()) return reason;
    }
    if (several) return {};
    if (row_of(u, uses)) {
      const auto held = rows_held_.find(uses[0].kernel);
      if (held != rows_held_.end() && held->second.count == most_rows)
        return "its kernel holds rows enough";
    } else if (is_computed_too_often(u, uses)) {
      return "computed for more elements than it has";
    }
    return grown(u, uses[0].kernel);
  }

  // --- rows -----------------------------------------------------------------------------------

  // Whether a value is computed once for each row of it, in LOCAL memory: several loops of one
  // kernel walk over whole rows, inside of the loops that all of these places agree on.
  std::optional<Row> row_of(const UOp& u, const std::vector<Use>& uses) {
    if (uses.size() < 2 || !is_elementwise(u.op()) || !reads_memory_[number(u)] ||
        is_chosen_by_place(u) || picks_[number(u)])
      return std::nullopt;
    const Use& first = uses[0];
    if (running_.contains(first.kernel) || cost_between_folds(u) < 1) return std::nullopt;
    Row out{{}, static_cast<double>(item_size(u.dtype())), {}};
    for (size_t i = 0; i < u.rank(); ++i)
      if (std::any_of(uses.begin(), uses.end(),
                      [&](const Use& use) { return !(use.at[i] == first.at[i]); }))
        out.axes.push_back(static_cast<int64_t>(i));
    absl::flat_hash_set<const Node*> walked;
    for (const Use& use : uses)
      if (!(use.kernel == first.kernel && use.guard == first.guard) || use.folded_on ||
          !walks_rows(u, use, out.axes, walked))
        return std::nullopt;
    for (const int64_t axis : out.axes) out.bytes *= largest(u.dim(static_cast<size_t>(axis)));
    const auto held = rows_held_.find(first.kernel);
    const double used = held == rows_held_.end() ? 0 : held->second.bytes;
    if (used + out.bytes > static_cast<double>(most_row_bytes_)) return std::nullopt;
    out.reason = fmt::format("a row is read by {} loops", uses.size());
    return out;
  }
  // Whether a place goes along these axes by loops of its own, inside of all others it depends on.
  bool walks_rows(const UOp& u, const Use& use, const Ints& axes,
                  absl::flat_hash_set<const Node*>& walked) const {
    const std::vector<UOp> whole = whole_axes(u, use);
    const size_t outer = loops_around(start_of_row(axes, use)).size();
    for (const int64_t axis : axes) {
      const UOp& along = whole[static_cast<size_t>(axis)];
      if (!along || !walked.insert(along.node()).second) return false;
      const auto at = std::find(use.loops.begin(), use.loops.end(), along);
      if (at == use.loops.end() || static_cast<size_t>(at - use.loops.begin()) < outer)
        return false;
    }
    return true;
  }
  static Use start_of_row(const Ints& axes, Use use) {
    for (const int64_t axis : axes) use.at[static_cast<size_t>(axis)] = index_const(0);
    return use;
  }
  // Where rows are computed: once for all places that agree on where a row begins. By loops of a
  // fold: what is folded inside of them has no register tile there.
  std::vector<Use> filled(const UOp& u, const Ints& axes, const std::vector<Use>& uses) {
    std::vector<Use> out, starts;
    for (const Use& use : uses) {
      Use start = start_of_row(axes, use);
      if (std::any_of(starts.begin(), starts.end(), [&](const Use& other) {
            return other.kernel == start.kernel && other.at == start.at;
          }))
        continue;
      starts.push_back(start);
      start.loops = loops_around(start);
      for (const int64_t axis : axes) {
        const auto i = static_cast<size_t>(axis);
        if (is_const(u.dim(i), 1)) continue;
        start.at[i] = range(next_range_++, u.dim(i), AxisType::Reduce);
        start.loops.push_back(start.at[i]);
      }
      out.push_back(std::move(start));
    }
    return out;
  }

  // --- running folds --------------------------------------------------------------------------

  static size_t folded_axis(const UOp& reduce) {
    for (const int64_t axis : reduce.as<ReduceArg>().axes)
      if (!is_const(reduce.src(0).dim(static_cast<size_t>(axis)), 1))
        return static_cast<size_t>(axis);
    return 0;
  }

  // Whether an op moves values, or chooses between them.
  static bool only_chooses(const UOp& u) {
    return is_movement(u.op()) || u.is(Op::Where) || u.is(Op::Cast);
  }

  // Whether a Reduce folds along one axis, elements that a condition on places chooses.
  bool may_be_scan(const UOp& u) const {
    int folded = 0;
    for (const int64_t axis : u.as<ReduceArg>().axes)
      folded += is_const(u.src(0).dim(static_cast<size_t>(axis)), 1) ? 0 : 1;
    if (folded != 1) return false;
    UOp value = u.src(0);
    for (int depth = 0; depth < 32; ++depth) {
      if (value.is(Op::Pad)) return true;
      if (value.is(Op::Where)) return !reads_memory_[number(value.src(0))];
      if (!only_chooses(value) || value.is(Op::Stack)) return false;
      value = UOp(value.src(0));
    }
    return false;
  }

  // How a Reduce that is read at a place is a running fold there.
  std::optional<Scan> scan_at(const UOp& u, const Use& use) const {
    if (use.folded_on || assigning_.contains(use.kernel) || !may_be_scan(u)) return std::nullopt;
    for (const UOp& loop : use.loops)
      if (loop.as<RangeArg>().type != AxisType::Loop) return std::nullopt;
    Leaves leaves(
        [&](const UOp& n) { return !(n == u) && !only_chooses(n) && reads_memory_[number(n)]; });
    return find_scan(Indexer(leaves).element(u, use.at), use.loops);
  }

  // A running fold goes on along the loop of its kernel, and of no second one.
  std::string_view broken_fold(const UOp& u, const std::vector<Use>& uses) {
    const Use& use = uses[0];
    if (use.folded_on) return "read by a running fold";
    const auto scan = scan_at(u, use);
    if (scan) {
      const Dependence place(use);
      for (const UOp& loop : use.loops)
        if (!place.on(loop)) return "a running fold under a loop it does not depend on";
      if (rows_held_.contains(use.kernel)) return "a running fold beside a row";
      const auto along = std::make_pair(scan->loop.node(), scan->down);
      return running_.try_emplace(use.kernel, along).first->second == along
                 ? std::string_view()
                 : "a running fold beside another";
    }
    if (!may_be_scan(u)) return {};
    int64_t first_range = 0;
    Use alone{u.node(), {}, {}, {}};
    alone.at = open_loops(u, first_range, alone.loops);
    return scan_at(u, alone) ? "a running fold read elsewhere" : std::string_view();
  }

  // A long chain goes on in another kernel.
  std::string_view grown(const UOp& u, const Node* kernel) {
    size_t& operations = operations_[kernel];
    if (!is_elementwise(u.op()) || ++operations <= most_fused_operations) return {};
    operations = 0;
    return "its kernel is large enough";
  }

  // A sum of products of two values, each with a loop that the other lacks: it wants a register
  // tile of its own.
  bool is_large_product(const UOp& u, const Use& use) const {
    if (!u.is(Op::Reduce) || u.as<ReduceArg>().op != Op::Add || !is_float(u.dtype())) return false;
    UOp body = u.src(0);
    while (body.is(Op::Cast)) body = UOp(body.src(0));
    double work = reduced_size(u);
    for (const UOp& loop : loops_around(use)) work *= largest(loop.src(0));
    if (!body.is(Op::Mul) || work < 1 << 15) return false;
    const Use place{use.kernel, use.at, {}, use.loops};
    const Dependence left = source_loops(body.src(0), place),
                     right = source_loops(body.src(1), place);
    bool own[2] = {false, false};
    for (const UOp& loop : use.loops) {
      own[0] = own[0] || (left.on(loop) && !right.on(loop));
      own[1] = own[1] || (right.on(loop) && !left.on(loop));
    }
    return own[0] && own[1];
  }
  // The loops that what lies below the movement of a value depends on; folded axes stand at 0.
  static Dependence source_loops(UOp node, Use use) {
    use.at = aligned(node, use.at);
    while (is_movement(node.op()) && !node.is(Op::Stack) && !node.is(Op::Bitcast) &&
           !node.is(Op::Index)) {
      use = moved_to_source(node, use);
      node = UOp(node.src(0));
    }
    use.guard = {};
    return Dependence(use);
  }

  static bool data_decides(const Use& use) {
    return std::any_of(use.at.begin(), use.at.end(), [](const UOp& index) {
      constexpr OpMask memory = mask_of(Op::Param) | mask_of(Op::Buffer);
      if ((index.node()->ops_below & memory) == 0) return false;
      const NodeList below = toposort(index);
      return std::any_of(below.begin(), below.end(), [](const UOp& u) {
        return u.is(Op::Buffer) || (u.is(Op::Param) && !is_variable(u));
      });
    });
  }
  static double held(const UOp& u) {
    double out = 1;
    for (size_t i = 0; i < u.rank(); ++i) out *= largest(u.dim(i));
    return out;
  }
  // How often an element is computed at a place, there or not.
  static double reads(const Use& use) {
    double out = 1;
    for (const UOp& loop : loops_around(use)) out *= largest(loop.src(0));
    return out;
  }
  static bool is_read_more_often_than_held(const UOp& u, const Use& use) {
    return reads(use) > held(u) && element_cost(u, nullptr) >= 4;
  }

  // Whether the sum that reads a sum goes over its elements too, each about once: one loop nest,
  // with one register tile, and no memory in between.
  static bool is_summed_on(const UOp& u, const Use& use) {
    const bool exact = options().strict && is_float(u.dtype());
    return use.in_window && u.as<ReduceArg>().op == Op::Add && !exact &&
           reads(use) <= 1.5 * held(u);
  }

  // Of an element, without what is decided by itself (folds), is the same for many elements, or
  // folds away.
  double cost_between_folds(const UOp& u, const UOp& without = {}) const {
    const double elements = held(u);
    return element_cost(u, [&](const UOp& n) {
      return n == without || n.is(Op::Reduce) || !reads_memory_[number(n)] || held(n) < elements ||
             in_memory(n);
    });
  }

  // Whether the places of a kernel compute so much more than all elements once (those that overlap,
  // those where a condition wants it in part of the loops only) that memory is cheaper.
  bool is_computed_too_often(const UOp& u, const std::vector<Use>& uses) const {
    double surplus = -held(u);
    for (const Use& use : uses) surplus += reads(use);
    if (surplus <= 0) return false;
    surplus /= std::max(1.0, held(u));
    const double repeated = surplus * cost_between_folds(u);
    // A fold beside a condition, or among others, loses its register tile as well.
    if (u.is(Op::Reduce)) return surplus > 0.05 && repeated > 4 && !is_summed_on(u, uses[0]);
    return repeated > cost_of_memory && !is_dear_below(u, surplus);
  }
  // Whether most of what a value costs lies in one below that others read too: that one gets
  // memory, and the rest is computed again.
  bool is_dear_below(const UOp& u, double surplus) const {
    std::vector<UOp> pending{u};
    for (size_t seen = 0; !pending.empty() && seen < 64; ++seen) {
      const UOp node = pending.back();
      pending.pop_back();
      for (const UOp& s : node.src()) {
        if (!is_elementwise(s.op()) || !reads_memory_[number(s)] || in_memory(s)) continue;
        if (cost_between_folds(u, s) * surplus > cost_of_memory) continue;
        if (consumers_[number(s)] > 1 && cost_between_folds(s) * surplus > cost_of_memory)
          return true;
        pending.push_back(s);
      }
    }
    return false;
  }

  // Whether computing a node at a place repeats work: loops it does not depend on stand around it.
  std::string_view repeated(const UOp& u, const Use& use) const {
    const Dependence place(use);
    const size_t around = loops_around(use).size();
    double iterations = 1, distinct = 1, repeats = 1;
    bool in_reduce = false;
    for (size_t i = 0; i < use.loops.size(); ++i) {
      const double size = largest(use.loops[i].src(0));
      iterations *= size;
      if (place.on(use.loops[i])) {
        distinct *= size;
        in_reduce = in_reduce || use.loops[i].as<RangeArg>().type == AxisType::Reduce;
      } else if (i < around) {
        repeats *= size;
      }
    }
    if (u.is(Op::Reduce) && in_reduce && iterations * reduced_size(u) > 4096 &&
        !is_summed_on(u, use))
      return "a reduce of reduces";
    if (distinct == iterations) return {};
    const double cost = element_cost(u, [&](const UOp& n) { return in_memory(n); });
    if (repeats > 1 && cost * distinct * (repeats - 1) > 0.25 * iterations)
      return "read under a loop it does not depend on";
    // Nothing is repeated (the loops it lacks are inside): but a reduce for few rows would leave
    // one thread with all of its work.
    if (cost >= 32 && distinct < 8 && cost * distinct > 8192)
      return "a long reduce for few results";
    return {};
  }

  UOp program_;
  NodeList order_;
  NodeNumbers numbers_;
  std::vector<std::vector<Use>> uses_;                      // by number
  std::vector<uint32_t> consumers_;                         // by number
  std::vector<bool> reads_memory_;                          // by number
  std::vector<bool> picks_;                                 // by number
  absl::flat_hash_map<const Node*, const Node*> held_;      // output value -> its Store
  absl::flat_hash_map<const Node*, size_t> operations_;     // kernel -> how many it has
  absl::flat_hash_map<const Node*, const Node*> products_;  // kernel -> the one it holds
  absl::flat_hash_map<const Node*, std::pair<const Node*, bool>> running_;  // kernel -> the loop
  absl::flat_hash_set<const Node*> assigning_;                  // kernels of assignments
  absl::flat_hash_map<const Node*, std::string_view> wanted_;   // read as memory, and why
  absl::flat_hash_map<const Node*, std::string_view> decided_;  // and why
  absl::flat_hash_map<const Node*, Row> rows_;
  absl::flat_hash_map<const Node*, RowsHeld> rows_held_;  // by kernel
  int64_t most_row_bytes_;
  int64_t next_range_ = 0;
};

}  // namespace

UOp decide(const UOp& program, int64_t row_bytes) { return Decider(program, row_bytes).run(); }

}  // namespace koine

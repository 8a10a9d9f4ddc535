#include "koine/lower/rangeify.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <deque>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"
#include "koine/base/options.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/fusion.hpp"
#include "koine/lower/order.hpp"
#include "koine/lower/scatter.hpp"
#include "koine/lower/sum_tree.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// What a tensor node reads as at one place: a scalar, and when it is valid (null: always).
struct Element {
  UOp value;
  UOp valid;
};

// A node, the place it is read at, and the condition under which the place exists (null: always).
struct Place {
  UOp node;
  Indices at;
  UOp guard;
  bool operator==(const Place&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const Place& p) {
    state = H::combine(std::move(state), p.node.node(), p.guard.node());
    for (const UOp& i : p.at) state = H::combine(std::move(state), i.node());
    return state;
  }
};

// A Store of a program: into a Buffer or Param, or a view of one.
struct Effect {
  UOp target;
  UOp value;
  UOp gate;  // null: always
};

// What a kernel is asked for: one plain result, or the Stores of one dependency of an After.
struct Request {
  std::vector<Effect> effects;
  UOp after;  // whose Stores these are; null for a plain result
  std::string reason;
  bool transfer;  // a copy between devices
};

constexpr int64_t most_local = 256 << 10;  // bytes of a LOCAL buffer

class Scheduler {
 public:
  // `to_copy`: versions that are read from a copy, because they are overwritten too early.
  Scheduler(const UOp& program, const absl::flat_hash_set<const Node*>& to_copy)
      : program_(program), fusion_(program), versions_(program), to_copy_(to_copy) {}

  /// The kernels, or, where no order of them exists, further versions to copy.
  std::vector<UOp> run(std::vector<Kernel>& out) {
    for (const UOp& effect : program_.src()) output(effect);
    std::vector<Footprint> footprints;
    while (!queue_.empty()) {
      Request request = std::move(queue_.front());
      queue_.pop_front();
      std::erase_if(request.effects, [](const Effect& e) {  // nothing to compute
        return is_const(product(e.value.shape()), 0);
      });
      if (request.effects.empty()) continue;
      kernels_.push_back(make_kernel(request));
      footprints.push_back(footprint_of(kernels_.back()));
    }
    const KernelOrder order = order_kernels(footprints, versions_);
    if (order.to_copy.empty()) out = in_order(order);
    return order.to_copy;
  }

 private:
  struct Pending {
    Kernel kernel;
    Request request;
    std::vector<UOp> reads;  // Params, Buffers, Afters
  };

  // --- storage -------------------------------------------------------------------------------

  // The Param or Buffer that holds a node, looking through Afters; null when it has none yet.
  UOp storage_of(const UOp& node) const {
    const Node* n = node.node();
    while (true) {
      if (const auto it = realized_.find(n); it != realized_.end()) return it->second;
      if (n->op == Op::Param || n->op == Op::Buffer) return UOp::share(n);
      const bool passes = n->op == Op::After || n->op == Op::Contiguous || n->op == Op::Detach ||
                          n->op == Op::ContiguousBackward;
      if (!passes) return {};
      n = n->sources()[0].node();
    }
  }

  static bool is_marker(const UOp& u) {
    return u.is(Op::Contiguous) || u.is(Op::Detach) || u.is(Op::ContiguousBackward);
  }

  void output(const UOp& effect) {
    if (effect.is(Op::After)) {
      require_effects(effect);
      return;
    }
    KOINE_INVARIANT(effect.is(Op::Store), "a program holds Stores and Afters, got {}",
                    op_name(effect.op()));
    UOp value = effect.src(1);
    while (is_marker(value)) value = value.src(0);
    const UOp& target = effect.src(0);
    queue_.push_back({{{target, value, {}}}, {}, "output", is_transfer(value)});
    // Memory holds 0 where an element is invalid: it stands for the value only behind a marker that
    // asked for memory.
    const UOp& held = fusion_.partly_invalid(value) ? effect.src(1) : value;
    if (!fusion_.partly_invalid(held) && !held.is(Op::After) && !storage_of(held))
      realized_.emplace(held.node(), target);
  }

  // The Stores of an After and of what it waits for are kernels from here on.
  void require_effects(const UOp& root) {
    std::vector<UOp> pending{root};
    while (!pending.empty()) {
      const UOp after = pending.back();
      pending.pop_back();
      if (!after.is(Op::After) || !started_.insert(after.node()).second) continue;
      for (const UOp& dependency : after.src().subspan(1)) {
        enqueue_stores(after, stores_in(dependency));
        for (const UOp& further : afters_in(dependency)) pending.push_back(further);
      }
      pending.push_back(after.src(0));
    }
  }

  // One kernel for each device that these Stores write on.
  void enqueue_stores(const UOp& after, const std::vector<UOp>& stores) {
    absl::flat_hash_set<const Node*> written;
    for (const UOp& s : stores) written.insert(storage_of(versions_.of(s.src(0))).node());
    std::vector<Request> requests;
    for (const UOp& s : stores) {
      auto same = std::find_if(requests.begin(), requests.end(), [&](const Request& r) {
        return r.effects[0].target.device() == s.src(0).device();
      });
      if (same == requests.end())
        same = requests.insert(same, Request{{}, after, "assignment", false});
      same->effects.push_back(before_writing(s, written));
    }
    for (Request& r : requests) queue_.push_back(std::move(r));
  }

  // All that a Store reads is read before anything is written (row B20): what reads a buffer that
  // is written beside it is computed elsewhere first.
  Effect before_writing(const UOp& s, const absl::flat_hash_set<const Node*>& written) {
    auto reads = [&](const UOp& value) {
      if (const UOp held = storage_of(value)) return written.contains(held.node());
      bool found = false;
      toposort(value, [&](const UOp& u) {
        found = found || written.contains(u.node());
        return !found;
      });
      return found;
    };
    auto settled = [&](const UOp& value) { return reads(value) ? snapshot(value) : value; };
    Effect out{s.src(0), s.src(1), s.src().size() == 3 ? settled(s.src(2)) : UOp()};
    if (reads(out.value)) {
      if (const UOp bad = invalid_elements(out.value)) {  // these are not stored
        const UOp good = logical_not(snapshot(bad));
        out.gate = out.gate ? bit_and(out.gate, good) : good;
      }
      out.value = snapshot(out.value);
    }
    std::vector<UOp> chain;  // the view, with its indices settled
    for (UOp view = out.target; is_movement(view.op()); view = view.src(0)) chain.push_back(view);
    bool changed = false;
    if (!chain.empty()) out.target = chain.back().src(0);
    for (; !chain.empty(); chain.pop_back()) {
      std::vector<UOp> src(chain.back().src().begin(), chain.back().src().end());
      src[0] = out.target;
      for (size_t k = 1; chain.back().is(Op::Index) && k < src.size(); ++k) {
        src[k] = settled(src[k]);
        changed = changed || !(src[k] == chain.back().src(k));
      }
      out.target = changed ? with_sources(chain.back(), src) : chain.back();
    }
    return out;
  }

  // The value as it is before this program writes what it reads.
  UOp snapshot(const UOp& value) {
    const UOp copy = UOp::make(Op::Contiguous, {value}, {}, 1);  // tagged: it really copies
    (void)make_buffer(copy, value, "computed before it is overwritten");
    return copy;
  }

  // A buffer for `held`, whose elements are those of `value`.
  UOp make_buffer(const UOp& held, const UOp& value, std::string reason) {
    auto [it, fresh] = realized_.try_emplace(held.node());
    if (!fresh) return it->second;
    const UOp buffer = UOp::make(Op::Buffer, {held.shape()},
                                 BufferArg{next_buffer_++, held.dtype(), held.device()});
    it->second = buffer;
    kept_.push_back(held);
    queue_.push_back({{{buffer, value, {}}}, {}, std::move(reason), is_transfer(value)});
    return buffer;
  }

  UOp realize(const UOp& node, std::string reason) {
    if (const UOp known = storage_of(node)) return known;
    // Memory does not hold what may be invalid: it stands for a copy of the value.
    return make_buffer(fusion_.partly_invalid(node) ? contiguous(node) : node, node,
                       std::move(reason));
  }

  static bool is_gated(const UOp& load) { return load.src().size() == 3; }
  static bool is_transfer(const UOp& u) {
    return u.is(Op::Load) && !is_gated(u) && !goes_to_local(u);
  }

  // --- one kernel ----------------------------------------------------------------------------

  Pending make_kernel(const Request& request) {
    current_ = {};
    current_.request = request;
    current_.kernel.reason = request.reason;
    memo_.clear();
    reduce_ranges_.clear();
    next_range_ = 0;
    slots_.clear();
    locals_.clear();
    if (request.transfer) return make_transfer(request);
    const UOp ast = rewrite(sink(make_nests(request)), kernel_rules());
    current_.kernel.ast = rewrite(without_promises(ast), kernel_rules());
    if (const auto scatter = find_scatter(current_.kernel.ast)) {
      const Op op = scatter->reduce.as<ReduceArg>().op;
      if (request.effects.size() == 1 && is_plain_store_of(current_.kernel.ast, scatter->reduce)) {
        current_.kernel.ast =
            rewrite(scatter_kernel(current_.kernel.ast, *scatter), kernel_rules());
      } else {
        bool found = false;
        for (const Effect& e : request.effects) found = realize_reduces(e.value, op) || found;
        if (found) return make_kernel(Request(request));  // the fold has a kernel now: start again
      }
    }
    if (!options().strict) current_.kernel.ast = fold_in_float32(current_.kernel.ast);
    return std::move(current_);
  }

  // Stores of equal shape into different buffers share their loops; others follow each other.
  std::vector<UOp> make_nests(const Request& request) {
    absl::flat_hash_set<const Node*> written;
    bool together = true;
    for (const Effect& e : request.effects)
      together = together && e.value.shape() == request.effects[0].value.shape() &&
                 written.insert(base_of(e.target).node()).second;
    std::vector<UOp> nests, stores, ranges;
    Indices at;
    for (const Effect& e : request.effects) {
      if (!together || stores.empty()) at = open_loops(e.value, ranges);
      const UOp stored = make_store(request, e, at, ranges, nests);
      stores.push_back(stored);
      if (!together) nests.push_back(closed(stored, ranges, {&e, 1}));
    }
    if (together)
      nests.push_back(
          closed(stores.size() == 1 ? stores[0] : group(stores), ranges, request.effects));
    return nests;
  }

  static UOp closed(const UOp& body, const std::vector<UOp>& ranges,
                    std::span<const Effect> effects) {
    const UOp nest = end(body, ranges);
    if (ranges.empty() || std::none_of(effects.begin(), effects.end(), may_meet)) return nest;
    return UOp::make(Op::End, nest.src(), {}, runs_in_order);
  }

  // Whether two elements of a Store may go to one place.
  static bool may_meet(const Effect& effect) {
    for (UOp view = effect.target; is_movement(view.op()); view = view.src(0))
      if (view.is(Op::Index) || view.is(Op::Expand)) return true;
    return false;
  }

  Indices open_loops(const UOp& value, std::vector<UOp>& ranges) {
    Indices at;
    ranges.clear();
    for (size_t i = 0; i < value.rank(); ++i) {
      const UOp size = value.dim(i);
      if (is_const(size, 1)) {
        at.push_back(index_const(0));
        continue;
      }
      ranges.push_back(range(next_range_++, size, AxisType::Loop));
      at.push_back(ranges.back());
    }
    return at;
  }

  // `earlier`: the closed loops of this kernel that may have written the same buffer.
  UOp make_store(const Request& request, const Effect& effect, const Indices& at,
                 const std::vector<UOp>& ranges, const std::vector<UOp>& earlier) {
    UOp gate;
    UOp address = request.after ? target_address(effect.target, at, gate)
                                : kernel_address(effect.target, effect.target.dtype(), at,
                                                 effect.target.shape());
    if (!earlier.empty())
      address =
          with_sources(address, std::vector<UOp>{after(address.src(0), earlier), address.src(1)});
    if (effect.gate) {  // an invalid gate is closed
      const Element open = lower({effect.gate, aligned(effect.gate, at), {}}, ranges);
      gate = conjunction(conjunction(gate, open.valid), open.value);
    }
    const Element element = lower({effect.value, at, {}}, ranges);
    // An assignment skips invalid elements; in fresh memory they become 0 (amendment C27).
    UOp value = element.value;
    if (request.after)
      gate = conjunction(gate, element.valid);
    else if (!is_true(element.valid))
      value = where(element.valid, value, constant_int(value.dtype(), 0));
    return is_true(gate) ? store(address, value) : store(address, value, gate);
  }

  static bool is_plain_store_of(const UOp& ast, const UOp& reduce) {
    for (const UOp& u : toposort(ast))
      if (u.is(Op::Store)) return u.src(1) == reduce && u.src().size() == 2;
    return false;
  }

  // Gives the folds below a value buffers of their own; false when there is none that lacks one.
  bool realize_reduces(const UOp& value, Op op) {
    std::vector<UOp> found;
    toposort(value, [&](const UOp& u) {
      if (!(u == value) && storage_of(u)) return false;
      if (u == value || !u.is(Op::Reduce)) return true;
      if (u.as<ReduceArg>().op == op) found.push_back(u);
      return false;
    });
    for (const UOp& u : found) realize(u, "a fold by index");
    return !found.empty();
  }

  // A copy between devices: the runtime moves the bytes, no kernel is compiled.
  Pending make_transfer(const Request& request) {
    const UOp source = read(request.effects[0].value.src(0), "read on another device");
    current_.kernel.ast = UOp::make(Op::CustomFunction, {}, std::string("copy"));
    current_.kernel.buffers = {request.effects[0].target, source};
    current_.kernel.reason = "copy between devices";
    return std::move(current_);
  }

  // Index(Param slot of this kernel, flat place). A buffer that is read with two dtypes (a Bitcast
  // to another item size) has a slot for each: a Param says one dtype.
  UOp kernel_address(const UOp& storage, DType dtype, const Indices& at, const UOp& shape) {
    return index(kernel_param(storage, dtype, product(shape)), {flat_index(shape, at)});
  }

  UOp kernel_param(const UOp& storage, DType dtype, const UOp& elements) {
    auto [it, fresh] =
        slots_.try_emplace({storage.node(), dtype}, static_cast<int64_t>(slots_.size()));
    if (fresh) current_.kernel.buffers.push_back(storage);
    return param(it->second, stack(std::vector<UOp>{elements}), dtype);
  }

  // The buffer of which a Store's target is a view.
  UOp base_of(const UOp& target) const {
    UOp view = target;
    while (is_movement(view.op())) view = view.src(0);
    return storage_of(view);
  }

  // The address of a Store into a view: the place is pushed down to the base.
  UOp target_address(UOp view, Indices at, UOp& gate) {
    while (is_movement(view.op())) {
      UOp inside;
      if (view.is(Op::Index)) {
        at = index_places({view, at, {}}, inside, [&](const UOp& which, const Indices& where_at) {
          return lower({which, where_at, {}}, {});
        });
      } else {
        at = moved(view, at, inside);
      }
      gate = conjunction(gate, inside);
      view = view.src(0);
    }
    return kernel_address(storage_of(view), view.dtype(), at, view.shape());
  }

  // --- lowering values -----------------------------------------------------------------------

  // Explicit stack: chains of hundreds of thousands of nodes are legal.
  Element lower(const Place& root, const std::vector<UOp>& loops) {
    struct Frame {
      Place place;
      std::vector<UOp> context;
    };
    std::vector<Frame> stack{{root, loops}};
    while (!stack.empty()) {
      const Frame frame = stack.back();
      if (memo_.contains(frame.place)) {
        stack.pop_back();
        continue;
      }
      missing_.clear();
      const Element element = build(frame.place, frame.context);
      if (missing_.empty()) {
        memo_.emplace(frame.place, element);
        stack.pop_back();
        continue;
      }
      for (size_t i = missing_.size(); i-- > 0;)  // the first source is made first
        stack.push_back({missing_[i].first, missing_[i].second});
    }
    return memo_.at(root);
  }

  // The element of a source, or a request for it; then `missing_` is not empty and the caller's
  // result is thrown away.
  Element need(Place place, const std::vector<UOp>& context) {
    if (const auto it = memo_.find(place); it != memo_.end()) return it->second;
    missing_.emplace_back(std::move(place), context);
    return {};
  }

  Element build(const Place& place, const std::vector<UOp>& context) {
    const UOp& node = place.node;
    if (node.is(Op::Const)) {
      if (is_invalid(node)) return {constant_int(node.dtype(), 0), constant_bool(false)};
      return {node, {}};
    }
    if (node.is(Op::Param) && !node.as<BufferArg>().name.empty()) return {node, {}};
    if (!is_current_result(node)) {
      if (storage_of(node)) return {load_element(place, ""), {}};
      if (const char* reason = fusion_.must_realize(node)) return {load_element(place, reason), {}};
      if (const char* reason =
              fusion_.repeats_work(node, place.at, place.guard, context,
                                   [&](const UOp& n) { return bool(storage_of(n)); }))
        return {load_element(place, reason), {}};
    }
    if (is_elementwise(node.op())) return elementwise(place, context);
    switch (node.op()) {
      case Op::Reduce:
        return reduction(place, context);
      case Op::Load:
        return goes_to_local(node) ? local(place) : gated(place, context);
      case Op::After:  // of a value that is not in memory
        require_effects(node);
        current_.reads.push_back(node);
        return need({node.src(0), place.at, place.guard}, context);
      case Op::Contiguous:
      case Op::ContiguousBackward:
      case Op::Detach:
        return need({node.src(0), place.at, place.guard}, context);
      case Op::Assume: {
        const Element e = need({node.src(0), place.at, place.guard}, context);
        if (!missing_.empty()) return {};
        return {UOp::make(Op::Assume, {e.value, node.src(1), node.src(2)}), e.valid};
      }
      case Op::Stack:
        return stacked(place, context);
      case Op::Bitcast:
        return bitcasted(place, context);
      case Op::Pad:
        return padded(place, context);
      case Op::Index:
        return indexed(place, context);
      default:
        break;
    }
    if (is_movement(node.op())) {
      UOp inside;
      const Indices at = moved(node, place.at, inside);
      return need({node.src(0), at, place.guard}, context);
    }
    internal_error("rangeify does not know {}:\n{}", op_name(node.op()), to_text(node));
  }

  bool is_current_result(const UOp& node) const {
    const Request& request = current_.request;
    return !request.after && node == request.effects[0].value && !node.is(Op::Param) &&
           !node.is(Op::Buffer) && !node.is(Op::After) && realized_.contains(node.node()) &&
           realized_.at(node.node()) == request.effects[0].target;
  }

  // Where this kernel reads a node that is in memory, or is put there for `reason`.
  UOp read(const UOp& node, std::string_view reason) {
    if (!storage_of(node)) {
      current_.reads.push_back(realize(node, std::string(reason)));
      return current_.reads.back();
    }
    const Node* n = node.node();
    while (!realized_.contains(n) && is_marker(Borrowed(n))) n = n->sources()[0].node();
    if (const auto it = realized_.find(n); it != realized_.end()) {
      current_.reads.push_back(it->second);
      return it->second;
    }
    const UOp state = UOp::share(n), version = versions_.of(state);
    require_effects(state);
    // What is overwritten before all its readers have run is read from a copy, but by the kernel
    // that fills it.
    if (to_copy_.contains(version.node())) {
      const UOp copy = make_buffer(UOp::make(Op::Contiguous, {version}, {}, 1), version,
                                   "old state of an assigned buffer");
      if (!(copy == current_.request.effects[0].target)) {
        current_.reads.push_back(copy);
        return copy;
      }
    }
    current_.reads.push_back(state);
    return storage_of(state);
  }

  UOp load_element(const Place& place, std::string_view reason) {
    const UOp& node = place.node;
    const UOp address = kernel_address(read(node, reason), node.dtype(), place.at, node.shape());
    if (is_true(place.guard)) return load(address);
    return load(address, constant_int(node.dtype(), 0), place.guard);
  }

  Element elementwise(const Place& place, const std::vector<UOp>& context) {
    const UOp& node = place.node;
    std::vector<UOp> src;
    std::vector<UOp> valid;
    for (const UOp& s : node.src()) {
      const Element e = need({s, aligned(s, place.at), place.guard}, context);
      src.push_back(e.value);
      valid.push_back(e.valid);
    }
    if (!missing_.empty()) return {};
    UOp all;
    if (node.is(Op::Where)) {  // only the chosen side counts
      if (valid[1] || valid[2]) {
        const UOp yes = constant_bool(true);
        all = simplify(where(src[0], valid[1] ? valid[1] : yes, valid[2] ? valid[2] : yes));
      }
      all = conjunction(valid[0], all);
    } else {
      for (const UOp& v : valid) all = conjunction(all, v);
    }
    return {UOp::make(node.op(), src, node.arg()), all};
  }

  Element reduction(const Place& place, const std::vector<UOp>& context) {
    const UOp& node = place.node;
    const ReduceArg& arg = node.as<ReduceArg>();
    for (const int64_t axis : arg.axes)  // nothing to reduce
      if (is_const(node.src(0).dim(static_cast<size_t>(axis)), 0))
        return {identity_of(arg.op, node.dtype()), {}};
    auto [it, fresh] = reduce_ranges_.try_emplace(place);
    if (fresh)
      for (const int64_t axis : arg.axes) {
        const UOp size = node.src(0).dim(static_cast<size_t>(axis));
        it->second.push_back(is_const(size, 1) ? index_const(0)
                                               : range(next_range_++, size, AxisType::Reduce));
      }
    const std::vector<UOp> places = it->second;  // need() may grow the map
    Indices at = place.at;
    std::vector<UOp> ranges, inner = context;
    for (size_t k = 0; k < arg.axes.size(); ++k) {
      at[static_cast<size_t>(arg.axes[k])] = places[k];
      if (places[k].is(Op::Range)) {
        ranges.push_back(places[k]);
        inner.push_back(places[k]);
      }
    }
    const Element e = need({node.src(0), at, place.guard}, inner);
    if (!missing_.empty()) return {};
    const UOp body =
        is_true(e.valid) ? e.value : where(e.valid, e.value, identity_of(arg.op, node.dtype()));
    if (ranges.empty()) return {body, {}};
    return {rewrite(reduce_ranges(arg.op, rewrite(body, kernel_rules()), ranges), kernel_rules()),
            {}};
  }

  Element stacked(const Place& place, const std::vector<UOp>& context) {
    const UOp& node = place.node;
    const UOp& which = place.at[0];
    const Indices rest(place.at.begin() + 1, place.at.end());
    const auto count = static_cast<int64_t>(node.src().size());
    if (which.is(Op::Const)) {
      const int64_t k = std::clamp<int64_t>(const_int(which), 0, count - 1);
      return need({node.src(static_cast<size_t>(k)), rest, place.guard}, context);
    }
    Element out;
    for (int64_t k = count; k-- > 0;) {
      const UOp here = simplify(eq(which, index_const(k)));
      const Element e =
          need({node.src(static_cast<size_t>(k)), rest, conjunction(place.guard, here)}, context);
      if (!missing_.empty()) continue;
      if (!out.value) {
        out = e;
        continue;
      }
      if (e.valid || out.valid) {
        const UOp yes = constant_bool(true);
        out.valid = simplify(where(here, e.valid ? e.valid : yes, out.valid ? out.valid : yes));
      }
      out.value = where(here, e.value, out.value);
    }
    return out;
  }

  Element bitcasted(const Place& place, const std::vector<UOp>& context) {
    const UOp& node = place.node;
    const UOp& source = node.src(0);
    if (item_size(source.dtype()) == item_size(node.dtype())) {
      const Element e = need({source, place.at, place.guard}, context);
      return missing_.empty() ? Element{bitcast(e.value, node.dtype()), e.valid} : Element{};
    }
    // Another item size: the same memory, seen with another dtype.
    UOp valid;
    if (fusion_.partly_invalid(node)) {
      const Element bad = need({invalid_elements(node), place.at, place.guard}, context);
      if (!missing_.empty()) return {};
      valid = simplify(logical_not(bad.value));
    }
    const UOp storage = read(source, "bitcast to another item size");
    const UOp address = kernel_address(storage, node.dtype(), place.at, node.shape());
    if (is_true(place.guard)) return {load(address), valid};
    return {load(address, constant_int(node.dtype(), 0), place.guard), valid};
  }

  Element padded(const Place& place, const std::vector<UOp>& context) {
    const UOp& node = place.node;
    UOp inside;
    const Indices at = moved(node, place.at, inside);
    const bool filled = node.src().size() == 4;
    Element fill;
    if (filled) fill = need({node.src(3), {}, place.guard}, context);
    if (is_false(inside))
      return filled ? fill : Element{constant_int(node.dtype(), 0), constant_bool(false)};
    Element e = need({node.src(0), at, conjunction(place.guard, inside)}, context);
    if (!missing_.empty()) return {};
    if (is_true(inside)) return e;
    if (!filled) return {e.value, conjunction(inside, e.valid)};
    UOp valid;
    if (e.valid) valid = simplify(where(inside, e.valid, constant_bool(true)));
    return {where(inside, e.value, fill.value), valid};
  }

  // A gated Load reads memory only where its gate is true, and gives the alt elsewhere.
  Element gated(const Place& place, const std::vector<UOp>& context) {
    const UOp& node = place.node;
    const UOp &alt = node.src(1), &gate = node.src(2);
    const Element open = need({gate, aligned(gate, place.at), place.guard}, context);
    if (!missing_.empty()) return {};
    const Element inside =
        need({node.src(0), place.at, conjunction(place.guard, open.value)}, context);
    const Element outside = need({alt, aligned(alt, place.at), place.guard}, context);
    if (!missing_.empty()) return {};
    return {resolved({where(open.value, resolved(inside), resolved(outside)), open.valid}), {}};
  }

  // A Load into LOCAL memory: a buffer of this kernel, filled before anything reads it.
  Element local(const Place& place) {
    const UOp& node = place.node;
    if (is_const(product(node.shape()), 0)) return {constant_int(node.dtype(), 0), {}};
    auto [it, fresh] = locals_.try_emplace(node.node());
    if (fresh) {
      KOINE_REQUIRE(
          node.has_concrete_shape() && node.numel() * item_size(node.dtype()) <= most_local, Memory,
          "Load: {} of shape {} does not fit into LOCAL memory of {} bytes",
          dtype_name(node.dtype()), shape_text(node), most_local);
      it->second.at = open_loops(node, it->second.ranges);
      it->second.slot = static_cast<int64_t>(locals_.size()) - 1;
    }
    const Local known = it->second;  // need() may grow the map
    if (!known.filled) {
      const Element e = is_gated(node) ? gated({node, known.at, {}}, known.ranges)
                                       : need({node.src(0), known.at, {}}, known.ranges);
      if (!missing_.empty()) return {};
      const UOp buffer = UOp::make(Op::Buffer, {shape_of({node.numel()})},
                                   BufferArg{known.slot, node.dtype(), {}, AddrSpace::Local});
      const UOp filled = end(
          store(index(buffer, {flat_index(node.shape(), known.at)}), resolved(e)), known.ranges);
      locals_[node.node()].filled = after(buffer, {UOp::make(Op::Barrier, {filled})});
    }
    const UOp address = index(locals_.at(node.node()).filled, {flat_index(node.shape(), place.at)});
    if (is_true(place.guard)) return {load(address), {}};
    return {load(address, constant_int(node.dtype(), 0), place.guard), {}};
  }

  // Memory holds 0 for what is invalid.
  static UOp resolved(const Element& e) {
    return is_true(e.valid) ? e.value : where(e.valid, e.value, constant_int(e.value.dtype(), 0));
  }

  // Index by values: each index is bounds-checked; out of range reads 0 (amendment C28).
  Element indexed(const Place& place, const std::vector<UOp>& context) {
    UOp inside;
    const Indices at = index_places(place, inside, [&](const UOp& which, const Indices& where_at) {
      return need({which, where_at, place.guard}, context);
    });
    if (!missing_.empty()) return {};
    Element e = need({place.node.src(0), at, conjunction(place.guard, inside)}, context);
    if (!missing_.empty() || is_true(inside)) return e;
    UOp valid;  // the 0 outside is a value like any other
    if (e.valid) valid = simplify(where(inside, e.valid, constant_bool(true)));
    return {where(inside, e.value, constant_int(e.value.dtype(), 0)), valid};
  }

  // The place in the source of an Index; `fetch` gives the element of one index value.
  template <class Fetch>
  static Indices index_places(const Place& place, UOp& inside, Fetch&& fetch) {
    const UOp& node = place.node;
    const UOp& source = node.src(0);
    Indices at;
    size_t position = 0;
    for (size_t k = 0; k < source.rank(); ++k) {
      if (k + 1 >= node.src().size()) {
        at.push_back(place.at[position++]);
        continue;
      }
      const UOp& which = node.src(k + 1);
      const auto from = place.at.begin() + static_cast<std::ptrdiff_t>(position);
      const Element e =
          fetch(which, Indices(from, from + static_cast<std::ptrdiff_t>(which.rank())));
      position += which.rank();
      at.push_back(e.value ? simplify(cast(e.value, DType::Index)) : index_const(0));
      keep_within(at.back(), source.dim(k), inside);
    }
    return at;
  }

  Footprint footprint_of(const Pending& pending) const {
    Footprint out{pending.reads, {}, pending.request.after};
    if (!out.makes) out.makes = pending.request.effects[0].target;
    for (const Effect& e : pending.request.effects)
      if (pending.request.after) out.overwrites.push_back(versions_.of(e.target));
    return out;
  }

  std::vector<Kernel> in_order(const KernelOrder& order) {
    std::vector<size_t> position(kernels_.size());
    for (size_t i = 0; i < order.sequence.size(); ++i) position[order.sequence[i]] = i;
    std::vector<Kernel> out;
    for (const size_t k : order.sequence) {
      out.push_back(std::move(kernels_[k].kernel));
      for (const size_t earlier : order.needs[k]) out.back().needs.push_back(position[earlier]);
    }
    return out;
  }

  UOp program_;
  Fusion fusion_;
  Versions versions_;
  const absl::flat_hash_set<const Node*>& to_copy_;
  std::deque<Request> queue_;
  std::vector<Pending> kernels_;
  absl::flat_hash_map<const Node*, UOp> realized_;  // node -> Buffer or Param with its value
  std::vector<UOp> kept_;                           // nodes made here that stand in `realized_`
  absl::flat_hash_set<const Node*> started_;
  int64_t next_buffer_ = 0;

  // of the kernel being made
  Pending current_;
  absl::flat_hash_map<Place, Element> memo_;
  absl::flat_hash_map<Place, std::vector<UOp>> reduce_ranges_;
  absl::flat_hash_map<std::pair<const Node*, DType>, int64_t> slots_;
  struct Local {
    Indices at;
    std::vector<UOp> ranges;
    int64_t slot = 0;
    UOp filled;  // null: not yet
  };
  absl::flat_hash_map<const Node*, Local> locals_;
  std::vector<std::pair<Place, std::vector<UOp>>> missing_;
  int64_t next_range_ = 0;
};

}  // namespace

std::vector<Kernel> rangeify(const UOp& program) {
  std::vector<Kernel> kernels;
  absl::flat_hash_set<const Node*> to_copy;
  while (true) {
    const std::vector<UOp> further = Scheduler(program, to_copy).run(kernels);
    if (further.empty()) return kernels;
    // One of a circle may be read by its copy alone already.
    bool any = false;
    for (const UOp& version : further) any = to_copy.insert(version.node()).second || any;
    KOINE_INVARIANT(any, "kernels depend on each other in a circle");
  }
}

UOp schedule_node(const std::vector<Kernel>& kernels) {
  std::vector<UOp> calls;
  for (const Kernel& k : kernels) {
    std::vector<UOp> src{k.ast};
    src.insert(src.end(), k.buffers.begin(), k.buffers.end());
    calls.push_back(UOp::make(Op::Call, src));
  }
  return UOp::make(Op::Linear, calls);
}

}  // namespace koine

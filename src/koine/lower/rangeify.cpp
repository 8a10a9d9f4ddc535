#include "koine/lower/rangeify.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <deque>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/fusion.hpp"
#include "koine/lower/scatter.hpp"
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

struct Request {
  UOp value;
  UOp target;  // Buffer or Param, or a view of one where `after` is set
  UOp after;   // the After whose Store this is; null for a plain result
  std::string reason;
  bool transfer = false;  // a copy between devices
};

class Scheduler {
 public:
  explicit Scheduler(const UOp& program) : program_(program), fusion_(program) {}

  std::vector<Kernel> run() {
    for (const UOp& effect : program_.src()) output(effect);
    while (!queue_.empty()) {
      const Request request = queue_.front();
      queue_.pop_front();
      if (is_const(product(request.value.shape()), 0)) continue;  // nothing to compute
      kernels_.push_back(make_kernel(request));
    }
    return in_order();
  }

 private:
  struct Pending {
    Kernel kernel;
    Request request;
    std::vector<UOp> reads;  // versions: Params, Buffers, Afters
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

  void output(const UOp& effect) {
    if (effect.is(Op::After)) {
      require_effects(effect);
      return;
    }
    KOINE_INVARIANT(effect.is(Op::Store), "a program holds Stores and Afters, got {}",
                    op_name(effect.op()));
    UOp value = effect.src(1);
    while (value.is(Op::Contiguous) || value.is(Op::Detach) || value.is(Op::ContiguousBackward))
      value = value.src(0);
    queue_.push_back({value, effect.src(0), {}, "output", false});
    if (!storage_of(value)) realized_.emplace(value.node(), effect.src(0));
    if (value.is(Op::Load)) queue_.back().transfer = true;
  }

  void require_effects(const UOp& node) {
    if (!started_.insert(node.node()).second) return;
    for (const UOp& dependency : node.src().subspan(1)) {
      if (!dependency.is(Op::Store)) continue;
      UOp value = dependency.src(1);
      // The whole right side is read before anything is written (B20): a value that reads the
      // buffer it goes to is computed elsewhere first.
      const UOp base = storage_of(node);
      if (fusion_.reads(value, base)) value = contiguous(value);
      queue_.push_back({value, dependency.src(0), node, "assignment", false});
    }
    if (node.src(0).is(Op::After)) require_effects(node.src(0));
  }

  UOp realize(const UOp& node, std::string reason) {
    if (const UOp known = storage_of(node)) return known;
    const UOp buffer = UOp::make(Op::Buffer, {node.shape()},
                                 BufferArg{next_buffer_++, node.dtype(), node.device()});
    realized_.emplace(node.node(), buffer);
    queue_.push_back({node, buffer, {}, std::move(reason), node.is(Op::Load)});
    return buffer;
  }

  // --- one kernel ----------------------------------------------------------------------------

  Pending make_kernel(const Request& request) {
    current_ = {};
    current_.request = request;
    memo_.clear();
    reduce_ranges_.clear();
    next_range_ = 0;
    slots_.clear();
    if (request.transfer) return make_transfer(request);

    Indices at;
    std::vector<UOp> ranges;
    for (size_t i = 0; i < request.value.rank(); ++i) {
      const UOp size = request.value.dim(i);
      if (is_const(size, 1)) {
        at.push_back(index_const(0));
        continue;
      }
      ranges.push_back(range(next_range_++, size, AxisType::Loop));
      at.push_back(ranges.back());
    }
    UOp gate;
    const UOp address = request.after ? target_address(request, at, gate)
                                      : kernel_address(request.target, request.target.dtype(), at,
                                                       request.target.shape());
    const Element element = lower({request.value, at, {}}, ranges);
    // An assignment skips invalid elements; in fresh memory they become 0 (amendment C27).
    UOp value = element.value;
    if (request.after)
      gate = conjunction(gate, element.valid);
    else if (!is_true(element.valid))
      value = where(element.valid, value, constant_int(value.dtype(), 0));
    const UOp body = is_true(gate) ? store(address, value) : store(address, value, gate);
    const UOp ast = rewrite(sink(std::vector<UOp>{end(body, ranges)}), kernel_rules());
    current_.kernel.ast = rewrite(without_promises(ast), kernel_rules());
    if (const auto scatter = find_scatter(current_.kernel.ast)) {
      const Op op = scatter->reduce.as<ReduceArg>().op;
      if (value == scatter->reduce || is_plain_store_of(current_.kernel.ast, scatter->reduce)) {
        current_.kernel.ast =
            rewrite(scatter_kernel(current_.kernel.ast, *scatter), kernel_rules());
      } else if (realize_reduces(request.value, op)) {
        return make_kernel(request);  // the fold has a kernel of its own now: start again
      }
    }
    current_.kernel.reason = request.reason;
    return std::move(current_);
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
    UOp from = request.value.src(0);
    const UOp source = realize(from, "read on another device");
    current_.kernel.ast = UOp::make(Op::CustomFunction, {}, std::string("copy"));
    current_.kernel.buffers = {request.target, source};
    current_.reads.push_back(version_of(from));
    current_.kernel.reason = "copy between devices";
    return std::move(current_);
  }

  // Index(Param slot of this kernel, flat place).
  UOp kernel_address(const UOp& storage, DType dtype, const Indices& at, const UOp& shape) {
    return index(kernel_param(storage, dtype, product(shape)), {flat_index(shape, at)});
  }

  UOp kernel_param(const UOp& storage, DType dtype, const UOp& elements) {
    auto [it, fresh] = slots_.try_emplace(storage.node(), static_cast<int64_t>(slots_.size()));
    if (fresh) current_.kernel.buffers.push_back(storage);
    return param(it->second, stack(std::vector<UOp>{elements}), dtype);
  }

  // The address of a Store into a view: the place is pushed down to the base.
  UOp target_address(const Request& request, Indices at, UOp& gate) {
    UOp view = request.target;
    while (!storage_of(view)) {
      KOINE_REQUIRE(is_movement(view.op()), Value,
                    "Store: the target must be a view of a buffer, got {}", op_name(view.op()));
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
      if (storage_of(node)) return {load_element(place, node), {}};
      if (const char* reason = fusion_.must_realize(node))
        return {load_realized(place, reason), {}};
      if (const char* reason =
              fusion_.repeats_work(node, place.at, place.guard, context,
                                   [&](const UOp& n) { return bool(storage_of(n)); }))
        return {load_realized(place, reason), {}};
    }
    if (is_elementwise(node.op())) return elementwise(place, context);
    switch (node.op()) {
      case Op::Reduce:
        return reduction(place, context);
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
    return !current_.request.after && node == current_.request.value && !node.is(Op::Param) &&
           !node.is(Op::Buffer) && !node.is(Op::After) && realized_.contains(node.node()) &&
           realized_.at(node.node()) == current_.request.target;
  }

  UOp version_of(const UOp& node) const {
    const Node* n = node.node();
    while (!realized_.contains(n) &&
           (n->op == Op::Contiguous || n->op == Op::Detach || n->op == Op::ContiguousBackward))
      n = n->sources()[0].node();
    if (const auto it = realized_.find(n); it != realized_.end()) return it->second;
    return UOp::share(n);
  }

  UOp load_element(const Place& place, const UOp& node) {
    UOp version = version_of(node);
    if (version.is(Op::After)) require_effects(version);
    // The old state of a buffer that this same kernel's inputs overwrite is copied first.
    if (const UOp later = fusion_.later_version(version);
        later && fusion_.reads(current_.request.value, later))
      return load_realized({contiguous_copy(version), place.at, place.guard},
                           "old state of an assigned buffer");
    current_.reads.push_back(version);
    const UOp storage = storage_of(version);
    const UOp address = kernel_address(storage, node.dtype(), place.at, node.shape());
    if (is_true(place.guard)) return load(address);
    return load(address, constant_int(node.dtype(), 0), place.guard);
  }

  UOp contiguous_copy(const UOp& version) {
    auto [it, fresh] = copies_.try_emplace(version.node());
    if (fresh) {
      it->second =
          UOp::make(Op::Contiguous, {version}, {}, 1);  // tagged: a copy that really copies
      const UOp buffer = UOp::make(Op::Buffer, {version.shape()},
                                   BufferArg{next_buffer_++, version.dtype(), version.device()});
      realized_.emplace(it->second.node(), buffer);
      queue_.push_back({version, buffer, {}, "old state of an assigned buffer", false});
    }
    return it->second;
  }

  UOp load_realized(const Place& place, std::string_view reason) {
    UOp node = place.node;
    const UOp storage = realize(node, std::string(reason));
    current_.reads.push_back(storage);
    const UOp address = kernel_address(storage, node.dtype(), place.at, node.shape());
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
    const UOp storage = realize(source, "bitcast to another item size");
    current_.reads.push_back(version_of(source));
    const UOp address = kernel_address(storage, node.dtype(), place.at, node.shape());
    if (is_true(place.guard)) return {load(address), {}};
    return {load(address, constant_int(node.dtype(), 0), place.guard), {}};
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

  // --- execution order -------------------------------------------------------------------------

  std::vector<Kernel> in_order() {
    const size_t n = kernels_.size();
    std::vector<std::vector<size_t>> before(n);                     // kernels that must run earlier
    absl::flat_hash_map<const Node*, std::vector<size_t>> writers;  // of a Buffer, or of an After
    for (size_t k = 0; k < n; ++k) {
      const Request& r = kernels_[k].request;
      writers[r.after ? r.after.node() : r.target.node()].push_back(k);
    }
    for (size_t k = 0; k < n; ++k) {
      for (const UOp& version : kernels_[k].reads) {
        for (const size_t w : writers[version.node()])
          if (w != k) before[k].push_back(w);
        if (const UOp later = fusion_.later_version(version))
          for (const size_t w : writers[later.node()])
            if (w != k) before[w].push_back(k);
      }
      const Request& r = kernels_[k].request;
      if (r.after)  // writes of one buffer follow each other
        for (const size_t w : writers[r.after.src(0).node()])
          if (w != k) before[k].push_back(w);
    }
    std::vector<Kernel> out;
    std::vector<int> state(n, 0);
    // Outputs were requested first; a depth-first walk from each keeps producers near their users.
    for (size_t root = 0; root < n; ++root) {
      std::vector<std::pair<size_t, size_t>> stack{{root, 0}};
      while (!stack.empty()) {
        auto& [k, next] = stack.back();
        if (next == 0) {
          if (state[k] == 2) {
            stack.pop_back();
            continue;
          }
          state[k] = 1;
        }
        if (next < before[k].size()) {
          const size_t b = before[k][next++];
          KOINE_INVARIANT(state[b] != 1, "kernels depend on each other in a circle");
          if (state[b] == 0) stack.emplace_back(b, 0);
          continue;
        }
        state[k] = 2;
        out.push_back(std::move(kernels_[k].kernel));
        stack.pop_back();
      }
    }
    return out;
  }

  UOp program_;
  Fusion fusion_;
  std::deque<Request> queue_;
  std::vector<Pending> kernels_;
  absl::flat_hash_map<const Node*, UOp> realized_;  // node -> Buffer or Param with its value
  absl::flat_hash_map<const Node*, UOp> copies_;
  absl::flat_hash_set<const Node*> started_;
  int64_t next_buffer_ = 0;

  // of the kernel being made
  Pending current_;
  absl::flat_hash_map<Place, Element> memo_;
  absl::flat_hash_map<Place, std::vector<UOp>> reduce_ranges_;
  absl::flat_hash_map<const Node*, int64_t> slots_;
  std::vector<std::pair<Place, std::vector<UOp>>> missing_;
  int64_t next_range_ = 0;
};

}  // namespace

std::vector<Kernel> rangeify(const UOp& program) { return Scheduler(program).run(); }

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

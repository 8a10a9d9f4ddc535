#include "koine/lower/rangeify.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <deque>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/tag.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/decide.hpp"
#include "koine/lower/index.hpp"
#include "koine/lower/merge.hpp"
#include "koine/lower/order.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/scan.hpp"
#include "koine/lower/scatter.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/lower/sum_tree.hpp"
#include "koine/lower/validity.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/flat_kernel.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

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
  UOp call = {};  // whose results these are; null: none
};

class Scheduler : private KernelReads {
 public:
  // `to_copy`: versions that are read from a copy, because they are overwritten too early.
  Scheduler(const UOp& program, const absl::flat_hash_set<const Node*>& to_copy)
      : program_(program),
        versions_(program),
        to_copy_(to_copy),
        one_device_(is_on_one_device(program)) {}

  /// The host program, or, where no order of its kernels exists, further versions to copy.
  std::vector<UOp> run(UOp& out) {
    for (const UOp& effect : program_.src()) output(effect);
    for (const UOp& effect : program_.src())
      if (effect.is(Op::Store) && is_call_result(stored_value(effect)))
        results_of_call(stored_value(effect).src(0));
    std::vector<Footprint> footprints;
    while (!queue_.empty()) {
      Request request = std::move(queue_.front());
      queue_.pop_front();
      if (has_nothing_to_compute(request)) continue;
      kernels_.push_back(make_kernel(request));
      footprints.push_back(footprint_of(kernels_.back()));
    }
    const KernelOrder order = order_kernels(footprints, versions_);
    if (order.to_copy.empty()) out = in_order(order);
    return order.to_copy;
  }

 private:
  struct Pending {
    Request request;
    UOp ast;
    std::vector<UOp> buffers;  // by slot
    std::vector<UOp> reads;    // Params, Buffers, Afters
  };

  // --- storage -------------------------------------------------------------------------------

  // The Param or Buffer that holds a node, looking through Afters; null when it has none yet.
  UOp storage_of(const UOp& node) const {
    const Node* n = node.node();
    while (true) {
      if (const auto it = realized_.find(n); it != realized_.end()) return it->second;
      if (n->op == Op::Param || n->op == Op::Buffer) return UOp::share(n);
      if (!shows_memory(n->op)) return {};
      n = n->sources()[0].node();
    }
  }

  static bool has_nothing_to_compute(Request& request) {
    auto is_empty = [](const Effect& e) { return is_const(product(e.value.shape()), 0); };
    auto& effects = request.effects;
    if (request.call) return std::all_of(effects.begin(), effects.end(), is_empty);
    std::erase_if(effects, is_empty);
    return effects.empty();
  }

  void output(const UOp& effect) {
    if (effect.is(Op::After)) {
      require_effects(effect);
      return;
    }
    KOINE_INVARIANT(effect.is(Op::Store), "a program holds Stores and Afters, got {}",
                    op_name(effect.op()));
    const UOp value = stored_value(effect);
    const UOp& target = effect.src(0);
    if (is_call_result(value) && realized_.emplace(value.node(), target).second) return;
    queue_.push_back({{{target, value, {}}}, {}, "output", is_transfer(value)});
    if (value.is(Op::After) || storage_of(value)) return;
    // What lies on no device is made where it is read: this output serves those beside it.
    if (value.device() || one_device_) realized_.emplace(value.node(), target);
  }

  static bool is_on_one_device(const UOp& program) {
    return std::all_of(program.src().begin(), program.src().end(),
                       [&](const UOp& effect) { return effect.device() == program.device(); });
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
      same->effects.push_back(before_writing(s, written, stores.size() == 1));
    }
    for (Request& r : requests) queue_.push_back(std::move(r));
  }

  // Whether all that a value reads of what is written is, for each element, the one that it is
  // stored over, as in x[i] += y: no other element of the kernel can have been there before.
  bool reads_its_place(const UOp& s, const absl::flat_hash_set<const Node*>& written) const {
    absl::flat_hash_set<const Node*> reading, elsewhere;
    for (UOp view = s.src(0); is_movement(view.op()); view = view.src(0))
      if (view.is(Op::Index) || view.is(Op::Expand)) return false;  // elements may meet
    for (const UOp& u : toposort(s.src(1))) {
      const UOp held = storage_of(u);
      bool reads = held && written.contains(held.node()), same = u == s.src(0);
      bool moves = reads;
      for (const UOp& source : u.src()) {
        if (!reading.contains(source.node())) continue;
        reads = true;
        moves = moves || elsewhere.contains(source.node()) || !is_elementwise(u.op()) ||
                !(source.shape() == u.shape());
      }
      if (reads || same) reading.insert(u.node());
      if (moves && !same) elsewhere.insert(u.node());
    }
    return !elsewhere.contains(s.src(1).node());
  }

  // All that a Store reads is read before anything is written (row B20): what reads a buffer that
  // is written beside it is computed elsewhere first. `alone`: no other Store is beside it.
  Effect before_writing(const UOp& s, const absl::flat_hash_set<const Node*>& written, bool alone) {
    auto reads = [&](const UOp& value) {
      if (const UOp held = storage_of(value)) return written.contains(held.node());
      bool found = false;
      toposort(value, [&](const UOp& u) {
        found = found || written.contains(u.node());
        return !found && !is_call_result(u);  // which is computed before
      });
      return found;
    };
    auto settled = [&](const UOp& value) { return reads(value) ? snapshot(value) : value; };
    Effect out{s.src(0), s.src(1), s.src().size() == 3 ? settled(s.src(2)) : UOp()};
    if (!alone || !reads_its_place(s, written)) out.value = settled(out.value);
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
    const UOp copy = UOp::make(Op::Contiguous, {value}, {}, tag::copies);
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
    const UOp& value = behind_markers(node);
    if (!is_call_result(value)) return make_buffer(node, node, std::move(reason));
    results_of_call(value.src(0));
    return storage_of(value);
  }

  static const UOp& behind_markers(const UOp& node) {
    const UOp* value = &node;
    while (shows_memory(value->op()) && !value->is(Op::After) && !asks_for_buffer(*value))
      value = &value->src(0);
    return *value;
  }

  // A Call is one kernel, which fills memory for all its results.
  void results_of_call(const UOp& call) {
    if (!started_.insert(call.node()).second) return;
    const std::vector<UOp> results = results_of(call.src(0));
    const std::vector<bool> whole = stored_whole(call);
    Request request{{}, {}, fmt::format("a call of '{}'", call_name(call)), false, call};
    for (size_t k = 0; k < results.size(); ++k) {
      const UOp result = get_tuple(call, static_cast<int64_t>(k));
      kept_.push_back(result);
      auto [it, fresh] = realized_.try_emplace(result.node());
      if (fresh)
        it->second = UOp::make(Op::Buffer, {result.shape()},
                               BufferArg{next_buffer_++, result.dtype(), call.device()});
      const UOp target = it->second;
      request.effects.push_back({target, result, {}});
      if (!whole[k])
        queue_.push_back(
            {{{target, zeros(result), {}}}, {}, "what a kernel leaves out is 0", false});
    }
    queue_.push_back(std::move(request));
  }
  // A function of the host gets memory that is cleared.
  static std::vector<bool> stored_whole(const UOp& call) {
    const UOp& body = call.src(0);
    return body.is(Op::Sink) ? flat_kernel(body).whole : std::vector<bool>(body.src().size(), true);
  }
  static UOp zeros(const UOp& like) {
    const UOp zero = constant_int(like.dtype(), 0);
    return like.is_scalar() ? zero
                            : expand(reshape(zero, shape_of(Ints(like.rank(), 1))), like.shape());
  }

  static std::string reason_of(const UOp& node) {
    const auto* reason = std::get_if<std::string>(&node.arg());
    return reason != nullptr && node.is(Op::Contiguous) ? *reason : std::string(asked_for);
  }

  static bool is_gated(const UOp& load) { return load.src().size() == 3; }
  static bool is_transfer(const UOp& u) {
    return u.is(Op::Load) && !is_gated(u) && !goes_to_local(u);
  }

  // --- one kernel ----------------------------------------------------------------------------

  Pending make_kernel(const Request& request) {
    current_ = {};
    current_.request = request;
    slots_.clear();
    if (request.transfer) return make_transfer(request);
    if (request.call) return make_call(request);
    Indexer indexer(*this);
    const UOp ast = rewrite(sink(make_nests(request, indexer)), kernel_rules());
    current_.ast = rewrite(without_promises(ast), kernel_rules());
    if (const auto scatter = find_scatter(current_.ast)) {
      const Op op = scatter->reduce.as<ReduceArg>().op;
      if (request.effects.size() == 1 && is_plain_store_of(current_.ast, scatter->reduce)) {
        current_.ast = rewrite(scatter_kernel(current_.ast, *scatter), kernel_rules());
      } else {
        bool found = false;
        for (const Effect& e : request.effects) found = realize_reduces(e.value, op) || found;
        if (found) return make_kernel(Request(request));  // the fold has a kernel now: start again
      }
    }
    current_.ast = scan_kernel(current_.ast);
    if (!options().strict) current_.ast = fold_in_float32(current_.ast);
    return std::move(current_);
  }

  // Stores of equal shape into different buffers share their loops; others follow each other.
  std::vector<UOp> make_nests(const Request& request, Indexer& indexer) {
    absl::flat_hash_set<const Node*> written;
    bool together = true;
    for (const Effect& e : request.effects)
      together = together && e.value.shape() == request.effects[0].value.shape() &&
                 written.insert(base_of(e.target).node()).second;
    std::vector<UOp> nests, stores, ranges;
    Indices at;
    for (const Effect& e : request.effects) {
      if (!together || stores.empty()) at = indexer.open_loops(e.value, ranges);
      const UOp stored = make_store(request, e, at, nests, indexer);
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
    return UOp::make(Op::End, nest.src(), {}, tag::runs_in_order);
  }

  // Whether two elements of a Store may go to one place.
  static bool may_meet(const Effect& effect) {
    for (UOp view = effect.target; is_movement(view.op()); view = view.src(0))
      if (view.is(Op::Index) || view.is(Op::Expand)) return true;
    return false;
  }

  // `earlier`: the closed loops of this kernel that may have written the same buffer.
  UOp make_store(const Request& request, const Effect& effect, const Indices& at,
                 const std::vector<UOp>& earlier, Indexer& indexer) {
    UOp gate;
    UOp address = request.after ? target_address(effect.target, at, gate, indexer)
                                : place_in_memory(effect.target, at);
    if (!earlier.empty())
      address =
          with_sources(address, std::vector<UOp>{after(address.src(0), earlier), address.src(1)});
    if (effect.gate)
      gate = conjunction(gate, indexer.element(effect.gate, aligned(effect.gate, at)));
    const UOp value = indexer.element(effect.value, at);
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
    const UOp source = read(request.effects[0].value.src(0));
    current_.ast = UOp::make(Op::CustomFunction, {}, std::string(copy_function));
    current_.buffers = {request.effects[0].target, source};
    current_.request.reason = "copy between devices";
    return std::move(current_);
  }

  // A kernel made by hand, or a function of the host: slots are results, then arguments.
  Pending make_call(const Request& request) {
    const UOp& body = request.call.src(0);
    current_.ast = body.is(Op::Sink) ? rewrite(flat_kernel(body).ast, kernel_rules()) : body;
    for (const Effect& e : request.effects) {
      current_.buffers.push_back(e.target);
      current_.reads.push_back(e.target);  // it may hold zeros
    }
    for (const UOp& argument : sources_outside_body(request.call))
      current_.buffers.push_back(read(argument));
    return std::move(current_);
  }

  // The buffer of which a Store's target is a view.
  UOp base_of(const UOp& target) const {
    UOp view = target;
    while (is_movement(view.op())) view = view.src(0);
    return storage_of(view);
  }

  // The address of a Store into a view: the place is pushed down to the base.
  UOp target_address(UOp view, Indices at, UOp& gate, Indexer& indexer) {
    while (is_movement(view.op())) {
      UOp inside;
      at = view.is(Op::Index) ? indexer.indexed_place(view, at, inside) : moved(view, at, inside);
      gate = conjunction(gate, inside);
      view = view.src(0);
    }
    return place_in_memory(view, at);
  }
  UOp place_in_memory(const UOp& buffer, const Indices& at) {
    const UOp shape = buffer.shape();
    return index(kernel_param(storage_of(buffer), buffer.dtype(), product(shape)),
                 {flat_index(shape, at)});
  }

  // --- what the values of a kernel read --------------------------------------------------------

  bool is_read(const UOp& node) override {
    return !is_current_result(node) && (storage_of(node) || asks_for_buffer(node));
  }

  void wait_for(const UOp& after) override {
    require_effects(after);
    current_.reads.push_back(after);
  }

  UOp param_of(const UOp& node, DType dtype, const UOp& elements) override {
    return kernel_param(read(node), dtype, elements);
  }

  // A buffer that is read with two dtypes (a Bitcast to another item size) has a slot for each: a
  // Param says one dtype.
  UOp kernel_param(const UOp& storage, DType dtype, const UOp& elements) {
    const auto [it, fresh] =
        slots_.try_emplace({storage.node(), dtype}, static_cast<int64_t>(slots_.size()));
    if (fresh) current_.buffers.push_back(storage);
    return param(it->second, stack(std::vector<UOp>{elements}), dtype);
  }

  bool is_current_result(const UOp& node) const {
    const Request& request = current_.request;
    return !request.after && node == request.effects[0].value && !node.is(Op::Param) &&
           !node.is(Op::Buffer) && !node.is(Op::After) && realized_.contains(node.node()) &&
           realized_.at(node.node()) == request.effects[0].target;
  }

  // Where this kernel reads a node that is in memory, or is put there.
  UOp read(const UOp& node) {
    if (!storage_of(node)) {
      current_.reads.push_back(realize(node, reason_of(node)));
      return current_.reads.back();
    }
    const Node* n = node.node();
    while (!realized_.contains(n) && shows_memory(n->op) && n->op != Op::After)
      n = n->sources()[0].node();
    if (const auto it = realized_.find(n); it != realized_.end()) {
      current_.reads.push_back(it->second);
      return it->second;
    }
    const UOp state = UOp::share(n), version = versions_.of(state);
    require_effects(state);
    // What is overwritten before all its readers have run is read from a copy, but by the kernel
    // that fills it.
    if (to_copy_.contains(version.node())) {
      const UOp copy = make_buffer(UOp::make(Op::Contiguous, {version}, {}, tag::copies), version,
                                   "old state of an assigned buffer");
      if (!(copy == current_.request.effects[0].target)) {
        current_.reads.push_back(copy);
        return copy;
      }
    }
    current_.reads.push_back(state);
    return storage_of(state);
  }

  Footprint footprint_of(const Pending& pending) const {
    Footprint out{pending.reads, {}, {}};
    if (pending.request.after)
      out.makes.push_back(pending.request.after);
    else
      for (const Effect& e : pending.request.effects) out.makes.push_back(e.target);
    for (const Effect& e : pending.request.effects)
      if (pending.request.after) out.overwrites.push_back(versions_.of(e.target));
    return out;
  }

  UOp in_order(const KernelOrder& order) const {
    std::vector<UOp> calls;
    for (const size_t k : order.sequence)
      calls.push_back(
          kernel_call(kernels_[k].ast, kernels_[k].buffers, kernels_[k].request.reason));
    return UOp::make(Op::Linear, calls);
  }

  UOp program_;
  Versions versions_;
  const absl::flat_hash_set<const Node*>& to_copy_;
  bool one_device_;  // of all outputs
  std::deque<Request> queue_;
  std::vector<Pending> kernels_;
  absl::flat_hash_map<const Node*, UOp> realized_;  // node -> Buffer or Param with its value
  std::vector<UOp> kept_;                           // nodes made here that stand in `realized_`
  absl::flat_hash_set<const Node*> started_;
  int64_t next_buffer_ = 0;

  // of the kernel being made
  Pending current_;
  absl::flat_hash_map<std::pair<const Node*, DType>, int64_t> slots_;
};

}  // namespace

UOp decided_program(const UOp& values) {
  (void)Versions(values);  // refuses Stores into what is no memory
  const UOp program = decide(make_validity_explicit(values));
  dump_stage("decide", [&] { return to_text(program); });
  if (options().verify >= 2) verify(program, VerifyLevel::Program, "decide");
  return program;
}

UOp rangeify(const UOp& values) {
  const UOp program = decided_program(values);
  UOp schedule;
  absl::flat_hash_set<const Node*> to_copy;
  while (true) {
    const std::vector<UOp> further = Scheduler(program, to_copy).run(schedule);
    if (further.empty()) return merge_kernels(on_devices(without_unread(schedule)));
    // One of a circle may be read by its copy alone already.
    bool any = false;
    for (const UOp& version : further) any = to_copy.insert(version.node()).second || any;
    KOINE_INVARIANT(any, "kernels depend on each other in a circle");
  }
}

}  // namespace koine

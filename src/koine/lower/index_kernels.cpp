#include "koine/lower/index_kernels.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <deque>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/bufferize.hpp"
#include "koine/lower/contents.hpp"
#include "koine/lower/index.hpp"
#include "koine/lower/old_states.hpp"
#include "koine/lower/order.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/flat_kernel.hpp"
#include "koine/rules/places.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// The Stores that one kernel runs, and the Afters that wait for it.
struct Request {
  std::vector<UOp> stores;
  std::vector<UOp> afters;
};

struct Pending {
  Request request;
  UOp ast;
  std::vector<UOp> buffers;  // by slot
  std::vector<UOp> reads;    // Params, Buffers, Afters
  std::vector<UOp> waits;    // buffers to be filled before, which it does not read
};

std::string_view reason_of_after(const UOp& after) {
  const auto* reason = std::get_if<std::string>(&after.arg());
  return reason != nullptr ? std::string_view(*reason) : assignment;
}

bool stores_nothing(const UOp& store) { return is_const(product(store.src(1).shape()), 0); }

// Whether two elements of a Store may go to one place.
bool may_meet(const UOp& store) {
  for (UOp view = store.src(0); is_movement(view.op()); view = view.src(0))
    if (view.is(Op::Index) || view.is(Op::Expand)) return true;
  return false;
}

UOp closed(const UOp& body, const std::vector<UOp>& ranges, std::span<const UOp> stores) {
  const UOp nest = end(body, ranges);
  if (ranges.empty() || std::none_of(stores.begin(), stores.end(), may_meet)) return nest;
  return UOp::make(Op::End, nest.src(), MarkArg{Mark::InOrder});
}

class Splitter : private KernelReads {
 public:
  Splitter(const UOp& program, const Versions& versions, bool strict)
      : program_(program),
        strict_(strict),
        versions_(versions),
        next_buffer_(next_temporary(program)) {
    for (const UOp& u : toposort_outside_bodies(program))
      for (const UOp& dependency : u.is(Op::After) ? u.src().subspan(1) : std::span<const UOp>())
        if (dependency.is(Op::Store) && is_call_result(dependency.src(1)))
          results_[dependency.src(1).src(0).node()].push_back(u);
  }

  /// The host program, or, where no order of its kernels exists, versions to copy.
  std::vector<UOp> run(UOp& out) {
    for (const UOp& effect : program_.src()) require(effect);
    std::vector<Footprint> footprints;
    while (!queue_.empty()) {
      Request request = std::move(queue_.front());
      queue_.pop_front();
      if (!is_call(request)) std::erase_if(request.stores, stores_nothing);
      if (request.stores.empty()) continue;
      kernels_.push_back(make_kernel(request));
      footprints.push_back(footprint_of(kernels_.back()));
    }
    const KernelOrder order = order_kernels(footprints, versions_);
    if (order.to_copy.empty()) out = in_order(order);
    return order.to_copy;
  }

 private:
  // --- requests --------------------------------------------------------------------------------

  // The Stores of an After and of the state below are kernels from here on; what else it waits for
  // is an effect of the program, or filled for somebody who reads it.
  void require(const UOp& root) {
    std::vector<UOp> pending{root};
    while (!pending.empty()) {
      const UOp after = pending.back();
      pending.pop_back();
      if (!after.is(Op::After) || !started_.insert(after.node()).second) continue;
      for (const UOp& dependency : after.src().subspan(1)) enqueue(after, stores_in(dependency));
      pending.push_back(after.src(0));
    }
  }

  // One kernel for each device that these Stores write on, and for a Call.
  void enqueue(const UOp& after, const std::vector<UOp>& stores) {
    if (stores.size() == 1 && is_call_result(stores[0].src(1)))
      return enqueue_call(stores[0].src(1).src(0));
    std::vector<Request> requests;
    for (const UOp& s : stores) {
      auto same = std::find_if(requests.begin(), requests.end(), [&](const Request& r) {
        return r.stores[0].src(0).device() == s.src(0).device();
      });
      if (same == requests.end()) same = requests.insert(same, Request{{}, {after}});
      same->stores.push_back(s);
    }
    for (Request& r : requests) queue_.push_back(std::move(r));
  }

  // A Call is one kernel, which fills memory for all its results, also those that nobody reads.
  void enqueue_call(const UOp& call) {
    if (!started_.insert(call.node()).second) return;
    const size_t count = results_of(call.src(0)).size();
    Request request{std::vector<UOp>(count), {}};
    for (const UOp& after : results_.at(call.node())) {
      const UOp& store = after.src(1);
      request.stores[static_cast<size_t>(store.src(1).as<int64_t>())] = store;
      request.afters.push_back(after);
      require(after.src(0));
    }
    for (size_t k = 0; k < count; ++k) {
      if (request.stores[k]) continue;
      const UOp result = get_tuple(call, static_cast<int64_t>(k));
      request.stores[k] = store(temporary_for(result, next_buffer_++), result);
    }
    queue_.push_back(std::move(request));
  }

  static bool is_call(const Request& request) { return is_call_result(request.stores[0].src(1)); }

  // --- one kernel ------------------------------------------------------------------------------

  Pending make_kernel(const Request& request) {
    current_ = {};
    current_.request = request;
    slots_.clear();
    if (is_transfer(request.stores[0].src(1))) return make_transfer(request.stores[0]);
    if (is_call(request)) return make_call(request);
    Indexer indexer(*this, strict_);
    const UOp ast = rewrite(sink(make_nests(request.stores, indexer)), kernel_rules(strict_));
    current_.ast = rewrite(share_commuted(rewrite(without_promises(ast), kernel_rules(strict_))),
                           kernel_rules(strict_));
    return std::move(current_);
  }

  std::vector<UOp> make_nests(std::span<const UOp> wanted, Indexer& indexer) {
    const bool together = share_loops(wanted);
    std::vector<UOp> nests, stores, ranges;
    Indices at;
    for (const UOp& s : wanted) {
      if (!together || stores.empty()) at = indexer.open_loops(s.src(1), ranges);
      stores.push_back(make_store(s, at, nests, indexer));
      if (!together) nests.push_back(closed(stores.back(), ranges, {&s, 1}));
    }
    if (together)
      nests.push_back(closed(stores.size() == 1 ? stores[0] : group(stores), ranges, wanted));
    return nests;
  }

  // `earlier`: the closed loops of this kernel that may have written the same buffer.
  UOp make_store(const UOp& wanted, const Indices& at, const std::vector<UOp>& earlier,
                 Indexer& indexer) {
    UOp gate;
    UOp address = address_of(wanted.src(0), at, gate, indexer);
    if (!earlier.empty())
      address =
          with_sources(address, std::vector<UOp>{after(address.src(0), earlier), address.src(1)});
    if (wanted.src().size() == 3)
      gate = conjunction(gate, indexer.element(wanted.src(2), aligned(wanted.src(2), at)));
    const UOp value = indexer.element(wanted.src(1), at);
    return is_true(gate) ? store(address, value) : store(address, value, gate);
  }

  // The address of an element of a view: its place is pushed down to the memory.
  UOp address_of(UOp view, Indices at, UOp& gate, Indexer& indexer) {
    while (is_movement(view.op())) {
      UOp inside;
      at = view.is(Op::Index) ? indexer.indexed_place(view, at, inside) : moved(view, at, inside);
      gate = conjunction(gate, inside);
      view = UOp(view.src(0));
    }
    const UOp shape = view.shape();
    return index(kernel_param(memory_of_value(view), view.dtype(), product(shape)),
                 {flat_index(shape, at)});
  }

  // A copy between devices: the runtime moves the bytes, no kernel is compiled.
  Pending make_transfer(const UOp& store) {
    const UOp source = read(store.src(1).src(0));
    current_.ast = UOp::make(Op::CustomFunction, {}, std::string(copy_function));
    current_.buffers = {written_memory(store), source};
    return std::move(current_);
  }

  // A kernel made by hand, or a function of the host: slots are results, then arguments.
  Pending make_call(const Request& request) {
    const UOp& call = request.stores[0].src(1).src(0);
    const UOp& body = call.src(0);
    current_.ast = body.is(Op::Sink) ? rewrite(flat_kernel(body).ast, kernel_rules(strict_)) : body;
    for (const UOp& s : request.stores) current_.buffers.push_back(written_memory(s));
    for (const UOp& argument : sources_outside_body(call))
      current_.buffers.push_back(read(argument));
    return std::move(current_);
  }

  // --- what a kernel reads ---------------------------------------------------------------------

  bool is_read(const UOp& node) override { return static_cast<bool>(memory_of_value(node)); }

  void wait_for(const UOp& after) override {
    require(after);
    current_.reads.push_back(after);
  }

  UOp param_of(const UOp& node, DType dtype, const UOp& elements) override {
    return kernel_param(read(node), dtype, elements);
  }

  // A buffer that is read with two dtypes (a Bitcast to another item size) has a slot for each: a
  // Param says one dtype.
  UOp kernel_param(const UOp& memory, DType dtype, const UOp& elements) {
    const auto [it, fresh] =
        slots_.try_emplace({memory.node(), dtype}, static_cast<int64_t>(slots_.size()));
    if (fresh) current_.buffers.push_back(memory);
    return param(it->second, stack(std::vector<UOp>{elements}), dtype);
  }

  // The memory of a node that this kernel reads.
  UOp read(const UOp& node) {
    UOp state = node;
    while (shows_memory(state.op()) && !state.is(Op::After)) state = UOp(state.src(0));
    require(state);
    current_.reads.push_back(state);
    for (const UOp& other : state.is(Op::After) ? state.src().subspan(1) : std::span<const UOp>())
      if (other.is(Op::After)) current_.waits.push_back(memory_of_value(other));
    return memory_of_value(state);
  }

  Footprint footprint_of(const Pending& pending) const {
    Footprint out{pending.reads, {}, pending.request.afters, is_check(pending.ast), 0, {}, {}};
    out.content = contents_of(toposort(pending.ast)).back();
    for (const UOp& s : pending.request.stores) {
      if (const UOp version = versions_.of(s.src(0))) out.overwrites.push_back(version);
      out.stored.push_back(written_memory(s));
    }
    for (const UOp& b : pending.buffers)
      if (std::find(out.stored.begin(), out.stored.end(), b) == out.stored.end())
        out.memory.push_back(b);
    return out;
  }

  UOp in_order(const KernelOrder& order) const {
    std::vector<UOp> calls;
    for (const size_t k : order.sequence)
      calls.push_back(kernel_call(kernels_[k].ast, kernels_[k].buffers,
                                  reason_of_after(kernels_[k].request.afters[0]), {},
                                  kernels_[k].waits));
    return UOp::make(Op::Linear, calls);
  }

  UOp program_;
  bool strict_;
  const Versions& versions_;
  int64_t next_buffer_;
  std::deque<Request> queue_;
  std::vector<Pending> kernels_;
  absl::flat_hash_map<const Node*, std::vector<UOp>> results_;  // of a Call: Afters
  absl::flat_hash_set<const Node*> started_;

  // of the kernel being made
  Pending current_;
  absl::flat_hash_map<std::pair<const Node*, DType>, int64_t> slots_;
};

}  // namespace

UOp index_kernels(const UOp& program, bool strict) {
  UOp current = program, schedule;
  while (true) {
    const Versions versions(current);
    const std::vector<UOp> to_copy = Splitter(current, versions, strict).run(schedule);
    if (to_copy.empty()) return schedule;
    current = with_copies_of(current, to_copy, versions);
  }
}

}  // namespace koine

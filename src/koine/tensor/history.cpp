// How values were computed: what a gradient may be asked for, and what is refused.
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/base/interrupt.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/tensor/recording.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/gradient.hpp"

namespace koine {
namespace {

// Storages, held weakly. One mutex: gradients are not a hot path.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<void>> storages;
};
Registry& gradient_registry() {  // those with requires_grad
  static auto* registry = new Registry;
  return *registry;
}

// A gradient passes through floats and through calls.
bool may_pass(const UOp& u) { return is_float(u.dtype()) || u.dtype() == DType::Void; }

// Whether a gradient may be asked through a node.
bool is_passable(const UOp& u) {
  return may_pass(u) && !u.is(Op::Tuple) && (!u.is(Op::Detach) || u.is(Mark::Leaf));
}

bool reads_memory(const UOp& u) { return (u.node()->ops_below & mask_of(Op::Buffer)) != 0; }

constexpr size_t most_sources = 256;

// Adds to `past` the nodes of a graph that a gradient may be asked for, with those that memory
// below was computed from. A graph of constants alone adds none.
void add_sources(storage::Past& past, const UOp& graph) {
  absl::InlinedVector<const Node*, 16> stack{graph.node()};
  absl::flat_hash_set<const Node*> seen;  // at most a bounded part of the graph
  seen.reserve(16);
  absl::InlinedVector<uint64_t, 32> ids;
  bool depends = false;
  while (!stack.empty()) {
    const Borrowed borrowed(stack.back());
    const UOp& u = borrowed;
    stack.pop_back();
    if (!seen.insert(u.node()).second) continue;
    if (seen.size() > most_sources) {
      past.too_many = true;
      return;
    }
    if (is_float(u.dtype())) ids.push_back(u.id());
    depends = depends || u.is(Op::Buffer) || u.is(Op::Param) || (u.is(Mark::Leaf) && u != graph);
    if (const auto below = storage::past(u)) {
      past.computed_along = past.computed_along || below->computed_along;
      if (below->too_many) {
        past.too_many = true;
        return;
      }
      ids.insert(ids.end(), below->sources.begin(), below->sources.end());
    }
    if (u.is(Op::Detach)) continue;
    for (size_t i = u.is(Op::Function) || u.is(Op::Call) ? 1 : 0; i < u.src().size(); ++i)
      if (may_pass(u.src(i))) stack.push_back(u.src(i).node());
  }
  if (!depends) return;
  ids.insert(ids.end(), past.sources.begin(), past.sources.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  past.too_many = past.too_many || ids.size() > most_sources;
  past.sources.clear();
  if (!past.too_many) past.sources.assign(ids.begin(), ids.end());
}

void note_graph(const UOp& buffer, const UOp& graph) {
  storage::Past added;
  add_sources(added, graph);
  if (!added.too_many && added.sources.empty()) return;
  // Memory that was made for a value is younger than all that the value is computed from.
  added.clock = graph.id() < buffer.id() ? buffer.id() : storage::now();
  storage::change_past(buffer, [&](storage::Past& past) {
    past.clock = added.clock;
    past.too_many = added.too_many;
    past.computed_along = past.computed_along || added.computed_along;
    past.sources = std::move(added.sources);
  });
}

}  // namespace

// --- what leads to leaves ------------------------------------------------------------------------

Tensor::History::Leading::Leading(std::span<const UOp> values, const Storages& leaves)
    : values_(values), states_(shared_per_value * values.size()) {
  for (const auto& s : leaves) {
    const std::lock_guard lock(s->mutex);
    leaves_.add(s->current.node());
  }
}

// A step of training asks for many values that all lead to its parameters: a path from each to one
// that is known is short, and all of its graph need not be looked at.
void Tensor::History::Leading::walk(bool reads_results) {
  if (leaves_.size() == 0) return;
  bool may_have_parts = reads_results;
  for (const UOp& value : values_) {
    follow(value, states_, nullptr);
    may_have_parts = may_have_parts || has_effects(value) ||  // see engine/updates
                     (reads_memory(value) && !contains(value));
  }
  if (may_have_parts) look_beside();
}

// Looks at all of the graphs for parts that lead to no leaf.
void Tensor::History::Leading::look_beside() {
  if (std::none_of(values_.begin(), values_.end(), [&](const UOp& v) { return contains(v); }))
    return;
  States states(shared_per_value * values_.size());
  std::vector<const Node*> beside;
  for (const UOp& value : values_) follow(value, states, &beside);
  find_parts(states, std::move(beside));
}

// A node leads where a source does. What a leading node reads that does not goes to `beside`; where
// nobody asks for that, the first source that leads is enough.
void Tensor::History::Leading::follow(const UOp& root, States& states,
                                      std::vector<const Node*>* beside) const {
  struct Open {
    const Node* node;
    std::span<const UOp> rest;
    size_t beside;  // how many there were before its sources
    bool leads;
  };
  constexpr OpMask of_leaves = mask_of(Op::Buffer) | mask_of(Op::Detach) | mask_of(Op::Param);
  std::vector<Open> stack;
  std::vector<const Node*> plain;  // sources of what is open that do not lead
  auto meet = [&](const UOp& u) {
    if ((u.node()->ops_below & of_leaves) == 0) return;
    const State* known = stack.empty() || u.use_count() > 1 ? states.find(u.node()) : nullptr;
    if (known == nullptr && is_passable(u)) {
      const bool leaf = mask_of(u.op()) & of_leaves && leaves_.contains(u.node());
      stack.push_back({u.node(), sources_outside_body(u), plain.size(), leaf});
    } else if (!stack.empty() && known != nullptr && *known == State::Leads) {
      stack.back().leads = true;
    } else if (!stack.empty()) {
      plain.push_back(u.node());
    }
  };
  // Who has one user alone is not met again; values are asked for.
  auto note = [&](size_t depth, const Open& o) {
    if (depth == 0 || o.node->references.load(std::memory_order_relaxed) > 1)
      states.set(o.node, o.leads ? State::Leads : State::Plain);
  };
  meet(root);
  while (!stack.empty()) {
    Open& top = stack.back();
    if (top.leads && beside == nullptr) {
      for (size_t i = 0; i < stack.size(); ++i) {
        stack[i].leads = true;
        note(i, stack[i]);
      }
      return;
    }
    if (!top.rest.empty()) {
      const UOp& source = top.rest.front();
      top.rest = top.rest.subspan(1);
      meet(source);
      continue;
    }
    const Open done = top;
    stack.pop_back();
    note(stack.size(), done);
    if (done.leads)
      beside->insert(beside->end(), plain.begin() + static_cast<std::ptrdiff_t>(done.beside),
                     plain.end());
    plain.resize(done.beside);
    if (stack.empty()) return;
    if (done.leads)
      stack.back().leads = true;
    else
      plain.push_back(done.node);
  }
}

// What is, or may be once the values are computed, in memory.
void Tensor::History::Leading::find_parts(States& states, std::vector<const Node*> pending) {
  NodeNumbers requested;
  for (const UOp& value : values_) requested.add(value.node());
  const bool any = std::any_of(values_.begin(), values_.end(), has_effects);  // see engine/updates
  while (!pending.empty()) {
    const Borrowed borrowed(pending.back());
    const UOp& u = borrowed;
    pending.pop_back();
    if (u.is(Op::Buffer) || !reads_memory(u)) continue;
    if (u.use_count() > 1) {
      State& state = states[u.node()];
      if (state == State::Leads || state == State::Seen) continue;
      state = State::Seen;
    }
    if (any || is_watched(u) || requested.contains(u.node())) parts_.push_back(u.node());
    for (const UOp& s : sources_outside_body(u)) pending.push_back(s.node());
  }
}

bool Tensor::History::Leading::contains(const UOp& u) const {
  const State* state = states_.find(u.node());
  return state != nullptr && *state == State::Leads;
}

std::vector<UOp> Tensor::History::Leading::without_old_parts(const std::vector<UOp>& graphs) const {
  Substitution known;
  for (const Node* n : parts_) {
    const UOp u = UOp::share(n), buffer = realized_buffer(u);
    if (!buffer) continue;
    known.emplace(u, buffer);
    if (!storage::has_past(buffer)) note_graph(buffer, u);
  }
  if (graphs.empty() || known.empty()) return graphs;
  const UOp out = substitute(sink(graphs), known);
  return {out.src().begin(), out.src().end()};
}

// --- leaves --------------------------------------------------------------------------------------

Tensor::History::Storages Tensor::History::leaves() {
  Storages out;
  const std::lock_guard lock(gradient_registry().mutex);
  for (const auto& weak : gradient_registry().storages)
    if (auto s = std::static_pointer_cast<Storage>(weak.lock()); s && s->requires_grad)
      out.push_back(std::move(s));
  return out;
}

void Tensor::History::add_leaf(const std::shared_ptr<Storage>& storage) {
  const std::lock_guard lock(gradient_registry().mutex);
  auto& list = gradient_registry().storages;
  std::erase_if(list, [&](const std::weak_ptr<void>& w) {
    const auto known = w.lock();
    return !known || known == storage;
  });
  list.push_back(storage);
}

UOp Tensor::History::leaf_of(const UOp& value) {
  return UOp::make(Op::Detach, {value}, MarkArg{Mark::Leaf, fresh_slot()});
}

void Tensor::History::own_memory(const std::shared_ptr<Storage>& storage) {
  const std::lock_guard lock(storage->mutex);
  UOp& current = storage->current;
  const bool own = current.is(Op::Buffer) && memory_of(current) && current.use_count() == 1;
  if (!own) {
    const UOp memory = koine::realize({leaf_of(current)})[0];
    const uint64_t id = current.id();
    const bool was_memory = current.is(Op::Buffer);
    replace(storage, memory);
    storage->waiting = {};
    if (!was_memory) storage->computed_from = id;
  }
  storage->required_since = koine::storage::now();
}

NodeList Tensor::History::below(const UOp& root) { return toposort(root, is_passable); }

bool Tensor::History::reaches_leaf(const std::vector<UOp>& values) {
  Leading leading(values, leaves());
  leading.walk(false);
  return std::any_of(values.begin(), values.end(),
                     [&](const UOp& value) { return leading.contains(value); });
}

// --- computing -----------------------------------------------------------------------------------

void Tensor::History::set_current(Storage& storage, UOp value) {
  for (const Impl* view : storage.seen) view->seen = {};
  storage.seen.clear();
  storage.current = std::move(value);
  storage.chain = Storage::Chain::None;
  storage.simple_writes = 0;
}

UOp Tensor::History::former(const Storage& storage) {
  if (storage.waiting.before || storage.chain == Storage::Chain::None)
    return storage.waiting.before;
  UOp u = storage.current;
  if (realized_buffer(u)) return u;
  while (u.is(Op::After)) u = u.src(0);
  u = u.src(0);  // what was copied
  return storage.chain == Storage::Chain::Kept ? u.src(0) : u;
}

namespace {

// What a node reads was made before it.
bool reads(const UOp& value, const UOp& earlier) {
  bool found = false;
  toposort(value, [&](const UOp& u) {
    found |= u == earlier;
    return !found && u.id() > earlier.id();
  });
  return found;
}

// Whether only a lack of memory stops it.
bool surely_computes(const UOp& value) {
  constexpr OpMask able = mask_of(Op::Assume) | mask_of(Op::CustomFunction) | mask_of(Op::Call) |
                          mask_of(Op::Function) | mask_of(Op::Scan) | mask_of(Op::While) |
                          mask_of(Op::Switch);
  return (value.node()->ops_below & able) == 0;
}

}  // namespace

void Tensor::History::replace(const std::shared_ptr<Storage>& storage, UOp value) {
  const auto owner = storage->gradient_of.lock();
  if (owner && owner->grad) {
    KOINE_REQUIRE(owner->grad.id() == storage->gradient_id, Value,
                  "assign: this is the gradient of shape {} as it was before backward() or another "
                  "assignment changed it: take grad again",
                  shape_text(owner->grad));
    if (is_tracing()) Recording::require_allowed(*owner, "assign: to the gradient of a tensor");
    owner->grad = value;
    storage->gradient_id = value.id();
  }
  const UOp current = storage->current, old = former(*storage);
  if (current && !current.is(Op::Const))
    storage::change_past(current, [&](storage::Past& past) {
      past.successor = storage;
      past.was_leaf = storage->requires_grad;
    });
  Storage::Waiting& waiting = storage->waiting;
  waiting.before = old ? old : current;
  if (current) waiting.ids.push_back(current.id());
  if (old && !reads(value, current)) {
    if (surely_computes(current)) waiting.unread.clear();
    waiting.unread.push_back(current);
  }
  set_current(*storage, std::move(value));
  storage->graph = {};
  storage->computed_from = 0;
  if (!storage->current.is(Op::Buffer)) add_state(storage);
}

void Tensor::History::settle_computed(const std::shared_ptr<Storage>& storage) {
  UOp value;
  {
    const std::lock_guard lock(storage->mutex);
    value = storage->current;
  }
  if (value.is(Op::Buffer)) return;
  const UOp buffer = realized_buffer(value);
  if (!buffer) return;
  const std::vector<UOp> values{value};
  Leading leading(values, leaves());
  leading.walk(true);
  settle({storage}, values, {&buffer, 1}, Graphs::Drop, leading);
}

void Tensor::History::forget(const UOp& buffer, const UOp& value) { note_graph(buffer, value); }

void Tensor::History::settle(const Storages& storages, std::span<const UOp> values,
                             std::span<const UOp> buffers, Graphs graphs, const Leading& leading) {
  std::vector<UOp> lead;
  for (const UOp& value : values)
    if (leading.contains(value)) lead.push_back(value);
  const std::vector<UOp> kept = leading.without_old_parts(lead);
  size_t next = 0;
  for (size_t i = 0; i < storages.size(); ++i) {
    const UOp graph = leading.contains(values[i]) ? kept[next++] : UOp();
    Storage& s = *storages[i];
    const std::lock_guard lock(s.mutex);
    if (!(s.current == values[i])) continue;
    s.waiting = {};
    if (buffers[i] == values[i]) {
      if (graphs == Graphs::Drop) s.graph = {};
      continue;
    }
    if (!s.requires_grad && graph) {
      set_current(s, graph);
      if (!(s.current == values[i])) storage::set_result(s.current, buffers[i]);
      continue;
    }
    s.computed_from = values[i].id();
    set_current(s, buffers[i]);
    s.graph = {};
    if (s.requires_grad) continue;
    forget(buffers[i], values[i]);
    if (graphs == Graphs::Keep && storage::has_past(buffers[i])) {
      s.graph = values[i];
      storage::change_past(buffers[i], [&](storage::Past& past) { past.keeper = storages[i]; });
    }
  }
}

void Tensor::History::leave_base(const Tensor& view) {
  const Impl& i = view.self();
  Storage& s = *i.storage;
  const std::lock_guard lock(s.mutex);
  if (!i.view || i.storage.use_count() != 1 || s.current.use_count() != 1) return;
  const bool plain = s.chain == Storage::Chain::None && !s.graph && s.computed_from == 0 &&
                     !s.waiting.before && !s.requires_grad && !s.grad && s.gradient_id == 0 &&
                     s.along.empty();
  if (!plain || s.current.is(Op::Buffer) || realized_buffer(s.current)) return;
  if (largest_numel(i.view) >= largest_numel(s.current)) return;
  s.current = substitute(i.view, {{view_base(s.current), s.current}});
  i.view = {};
}

namespace {

bool computes(const UOp& value) {
  try {
    (void)koine::realize({value});
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

// One that reads a bad one fails with it, so among those below one value the last that computes is
// found by halves.
UOp Tensor::History::before_failure(const Storage& storage) {
  const std::unordered_set<uint64_t> ids(storage.waiting.ids.begin(), storage.waiting.ids.end());
  std::vector<UOp> last = storage.waiting.unread;
  last.push_back(storage.current);
  for (; !last.empty(); last.pop_back()) {
    std::vector<UOp> earlier;
    for (const UOp& u : toposort(last.back()))
      if (ids.contains(u.id()) && !(u == storage.current)) earlier.push_back(u);
    const auto failing = std::partition_point(earlier.begin(), earlier.end(), computes);
    if (failing != earlier.begin()) return *(failing - 1);
  }
  return former(storage);
}

void Tensor::History::compute(const std::vector<Tensor>& tensors, Graphs graphs) {
  Storages storages;
  std::vector<UOp> values;
  for (const Tensor& t : tensors) {
    leave_base(t);
    storages.push_back(t.self().storage);
    const std::lock_guard lock(storages.back()->mutex);
    values.push_back(storages.back()->current);
  }
  if (values.empty()) return;
  if (is_tracing())
    require_no_trace(fmt::format("realizing a tensor of shape {}", shape_text(values[0])));
  try {
    compute_with_states(values, storages, leaves(), 0,
                        [&](std::span<const UOp> buffers, const Leading& leading) {
                          settle(storages, values, buffers, graphs, leading);
                        });
  } catch (const Interrupted&) {  // nothing is wrong with them
    throw;
  } catch (...) {
    auto fails = [&](const UOp& value) { return values.size() == 1 || !computes(value); };
    for (size_t i = 0; i < storages.size(); ++i) {
      Storage& s = *storages[i];
      const std::lock_guard lock(s.mutex);
      if (!former(s) || !(s.current == values[i]) || !fails(values[i])) continue;
      set_current(s, before_failure(s));
      s.waiting = {};
      s.graph = {};
      s.computed_from = 0;
    }
    throw;
  }
}

// --- gradients -----------------------------------------------------------------------------------

UOp Tensor::History::with_graphs(const UOp& value, const std::unordered_set<UOp>& targets) {
  UOp root = value;
  while (true) {
    Substitution kept;
    for (const UOp& u : below(root)) {
      if (targets.contains(u)) continue;
      const auto past = storage::past(u);
      const auto keeper = past ? std::static_pointer_cast<Storage>(past->keeper.lock()) : nullptr;
      if (!keeper) continue;
      const std::lock_guard lock(keeper->mutex);
      if (keeper->current == u && keeper->graph) kept.emplace(u, keeper->graph);
    }
    if (kept.empty()) return root;
    root = substitute(root, kept);
  }
}

struct Tensor::History::Below {
  explicit Below(const UOp& root) : nodes(below(root)) {
    for (const UOp& u : nodes) {
      by_id.emplace(u.id(), u.node());
      if (auto past = storage::past(u)) pasts.push_back(*std::move(past));
    }
  }

  NodeList nodes;
  absl::flat_hash_map<uint64_t, const Node*> by_id;
  std::vector<storage::Past> pasts;  // of those that have one
};

std::vector<UOp> Tensor::History::nodes_of(const Tensor& target, const Below& below) {
  const Impl& i = target.self();
  std::vector<UOp> out{target.uop()};
  uint64_t former;
  {
    const std::lock_guard lock(i.storage->mutex);
    former = i.storage->computed_from;
  }
  if (const auto it = below.by_id.find(former); it != below.by_id.end()) {
    const UOp u = UOp::share(it->second);
    out.push_back(i.view ? substitute(i.view, {{view_base(u), u}}) : u);
  }
  return out;
}

namespace {

template <class Storages, class Storage>
void add_new(Storages& storages, const std::shared_ptr<Storage>& storage) {
  if (std::find(storages.begin(), storages.end(), storage) == storages.end())
    storages.push_back(storage);
}

}  // namespace

void Tensor::History::compute_along(Storage& leaf, const std::shared_ptr<Storage>& storage) {
  std::erase_if(leaf.along, [&](const std::weak_ptr<Storage>& known) {
    const auto held = known.lock();
    return !held || held == storage;
  });
  leaf.along.push_back(storage);
}

void Tensor::History::drop_failing_along(const std::vector<Tensor>& targets,
                                         const Storages& storages, const std::vector<UOp>& values) {
  for (size_t k = 0; k < storages.size(); ++k) {
    if (computes(values[k])) continue;
    for (const Tensor& target : targets)
      std::erase_if(target.self().storage->along, [&](const std::weak_ptr<Storage>& known) {
        return known.lock() == storages[k];
      });
  }
}

void Tensor::compute_with(const Tensor& leaf) const {
  if (!is_tracing()) History::compute_along(*leaf.self().storage, self().storage);
}

void Tensor::History::add_along(const std::vector<Tensor>& targets, Storages& storages) {
  for (const Tensor& target : targets)
    for (const auto& weak : target.self().storage->along)
      if (const auto storage = weak.lock()) {
        const std::lock_guard lock(storage->mutex);
        if (!storage->current.is(Op::Buffer) && !realized_buffer(storage->current))
          add_new(storages, storage);
      }
  Storages held = states();
  std::erase_if(held, [](const auto& storage) {
    const std::lock_guard lock(storage->mutex);
    return !storage->current.is(Op::Detach) || storage->current.is(Mark::Leaf);
  });
  if (held.empty()) return;
  std::unordered_set<UOp> now;
  for (const Tensor& target : targets) now.insert(target.uop());
  for (const auto& storage : held) {
    const std::lock_guard lock(storage->mutex);
    const NodeList below = toposort(storage->current);
    if (std::any_of(below.begin(), below.end(), [&](const UOp& u) { return now.contains(u); }))
      add_new(storages, storage);
  }
}

void Tensor::History::require_known(const Tensor& target, size_t position, const Below& below,
                                    bool found) {
  const auto& storage = target.self().storage;
  const std::lock_guard lock(storage->mutex);
  const uint64_t id = storage->current.id(), former = storage->computed_from;
  for (const storage::Past& past : below.pasts) {
    if (found && !past.computed_along) continue;
    KOINE_REQUIRE(past.successor.lock() != storage, Value,
                  "gradient: target {} of shape {} has got another value (by an assignment, or "
                  "memory of its own by requires_grad()) since this was computed from it: compute "
                  "this again",
                  position, shape_text(storage->current));
    auto listed = [&](uint64_t node) {
      return std::binary_search(past.sources.begin(), past.sources.end(), node);
    };
    const bool watched = storage->requires_grad && storage->required_since < past.clock;
    const uint64_t oldest = former != 0 ? std::min(former, id) : id;
    const bool lost =
        past.too_many ? !watched && oldest < past.clock : listed(id) || listed(former);
    KOINE_REQUIRE(!lost, Value,
                  "gradient: how this depends on target {} of shape {} was let go when a value "
                  "between them became data, by realize() or an assignment to what was computed: "
                  "call requires_grad() on the target before computing with it, or ask for the "
                  "gradient before realize()",
                  position, shape_text(storage->current));
  }
}

void Tensor::History::require_current(const UOp& root, const std::unordered_set<UOp>& nodes) {
  toposort(root, [&](const UOp& u) {
    if (!may_pass(u) || u.is(Op::Tuple)) return false;
    if (const auto past = storage::past(u); past && past->was_leaf) {
      const auto now = std::static_pointer_cast<Storage>(past->successor.lock());
      KOINE_REQUIRE(!now || !now->requires_grad, Value,
                    "backward: a tensor of shape {} that requires a gradient has got a new value "
                    "since this was computed from it (by an optimiser's step or an assignment): "
                    "compute this again, detach() what shall be a constant, or ask for the "
                    "gradient() of the others",
                    shape_text(u));
    }
    return !nodes.contains(u) && !u.is(Op::Detach);
  });
}

namespace {

UOp ones_for(const UOp& root) {
  return tensor::broadcast_scalar(constant(root.dtype(), 1), root.sizes());
}

// Why nothing that requires a gradient lies below.
[[noreturn]] void no_leaf(std::span<const UOp> order) {
  bool replaced = false, let_go = false;
  for (const UOp& u : order)
    if (const auto past = storage::past(u)) {
      replaced = replaced || past->was_leaf;
      let_go = let_go || past->too_many || !past->sources.empty();
    }
  const char* why =
      replaced ? "the tensors that require a gradient have got new values since this was computed "
                 "(by an optimiser's step or an assignment): compute it again from the new ones"
      : let_go
          ? "nothing below requires a gradient, and some of it became data by realize() before: "
            "call requires_grad() on the parameters before computing with them"
          : "nothing here requires a gradient: call requires_grad() on the parameters";
  raise(ErrorKind::Value, "backward: {}", why);
}

// What a gradient reads may have been written over in place, where nothing held it but the graph of
// what was looked at.
void require_memory(const UOp& root, const std::vector<UOp>& grads) {
  if (!has_effects(root)) return;
  std::vector<UOp> known;
  for (const UOp& g : grads)
    if (g) known.push_back(g);
  // What is computed by now is not computed from that memory again.
  const auto is_computed_again = [](const UOp& u) { return !realized_buffer(u); };
  for (const UOp& u : toposort(sink(known), is_computed_again))
    KOINE_REQUIRE(!u.is(Op::Buffer) || memory_of(u), Value,
                  "gradient: this needs a value of shape {} that an assignment through a view has "
                  "written over since: call requires_grad() on the target before computing with "
                  "it, ask for the gradient before looking, or clone() what is assigned to",
                  shape_text(u));
}

// A number that every equal literal shares is no variable.
void require_variable(const UOp& target, size_t position) {
  UOp u = target;
  while (u.is(Op::Expand) || u.is(Op::Reshape)) u = u.src(0);
  KOINE_REQUIRE(
      !u.is(Op::Const), Value,
      "gradient: target {} is the number {}, which it shares with every equal one: make it "
      "by full() or from data, or call requires_grad() on it before",
      position, const_double(u));
}

}  // namespace

void Tensor::backward() const {
  if (is_tracing()) Recording::require_recorded("backward: it adds to grad() of tensors");
  Recording::ask_for_gradients();
  KOINE_REQUIRE(numel() == 1, Value, "backward: shape {} has {} elements; reduce to a scalar first",
                shape_text(uop()), numel());
  std::unordered_map<UOp, History::Storages> leaves;
  std::unordered_map<uint64_t, std::shared_ptr<Storage>> former;
  std::unordered_set<UOp> nodes;
  for (const auto& s : History::leaves()) {
    const std::lock_guard lock(s->mutex);
    leaves[s->current].push_back(s);
    nodes.insert(s->current);
    if (s->computed_from != 0) former.emplace(s->computed_from, s);
  }
  const UOp root = History::with_graphs(uop(), nodes);
  const NodeList order = History::below(root);
  std::vector<UOp> targets;
  for (const UOp& u : order) {
    if (const auto it = former.find(u.id()); it != former.end()) leaves[u].push_back(it->second);
    if (leaves.contains(u)) targets.push_back(u);
  }
  Recording::require_known_history(order);
  if (targets.empty()) no_leaf({order.begin(), order.end()});
  History::require_current(root, nodes);
  const std::vector<UOp> outputs{root}, seeds{ones_for(root)};
  const std::vector<UOp> grads = koine::gradient(outputs, seeds, targets);
  require_memory(root, grads);
  if (is_tracing())
    for (const UOp& target : targets)
      for (const auto& s : leaves[target])
        Recording::require_allowed(*s, fmt::format("backward: it adds to grad() of a tensor of "
                                                   "shape {}",
                                                   shape_text(s->current)));
  for (size_t k = 0; k < targets.size(); ++k)
    for (const auto& s : leaves[targets[k]])
      if (grads[k]) {
        s->grad = s->grad ? add(s->grad, grads[k]) : kept_value(grads[k]);
        if (!is_tracing() && !self().view) History::compute_along(*s, self().storage);
      }
}

std::vector<Tensor> Tensor::gradient(const std::vector<Tensor>& targets) const {
  Recording::ask_for_gradients();
  KOINE_REQUIRE(numel() == 1, Value, "gradient: shape {} has {} elements; reduce to a scalar first",
                shape_text(uop()), numel());
  std::unordered_map<UOp, size_t> first;
  std::unordered_set<UOp> stop;
  for (size_t i = 0; i < targets.size(); ++i) {
    const UOp node = targets[i].uop();
    require_variable(node, i);
    const size_t earlier = first.emplace(node, i).first->second;
    KOINE_REQUIRE(targets[earlier].storage_id() == targets[i].storage_id(), Value,
                  "gradient: targets {} and {} of shape {} are equal expressions, which are one "
                  "value: call requires_grad() on them, or clone() one, before computing with them",
                  earlier, i, shape_text(node));
    stop.insert(node);
  }
  const UOp root = History::with_graphs(uop(), stop);
  const History::Below below(root);
  Recording::require_known_history(below.nodes);
  std::vector<UOp> nodes;
  std::vector<size_t> owner;
  for (size_t i = 0; i < targets.size(); ++i)
    for (const UOp& node : History::nodes_of(targets[i], below)) {
      nodes.push_back(node);
      owner.push_back(i);
    }
  const std::vector<UOp> outputs{root}, seeds{ones_for(root)};
  const std::vector<UOp> grads = koine::gradient(outputs, seeds, nodes);
  require_memory(root, grads);
  std::vector<UOp> sums(targets.size());
  for (size_t k = 0; k < nodes.size(); ++k)
    if (UOp& sum = sums[owner[k]]; grads[k]) sum = sum ? add(sum, grads[k]) : grads[k];
  std::vector<Tensor> out;
  for (size_t i = 0; i < targets.size(); ++i) {
    History::require_known(targets[i], i, below, bool(sums[i]));
    out.push_back(sums[i] ? Tensor(kept_value(sums[i]))
                          : zeros(targets[i].shape(), targets[i].dtype()));
  }
  return out;
}

int64_t Tensor::history_bytes() const {
  auto memory_below = [](const UOp& u) { return u.is(Op::Buffer) ? u : realized_buffer(u); };
  UOp own = uop();
  while (is_view(own.op())) own = UOp(own.src(0));
  std::unordered_set<UOp> counted;
  if (const UOp memory = memory_below(own)) counted.insert(memory);
  int64_t bytes = 0;
  const UOp root = History::with_graphs(own, {});
  for (const UOp& u : toposort(root)) {
    const UOp memory = memory_below(u);
    if (!memory || !counted.insert(memory).second) continue;
    if (const auto held = memory_of(memory)) bytes += held->bytes();
  }
  return bytes;
}

Tensor& Tensor::requires_grad(bool on) {
  const Impl& i = self();
  KOINE_REQUIRE(!on || is_float(dtype()), Type,
                "requires_grad: {} tensors have no gradient: cast to a float dtype",
                dtype_name(dtype()));
  KOINE_REQUIRE(!i.view, Value, "requires_grad: this is a view; ask its base, or clone() it");
  if (is_tracing()) require_made_in(i.storage->trace, "requires_grad: of a tensor");
  if (on && !i.storage->requires_grad) {
    History::own_memory(i.storage);
    History::add_leaf(i.storage);
  }
  i.storage->requires_grad = on;
  return *this;
}

bool Tensor::is_leaf() const {
  Recording::ask_for_gradients();
  return !self().view && self().storage->requires_grad;
}
bool Tensor::has_grad() const {
  Recording::ask_for_gradients();
  return bool(self().storage->grad);
}
Tensor Tensor::grad() const {
  KOINE_REQUIRE(has_grad(), Value,
                "grad: there is no gradient yet: call requires_grad() before and backward() after "
                "the computation");
  Tensor out(self().storage->grad);
  Storage& handle = *out.self().storage;
  handle.gradient_of = self().storage;
  handle.gradient_id = self().storage->grad.id();
  return out;
}
void Tensor::zero_grad() {
  Recording::ask_for_gradients();
  if (is_tracing()) Recording::require_allowed(*self().storage, "zero_grad: of a tensor");
  self().storage->grad = {};
}
void Tensor::set_grad(const Tensor& gradient) {
  Recording::ask_for_gradients();
  if (is_tracing()) Recording::require_allowed(*self().storage, "set_grad: of a tensor");
  KOINE_REQUIRE(is_float(dtype()), Type,
                "set_grad: {} tensors have no gradient: cast to a float dtype",
                dtype_name(dtype()));
  KOINE_REQUIRE(gradient.shape() == shape(), Value,
                "set_grad: the gradient has shape {}, the tensor {}", shape_text(gradient.uop()),
                shape_text(uop()));
  const UOp value = gradient.as_literal() ? gradient.in_dtype("set_grad", dtype()) : gradient.uop();
  KOINE_REQUIRE(value.dtype() == dtype(), Type,
                "set_grad: the gradient is {}, the tensor {}: cast it", dtype_name(value.dtype()),
                dtype_name(dtype()));
  KOINE_REQUIRE(!value.device() || !uop().device() || value.device() == uop().device(), Device,
                "set_grad: the gradient is on {}, the tensor on {}: copy it there with to()",
                gradient.device(), device());
  self().storage->grad = kept_value(value);
}

}  // namespace koine

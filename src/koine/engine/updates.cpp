#include "koine/engine/updates.hpp"

#include <algorithm>

#include "koine/engine/engine.hpp"
#include "koine/engine/prepare.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/linear.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

NodeList without_results(const UOp& root) {
  return toposort(root, [](const UOp& u) { return !storage::result(u); });
}

// Whether an After stores into a private copy, not into memory that its user named.
bool is_update(const UOp& u) { return is_private_copy(strip_after(u)); }

int64_t bytes_of(const UOp& value) { return largest_numel(value) * item_size(value.dtype()); }

}  // namespace

Updates::Updates(const std::vector<UOp>& request, const std::function<bool(const UOp&)>& lasts,
                 bool in_place)
    : lasts_(lasts), originals_(request), graphs_(request), order_(UOp()) {
  const UOp root = inline_storing_functions(sink(request));
  graphs_.assign(root.src().begin(), root.src().end());
  order_ = without_results(root);
  for (const UOp& u : order_)
    for (const UOp& s : u.src()) ++uses_[s.node()];
  for (const UOp& g : graphs_) requested_.insert(g.node());
  find_roots();
  for (Root& r : roots_) choose_memory(r, in_place);
  rewrite();
}

std::vector<UOp> Updates::copies() const {
  std::vector<UOp> out;
  for (const Root& r : roots_)
    if (!r.in_place) out.push_back(r.memory);
  return out;
}

void Updates::find_roots() {
  for (const UOp& u : order_) {
    if (!u.is(Op::After)) continue;
    const UOp& base = u.src(0);
    auto number = root_of_.find(base.node());
    if (number == root_of_.end()) {
      if (!is_update(base) || (base.is(Op::After) && !storage::result(base))) {
        writes_in_place_ = true;  // into memory that its user named
        continue;
      }
      number = root_of_.emplace(base.node(), roots_.size()).first;
      roots_.push_back({base.node(), u.node()});
    }
    const size_t n = number->second;
    root_of_.emplace(u.node(), n);
    roots_[n].last = u.node();
  }
  for (const Root& r : roots_) settled_.insert(r.last);
}

// Memory for a root: what it copies, if that can be written in place.
void Updates::choose_memory(Root& root, bool in_place) {
  const Borrowed uncounted(root.node);
  const UOp& node = uncounted;
  UOp old = realized_buffer(node);
  if (!old && is_private_copy(node)) old = realized_buffer(node.src(0));
  const auto memory = old ? storage::memory(old) : nullptr;
  root.in_place = in_place && memory && !memory->is_shared() &&
                  old.device().name() == device_of(node) && !stores_into_what_was_seen(root, old) &&
                  nobody_wants(old);
  writes_in_place_ = writes_in_place_ || root.in_place;
  root.memory = root.in_place ? old
                              : buffer_from_host(node.shape(), node.dtype(), device_of(node),
                                                 nullptr, node.node()->placement.axes);
}

// Whether a view that is stored into would be, in this memory, a node that somebody has looked at:
// it stands for a buffer of its own.
bool Updates::stores_into_what_was_seen(const Root& root, const UOp& memory) const {
  const UOp base = UOp::share(root.node);
  for (const UOp& u : order_) {
    if (!u.is(Op::After)) continue;
    for (const UOp& s : u.src().subspan(1)) {
      if (!s.is(Op::Store)) continue;
      UOp below = s.src(0);
      while (is_movement(below.op())) below = UOp(below.src(0));
      if (!(below == base)) continue;
      for (UOp v = substitute(s.src(0), {{base, memory}}); !(v == memory); v = UOp(v.src(0)))
        if (storage::result(v)) return true;
    }
  }
  return false;
}

// Whether nobody can ask for the contents of a Buffer but this program, which computes what is held
// of the rest.
bool Updates::nobody_wants(const UOp& memory) {
  absl::flat_hash_set<const Node*> stale{memory.node()};
  std::vector<const Node*> held;
  uint32_t known = uses_[memory.node()] + 1;  // the handle of the caller
  for (const UOp& u : order_) {
    bool reads = false;
    for (const UOp& s : u.src()) {
      if (!stale.contains(s.node()) && storage::result(s) == memory) {  // it stands for the memory
        if (s.use_count() > uses_[s.node()]) return false;
        stale.insert(s.node());
        ++known;
      }
      reads = reads || stale.contains(s.node());
    }
    if (!reads || u.is(Op::Sink) || is_settled(u)) continue;
    stale.insert(u.node());
    if (u.use_count() > uses_[u.node()]) held.push_back(u.node());
  }
  return memory.use_count() <= known && keep_held(held, memory);
}

bool Updates::is_settled(const UOp& u) {
  if (settled_.contains(u.node())) return true;
  if (requested_.erase(u.node()) == 0 || !lasts_(u)) return false;
  settled_.insert(u.node());
  return true;
}

bool Updates::keep_held(const std::vector<const Node*>& held, const UOp& memory) {
  int64_t bytes = 0;
  for (const Node* n : held) {
    const UOp value = UOp::share(n);
    const bool computable = value.dtype() != DType::Void && value.dtype() != DType::Index &&
                            value.has_concrete_shape() && lasts_(value);
    if (!computable) return false;
    bytes += bytes_of(value);
    if (bytes > bytes_of(memory)) return false;
  }
  for (const Node* n : held) {
    originals_.push_back(UOp::share(n));
    graphs_.push_back(originals_.back());
    settled_.insert(n);
  }
  return true;
}

void Updates::rewrite() {
  // Their effects run, whatever becomes of the values that name them: an argument that a function
  // does not read is dropped.
  for (const Root& r : roots_)
    if (const UOp last = UOp::share(r.last);
        std::find(graphs_.begin(), graphs_.end(), last) == graphs_.end()) {
      originals_.push_back(last);
      graphs_.push_back(last);
    }
  Substitution known;
  for (const UOp& u : order_)
    for (const UOp& s : u.src())
      if (const UOp buffer = s.is(Op::Binary) ? UOp() : storage::result(s))
        known.emplace(s, buffer);
  for (const Root& r : roots_) {
    const UOp node = UOp::share(r.node);
    if (r.in_place) {
      known[node] = r.memory;
      continue;
    }
    const auto result = known.find(node);
    const UOp old = result != known.end() ? result->second : substitute(node.src(0), known);
    known[node] = after(r.memory, {store(r.memory, old)});
  }
  const UOp root = substitute(sink(graphs_), known);
  values_.assign(root.src().begin(), root.src().end());
}

void Updates::commit(std::vector<UOp>& results) const {
  for (const Root& r : roots_) {
    UOp buffer = r.memory;
    if (r.in_place) {
      buffer = new_buffer(r.memory.shape(), r.memory.dtype(), r.memory.device(),
                          r.memory.node()->placement.axes);
      storage::set_memory(buffer, storage::memory(r.memory));
      storage::set_memory(r.memory, nullptr);
      for (UOp& result : results)
        if (result == r.memory) result = buffer;
    }
    storage::set_result(UOp::share(r.last), buffer);
  }
}

}  // namespace koine

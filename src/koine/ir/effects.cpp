#include "koine/ir/effects.hpp"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <ranges>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"

namespace koine {

std::vector<UOp> stores_in(const UOp& effect) {
  std::vector<UOp> out, pending{effect};
  while (!pending.empty()) {
    const UOp u = pending.back();
    pending.pop_back();
    if (u.is(Op::Store)) out.push_back(u);
    if (!u.is(Op::Group) && !u.is(Op::End)) continue;
    for (size_t i = u.src().size(); i-- > 0;)
      if (u.src(i).dtype() == DType::Void) pending.push_back(u.src(i));
  }
  if (out.size() < 2) return out;
  absl::flat_hash_set<const Node*> later;
  std::vector<UOp> last;
  for (const UOp& store : std::views::reverse(out))
    if (later.insert(store.node()).second) last.push_back(store);
  return {last.rbegin(), last.rend()};
}

std::vector<UOp> afters_in(const UOp& dependency) {
  std::vector<UOp> out, pending{dependency};
  while (!pending.empty()) {
    const UOp u = pending.back();
    pending.pop_back();
    if (u.is(Op::After)) {
      out.push_back(u);
    } else if (u.is(Op::Group) || u.is(Op::End)) {
      for (size_t i = u.src().size(); i-- > 0;) pending.push_back(u.src(i));
    } else if (u.dtype() != DType::Void && has_effects(u)) {
      for (const UOp& below : toposort(u))
        if (below.is(Op::After)) out.push_back(below);
    }
  }
  return out;
}

bool shows_memory(Op op) {
  return op == Op::After || op == Op::Contiguous || op == Op::Detach ||
         op == Op::ContiguousBackward || op == Op::Fence;
}
bool is_view(Op op) {
  return op == Op::Reshape || op == Op::Permute || op == Op::Expand || op == Op::Flip ||
         op == Op::Shrink;
}
UOp stored_value(const UOp& store) {
  const UOp* value = &store.src(1);
  while (shows_memory(value->op()) && !value->is(Op::After)) value = &value->src(0);
  return *value;
}

bool is_private_copy(const UOp& u) { return u.is(Mark::Private); }
UOp private_copy(const UOp& value) {
  return UOp::make(Op::Contiguous, {value}, MarkArg{Mark::Private, fresh_slot()});
}
UOp kept_value(const UOp& value) {
  return value.is(Op::Buffer) && value.node()->foreign ? private_copy(value) : value;
}

bool has_effects(const UOp& root) { return (root.node()->ops_below & mask_of(Op::After)) != 0; }

bool bodies_store(const UOp& root) {
  const NodeList below = toposort(root);
  return std::any_of(below.begin(), below.end(), [](const UOp& u) {
    return u.is(Op::Function) && (u.src(0).node()->ops_below & mask_of(Op::Store)) != 0;
  });
}

Versions::Versions(const UOp& root) {
  if (!has_effects(root)) return;
  const NodeList order = toposort(
      root, [](const UOp& u) { return has_effects(u) && !u.is(Op::Function) && !u.is(Op::Tuple); });
  for (const UOp& u : order)
    if (u.is(Op::After)) add(u);
}

void Versions::add(const UOp& after) {
  const UOp base = of(after.src(0));
  bool next = false;  // whether it stores into what it passes through
  for (const UOp& dependency : after.src().subspan(1))
    for (const UOp& store : stores_in(dependency)) {
      const UOp version = of(store.src(0));
      KOINE_REQUIRE(version, Value, "Store: the target must be a view of a buffer, got {}",
                    op_name(store.src(0).op()));
      UOp& writer = overwritten_[version.node()];
      KOINE_REQUIRE(
          !writer || writer == after, Value,
          "After: two of them store into one state of a buffer of {} {}, and neither "
          "comes first: build the second on the first, as in after(first, {{store(...)}})",
          dtype_name(version.dtype()), shape_text(version));
      writer = after;
      next = next || version == base;
    }
  passed_.set(after.node(), next ? after : base);
}

UOp Versions::of(const UOp& view) const {
  const Node* n = view.node();
  while (n->op != Op::Param && n->op != Op::Buffer) {
    if (is_private_copy(Borrowed(n))) break;
    if (n->op == Op::After)
      if (const UOp* version = passed_.find(n)) return *version;
    const bool moves = is_movement(n->op) && n->op != Op::Stack && n->op != Op::Bitcast;
    if (!moves && n->op != Op::After && n->op != Op::Detach) return {};
    n = n->sources()[0].node();
  }
  const UOp memory = UOp::share(n);
  return is_variable(memory) ? UOp() : memory;
}

UOp Versions::overwritten_by(const UOp& version) const {
  const UOp* after = overwritten_.find(version.node());
  return after != nullptr ? *after : UOp();
}

std::unordered_map<UOp, std::vector<UOp>> loops_of_atomic_adds(std::span<const UOp> order) {
  std::unordered_map<UOp, std::vector<UOp>> out;
  auto lies_below = [](const UOp& u) {
    return (u.node()->ops_below & mask_of(Op::AtomicAdd)) != 0;
  };
  if (order.empty() || !lies_below(order.back())) return out;  // most kernels have none
  auto adds = [&](const UOp& u) {
    return u.is(Op::AtomicAdd) || ((u.is(Op::Group) || u.is(Op::End)) && lies_below(u));
  };
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& u = order[i];
    if (u.is(Op::AtomicAdd) || !adds(u)) continue;
    std::vector<UOp> loops = out[u];
    if (u.is(Op::End)) loops.insert(loops.end(), u.src().begin() + 1, u.src().end());
    for (const UOp& s : u.src().first(u.is(Op::End) ? 1 : u.src().size()))
      if (adds(s)) out[s].insert(out[s].end(), loops.begin(), loops.end());
  }
  return out;
}

}  // namespace koine

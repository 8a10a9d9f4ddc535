// Assignment: of whole tensors, through views, of many at once.
#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/base/interrupt.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/tensor/recording.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

// The movement ops of a view, from the view down to its base.
std::vector<UOp> chain_of(const UOp& view) {
  std::vector<UOp> out;
  for (UOp u = view; !u.is(Op::Param); u = u.src(0)) out.push_back(u);
  return out;
}

void require_single_places(const UOp& view) {
  if (view.has_concrete_shape() && view.numel() == 0) return;
  for (const UOp& u : chain_of(view))
    KOINE_REQUIRE(!u.is(Op::Expand) || u.shape() == u.src(0).shape(), Value,
                  "assign: this view repeats elements (expand of {} to {}), so one place would get "
                  "several values: assign to the tensor it is a view of, or clone() the view",
                  shape_text(u.src(0)), shape_text(u));
}

// A loop that writes and never looks would make a program without bound: after this many writes
// they run. A value that takes more than a few ops may be shared with what is computed later, and
// would then be computed again.
constexpr int most_simple_writes = 128;
// So do as many values that the next one does not read and that may fail: each of them is held, as
// it may be the last good one.
constexpr size_t most_unread = 16;
constexpr size_t most_simple_ops = 24;

bool is_simple(const UOp& value, const UOp& memory) {
  size_t count = 0;
  toposort(value, [&](const UOp& u) {
    return count <= most_simple_ops && !(u == memory) && u.dtype() != DType::Index &&
           !realized_buffer(u) && ++count <= most_simple_ops;
  });
  return count <= most_simple_ops;
}

// A value as an assignment to `target` takes it: its dtype, shape and device.
UOp fit(const UOp& target, UOp v) {
  bool broadcasts = v.rank() <= target.rank();
  for (size_t i = 1; broadcasts && i <= v.rank(); ++i)
    broadcasts =
        is_const(v.dim(v.rank() - i), 1) || v.dim(v.rank() - i) == target.dim(target.rank() - i);
  KOINE_REQUIRE(broadcasts, Value, "assign: shape {} does not broadcast to {}", shape_text(v),
                shape_text(target));
  if (v.dtype() != target.dtype()) v = koine::cast(v, target.dtype());
  if (!(v.shape() == target.shape())) v = Tensor(v).expand(Shape::of(target)).uop();
  const Placement &there = target.node()->placement, &here = v.node()->placement;
  if (!there.device || (!here.device && there.device.name() == default_device())) return v;
  return here == there ? v : copy_to(v, there);
}

// A mask of leading axes, as one of all axes.
Tensor mask_for(const Tensor& mask, const Tensor& target, const Tensor& value) {
  Shape sizes = target.shape(), ones = mask.shape();
  const bool leading =
      ones.size() <= sizes.size() && std::equal(ones.begin(), ones.end(), sizes.begin());
  KOINE_REQUIRE(leading, Index,
                "setitem: a mask of shape {} does not fit {}: its axes are the "
                "first of those",
                tensor::text_of(ones), tensor::text_of(sizes));
  KOINE_REQUIRE(value.ndim() <= target.ndim() - mask.ndim(), Value,
                "setitem: values of shape {} for the elements of a mask: how many are true is not "
                "known before it runs; give one value for all of them, or use where()",
                shape_text(value.uop()));
  ones.resize(sizes.size(), 1);
  return mask.reshape(ones);
}

}  // namespace

UOp Tensor::stored_as(std::string_view method, DType dtype) const {
  return as_literal() ? in_dtype(method, dtype) : uop();
}

Tensor& Tensor::assign(const Tensor& value) {
  const tensor::Called called("assign");  // without operands, whose storages are locked below
  const Impl& i = self();
  if (is_tracing())
    Recording::require_allowed(
        *i.storage, fmt::format("assign: to a tensor of shape {}", tensor::text_of(shape())));
  const UOp v = fit(uop(), value.stored_as("assign", dtype()));
  if (i.view) {
    require_single_places(i.view);
    write_through(v);
    return *this;
  }
  Storage& s = *i.storage;
  std::unique_lock lock(s.mutex);
  const int writes = s.simple_writes >= 0 && is_simple(v, s.current) ? s.simple_writes + 1 : -1;
  const UOp kept = kept_value(v);
  History::replace(i.storage, s.requires_grad ? History::leaf_of(kept) : kept);
  s.simple_writes = writes;
  const bool many = writes >= most_simple_writes || s.waiting.unread.size() >= most_unread;
  lock.unlock();
  if (many && !is_tracing()) History::compute({*this}, History::Graphs::Keep);
  return *this;
}

// Recorded as the next state of a copy of the value. Whether that is really copied is decided when
// it runs (engine/updates): who still names the old state keeps it (amendment C29).
void Tensor::History::write(const std::shared_ptr<Storage>& storage, const UOp& target,
                            const UOp& value) {
  using Chain = Storage::Chain;
  settle_computed(storage);
  Storage& s = *storage;
  auto base = [&] {
    const std::lock_guard lock(s.mutex);
    return s.current;
  };
  int simple_writes;
  {  // what names the state before is gone when that may be written over
    // A leaf stays one: what it is assigned has no gradient.
    const bool kept = !s.requires_grad && is_float(value.dtype()) && reaches_leaf({base(), value});
    const std::lock_guard lock(s.mutex);
    const bool longer =
        s.chain != Chain::None && (s.chain == Chain::Kept || !kept) && !realized_buffer(s.current);
    // A gradient may read the old state: a copy of a copy is never written in place.
    const UOp memory =
        longer ? s.current : private_copy(kept ? koine::contiguous(s.current) : s.current);
    const UOp view = substitute(target, {{view_base(memory), memory}});
    const UOp next = after(memory, {store(view, s.requires_grad ? koine::detach(value) : value)});
    const Chain chain = longer ? s.chain : kept ? Chain::Kept : Chain::Plain;
    const UOp before = s.waiting.before;
    const bool simple =
        chain == Chain::Plain && (!longer || s.simple_writes >= 0) && is_simple(value, s.current);
    simple_writes = simple ? std::max(s.simple_writes, 0) + 1 : -1;
    replace(storage, next);
    s.waiting.before = before;  // or what the chain stands on
    s.chain = chain;
    s.simple_writes = simple_writes;
  }
  if (simple_writes < most_simple_writes || is_tracing()) return;
  Tensor written;
  written.impl_ = std::make_shared<Impl>();
  written.impl_->storage = storage;
  compute({written}, Graphs::Keep);
}

void Tensor::write_through(const UOp& value) const {
  History::write(self().storage, self().view, value);
}

// A leaf's gradient, a transform and several devices take what is written as a value of its own.
bool Tensor::History::write_at(const Tensor& target, const Tensor& places, const Tensor& values) {
  const Impl& i = target.self();
  settle_computed(i.storage);
  const UOp now = target.uop(), at = places.uop();
  UOp v = values.uop();
  if (v.dtype() != now.dtype()) v = koine::cast(v, now.dtype());
  auto beside = [&](const UOp& u) {
    return !u.device() ||
           (u.device().count() == 1 && (!now.device() || u.device() == now.device()));
  };
  const bool known = now.has_concrete_shape() && at.has_concrete_shape();
  if (is_tracing() || i.storage->requires_grad || !beside(now) || !beside(at) || !beside(v) ||
      !known || at.numel() == 0 || now.numel() == 0 ||
      (is_float(now.dtype()) && reaches_leaf({now, v})))
    return false;
  const UOp view = i.view ? i.view : view_base(now);
  require_single_places(view);
  write(i.storage, koine::index(koine::reshape(view, shape_of({now.numel()})), {at}), v);
  return true;
}

void Tensor::assign_all(const std::vector<Tensor>& targets, const std::vector<Tensor>& values,
                        const std::vector<Tensor>& also) {
  KOINE_REQUIRE(targets.size() == values.size(), Value, "assign_all: {} targets and {} values",
                targets.size(), values.size());
  std::vector<UOp> requests;
  for (size_t k = 0; k < targets.size(); ++k) {
    KOINE_REQUIRE(!targets[k].self().view, Value, "assign_all: target {} of shape {} is a view", k,
                  tensor::text_of(targets[k].shape()));
    const Tensor& target = targets[k];
    requests.push_back(
        History::leaf_of(fit(target.uop(), values[k].stored_as("assign_all", target.dtype()))));
  }
  if (is_tracing()) {  // what runs later computes them together
    for (const Tensor& t : targets)
      Recording::require_allowed(
          *t.self().storage,
          fmt::format("assign_all: to a tensor of shape {}", tensor::text_of(t.shape())));
    for (size_t k = 0; k < targets.size(); ++k) {
      const auto& storage = targets[k].self().storage;
      const std::lock_guard lock(storage->mutex);
      History::replace(storage, requests[k]);
    }
    return;
  }
  History::Storages storages;
  for (const Tensor& t : also) storages.push_back(t.self().storage);
  History::add_along(targets, storages);
  std::vector<UOp> also_values;
  for (const auto& storage : storages) {
    const std::lock_guard lock(storage->mutex);
    also_values.push_back(storage->current);
  }
  requests.insert(requests.end(), also_values.begin(), also_values.end());
  // The targets get other values: nothing leads to them any more.
  std::unordered_set<const Storage*> assigned;
  History::Storages own = storages;
  for (const Tensor& t : targets) {
    assigned.insert(t.self().storage.get());
    own.push_back(t.self().storage);
  }
  History::Storages leaves = History::leaves();
  std::erase_if(leaves, [&](const auto& leaf) { return assigned.contains(leaf.get()); });
  const auto settled = [&](std::span<const UOp> buffers, const History::Leading& leading) {
    for (size_t k = 0; k < targets.size(); ++k) {
      const auto& storage = targets[k].self().storage;
      const std::lock_guard lock(storage->mutex);
      History::replace(storage, buffers[k]);
      storage->waiting = {};
      storage->along.clear();
    }
    History::settle(storages, also_values, buffers.subspan(targets.size()), History::Graphs::Keep,
                    leading);
  };
  try {
    History::compute_with_states(requests, own, leaves, targets.size(), settled);
  } catch (const Interrupted&) {  // nothing is wrong with them
    throw;
  } catch (...) {
    History::drop_failing_along(targets, storages, also_values);
    throw;
  }
}

// A view is assigned; else the places that the index names are scattered into (the last value for
// a place stays, as in NumPy).
void Tensor::setitem(const std::vector<IndexItem>& items, const Tensor& value) {
  const Tensor fitting(value.stored_as("setitem", dtype()));
  const tensor::Called called("setitem");
  tensor::as_method("setitem", {*this, value}, [&] {
    if (items.size() == 1 && items[0].kind() == IndexItem::Kind::Tensor &&
        items[0].tensor().dtype() == DType::Bool) {
      const Tensor mask = mask_for(items[0].tensor(), *this, fitting);
      const bool elsewhere = uop().device().count() == 1 && fitting.device() != device();
      assign(where(mask, (elsewhere ? fitting.to(device()) : fitting).cast(dtype()), *this));
      return;
    }
    Tensor view = indexed("setitem", items);
    if (view.storage_id() == storage_id()) {
      view.assign(fitting);
      return;
    }
    // Counted from the end: an index out of range that reads 0 (IndexMode::Fill) names the place
    // behind the last, which is none.
    const Tensor places =
        arange(0 - numel(), 0, 1, DType::Int64).reshape(shape()).indexed("setitem", items) +
        Tensor(numel());
    const Tensor values = fitting.expand(places.shape());
    if (History::write_at(*this, places.flatten(), values.flatten())) return;
    assign(flatten().scatter(0, places.flatten(), values.flatten()).reshape(shape()));
  });
}

}  // namespace koine

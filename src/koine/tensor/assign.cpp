// Assignment: of whole tensors, through views, of many at once.
#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {
namespace {

// The movement ops of a view, from the view down to the placeholder of its base.
std::vector<UOp> chain_of(const UOp& view) {
  std::vector<UOp> out;
  for (UOp u = view; !u.is(Op::Param); u = u.src(0)) out.push_back(u);
  return out;
}

bool has_pad(const UOp& view) {
  const std::vector<UOp> chain = chain_of(view);
  return std::any_of(chain.begin(), chain.end(), [](const UOp& u) { return u.is(Op::Pad); });
}

void require_single_places(const UOp& view) {
  for (const UOp& u : chain_of(view))
    KOINE_REQUIRE(!u.is(Op::Expand) || u.shape() == u.src(0).shape(), Value,
                  "assign: this view repeats elements (expand of {} to {}), so one place would get "
                  "several values: assign to the tensor it is a view of, or clone() the view",
                  shape_text(u.src(0)), shape_text(u));
}

// A value of the view's shape, put back to where the view took it from; elsewhere `around`.
UOp put_back(const UOp& view, UOp value, const UOp& around) {
  for (const UOp& u : chain_of(view)) {
    const UOp& shape = u.src(0).shape();
    switch (u.op()) {
      case Op::Permute: {
        const Ints& order = u.as<Ints>();
        Ints back(order.size());
        for (size_t i = 0; i < order.size(); ++i)
          back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
        value = permute(value, back);
        break;
      }
      case Op::Flip:
        value = flip(value, u.as<Ints>());
        break;
      case Op::Shrink:
        value = pad(value, u.src(1), shape, around);
        break;
      case Op::Pad:
        value = shrink(value, u.src(1), shape);
        break;
      default:  // Reshape, and an Expand that repeats nothing
        value = reshape(value, shape);
    }
  }
  return value;
}

// The base with `value` where the view looks.
UOp written(const UOp& view, const UOp& base, const UOp& value) {
  const UOp yes = tensor::broadcast_scalar(constant_bool(true), value.sizes());
  return where(put_back(view, yes, constant_bool(false)),
               put_back(view, value, constant_int(value.dtype(), 0)), base);
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
  if (!(v.shape() == target.shape())) v = Tensor(v).expand(target.sizes()).uop();
  if (target.device() && v.device() && !(v.device() == target.device()))
    v = copy_to(v, target.device());
  return v;
}

}  // namespace

UOp Tensor::stored_as(std::string_view method, DType dtype) const {
  return as_literal() ? in_dtype(method, dtype) : uop();
}

Tensor& Tensor::assign(const Tensor& value) {
  const Impl& i = self();
  const UOp v = fit(uop(), value.stored_as("assign", dtype()));
  if (!i.view) {
    const std::lock_guard lock(i.storage->mutex);
    History::replace(i.storage, i.storage->requires_grad ? History::leaf_of(v) : v);
    return *this;
  }
  require_single_places(i.view);
  // Where a gradient may be asked through the base or the value, the write is part of the graph.
  auto base = [&] {
    const std::lock_guard lock(i.storage->mutex);
    return i.storage->current;
  };
  if (!i.storage->requires_grad && is_float(v.dtype()) && History::reaches_leaf({base(), v})) {
    const std::lock_guard lock(i.storage->mutex);
    History::replace(i.storage, written(i.view, i.storage->current, v));
  } else {
    write_through(v);
  }
  return *this;
}

// A store into the memory of the base, at once: later reads must not depend on who asks first.
// Whoever else still reads the old state keeps the old memory, and the store goes to a copy
// (amendment C29). What fails changes nothing.
void Tensor::write_through(const UOp& value) const {
  const Impl& i = self();
  Tensor base;
  base.impl_ = std::make_shared<Impl>();
  base.impl_->storage = i.storage;
  UOp graph;
  {
    const std::lock_guard lock(i.storage->mutex);
    graph = i.storage->graph ? i.storage->graph : i.storage->current;
  }
  History::compute({base}, History::Graphs::Drop);
  {
    const std::lock_guard view_lock(i.mutex);
    i.seen_base = {};
    i.seen_value = {};
  }
  const std::lock_guard lock(i.storage->mutex);
  Storage& s = *i.storage;
  KOINE_INVARIANT(s.current.is(Op::Buffer), "a computed base is no buffer:\n{}",
                  to_text(s.current));
  UOp done;
  if (has_pad(i.view)) {  // a slice whose step leaves a rest: no store goes through a Pad
    done = koine::realize({written(i.view, s.current, value)})[0];
  } else {
    const NodeList below = toposort(value);
    const bool read = std::find(below.begin(), below.end(), s.current) != below.end() ||
                      s.current.use_count() > (graph == s.current ? 2U : 1U);
    UOp target = s.current;
    if (read) {
      const auto memory = memory_of(target);
      target =
          buffer_from_host(target.shape(), target.dtype(), target.device().name(), memory->data());
    }
    const UOp place = substitute(i.view, {{tensor::placeholder(target), target}});
    done = koine::realize({after(target, {store(place, value)})})[0];
  }
  if (!(done == s.current)) History::replace(i.storage, done);
  s.before = {};
  if (!s.requires_grad) History::forget(done, {graph, value});
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
  History::Storages storages;
  std::vector<UOp> also_values;
  for (const Tensor& t : also) {
    storages.push_back(t.self().storage);
    const std::lock_guard lock(storages.back()->mutex);
    also_values.push_back(storages.back()->current);
  }
  requests.insert(requests.end(), also_values.begin(), also_values.end());
  const std::vector<UOp> buffers = koine::realize(requests);
  for (size_t k = 0; k < targets.size(); ++k) {
    const auto& storage = targets[k].self().storage;
    const std::lock_guard lock(storage->mutex);
    History::replace(storage, buffers[k]);
    storage->before = {};
  }
  const auto rest = buffers.begin() + static_cast<std::ptrdiff_t>(targets.size());
  History::settle(storages, also_values, {rest, buffers.end()}, History::Graphs::Keep);
}

// A view is assigned; else the places that the index names are scattered into (the last value for
// a place stays, as in NumPy).
void Tensor::setitem(const std::vector<IndexItem>& items, const Tensor& value) {
  const Tensor fitting(value.stored_as("setitem", dtype()));
  tensor::as_method("setitem", {*this, value}, [&] {
    Tensor view = indexed("setitem", items);
    if (view.storage_id() == storage_id()) {
      view.assign(fitting);
      return;
    }
    // Counted from the end: an index out of range that reads 0 (IndexMode::Fill) names the place
    // behind the last, which is none.
    const Tensor places =
        arange(-numel(), 0, 1, DType::Int64).reshape(shape()).indexed("setitem", items) +
        Tensor(numel());
    const Tensor values = fitting.expand(places.shape());
    assign(flatten().scatter(0, places.flatten(), values.flatten()).reshape(shape()));
  });
}

}  // namespace koine

// Storage, realization, assignment, gradients.
#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/transform/gradient.hpp"

namespace koine {

namespace tensor {

UOp placeholder(const UOp& base) { return param(-2, base.shape(), base.dtype()); }

std::string text_of(const Shape& shape) {
  std::string out = "(";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + (shape.size() == 1 ? ",)" : ")");
}

UOp broadcast_scalar(const UOp& value, const Shape& shape) {
  if (shape.empty()) return value;
  return expand(reshape(value, shape_of(Shape(shape.size(), 1))), shape_of(shape));
}

}  // namespace tensor

namespace {

std::string device_or_default(const std::string& device) {
  return device.empty() ? default_device() : device;
}

// Storages with requires_grad, held weakly. One mutex: gradients are not a hot path.
struct GradientRegistry {
  std::mutex mutex;
  std::vector<std::weak_ptr<void>> storages;
};
GradientRegistry& gradient_registry() {
  static auto* registry = new GradientRegistry;
  return *registry;
}

}  // namespace

Tensor::Tensor() = default;

Tensor::Tensor(UOp value) : impl_(std::make_shared<Impl>()) {
  impl_->storage = std::make_shared<Storage>();
  impl_->storage->current = std::move(value);
}
Tensor::Tensor(double value) : Tensor(constant(DType::Float32, value)) {
  impl_->literal = constant(DType::Float64, value);
}
Tensor::Tensor(bool value) : Tensor(constant_bool(value)) { impl_->literal = uop(); }
Tensor Tensor::integer_scalar(bool narrow, bool is_signed, uint64_t bits) {
  const DType dtype = narrow ? (is_signed ? DType::Int32 : DType::UInt32)
                             : (is_signed ? DType::Int64 : DType::UInt64);
  Tensor out(constant_int(dtype, static_cast<int64_t>(bits)));
  out.impl_->literal = out.uop();
  return out;
}

const Tensor::Impl& Tensor::self() const {
  KOINE_REQUIRE(impl_, Value, "this Tensor was default-constructed: it has no value");
  return *impl_;
}

UOp Tensor::as_literal() const {
  const UOp& full = self().literal;
  if (!full) return {};
  const UOp written = is_float(full.dtype()) ? constant(DType::Float32, const_double(full)) : full;
  return uop() == written ? full : UOp();  // not once something else was assigned
}

UOp Tensor::uop() const {
  const Impl& i = self();
  UOp base;
  {
    const std::lock_guard lock(i.storage->mutex);
    base = i.storage->current;
  }
  if (!i.view) return base;
  const std::lock_guard lock(i.mutex);
  if (!(i.seen_base == base)) {
    i.seen_value = substitute(i.view, {{tensor::placeholder(base), base}});
    i.seen_base = base;
  }
  return i.seen_value;
}

const void* Tensor::storage_id() const { return self().storage.get(); }

Shape Tensor::shape() const { return uop().sizes(); }
int64_t Tensor::ndim() const { return static_cast<int64_t>(uop().rank()); }
int64_t Tensor::numel() const { return uop().numel(); }
DType Tensor::dtype() const { return uop().dtype(); }
int64_t Tensor::size(int64_t axis) const {
  return shape()[static_cast<size_t>(axis_of(axis, "size"))];
}
std::string Tensor::device() const {
  const Device d = uop().device();
  return d ? d.name() : default_device();
}

int64_t Tensor::axis_of(int64_t axis, std::string_view method, int64_t extra) const {
  const int64_t n = ndim() + extra;
  KOINE_REQUIRE(axis >= -n && axis < n, Index,
                "{}: axis {} is out of range for shape {}: use {} to {}", method, axis,
                shape_text(uop()), -n, n - 1);
  return axis < 0 ? axis + n : axis;
}

Tensor::Axes Tensor::axes_of(const Axes& axes, std::string_view method) const {
  Axes out;
  if (axes.empty()) {
    for (int64_t i = 0; i < ndim(); ++i) out.push_back(i);
    return out;
  }
  for (const int64_t a : axes) out.push_back(axis_of(a, method));
  std::sort(out.begin(), out.end());
  KOINE_REQUIRE(std::adjacent_find(out.begin(), out.end()) == out.end(), Value,
                "{}: an axis is named twice", method);
  return out;
}

// --- creation from data --------------------------------------------------------------------------

Tensor Tensor::from_bytes(const void* data, const Shape& shape, DType dtype,
                          const std::string& device) {
  for (const int64_t s : shape)
    KOINE_REQUIRE(s >= 0, Value, "from: shape {} has a negative size", tensor::text_of(shape));
  return Tensor(buffer_from_host(shape_of(shape), dtype, device_or_default(device), data));
}

// --- running -------------------------------------------------------------------------------------

namespace {

// Which of these values a gradient may still be asked through: they read a leaf that requires one,
// by a path that no detach() cuts.
std::vector<bool> keeps_history(const std::vector<UOp>& values,
                                const std::unordered_set<UOp>& leaves) {
  std::unordered_set<UOp> reaches;
  for (const UOp& u : toposort(sink(values), [](const UOp& n) { return !n.is(Op::Detach); })) {
    bool reach = leaves.contains(u);
    for (const UOp& s : u.src()) reach = reach || reaches.contains(s);
    if (reach) reaches.insert(u);
  }
  std::vector<bool> out;
  for (const UOp& v : values) out.push_back(reaches.contains(v));
  return out;
}

}  // namespace

std::vector<std::shared_ptr<Tensor::Storage>> Tensor::gradient_leaves() {
  std::vector<std::shared_ptr<Storage>> out;
  const std::lock_guard lock(gradient_registry().mutex);
  for (const auto& weak : gradient_registry().storages)
    if (auto s = std::static_pointer_cast<Storage>(weak.lock());
        s && s->requires_grad && std::find(out.begin(), out.end(), s) == out.end())
      out.push_back(std::move(s));
  return out;
}

// A computed tensor becomes its buffer, unless backward() may still walk its graph; then the engine
// alone remembers the buffer.
void Tensor::realize(const std::vector<Tensor>& tensors) {
  std::vector<UOp> values;
  for (const Tensor& t : tensors) {
    const std::shared_ptr<Storage>& s = t.self().storage;
    const std::lock_guard lock(s->mutex);
    values.push_back(s->current);
  }
  const std::vector<UOp> buffers = koine::realize(values);
  std::unordered_set<UOp> leaves;
  for (const auto& s : gradient_leaves()) {
    const std::lock_guard lock(s->mutex);
    leaves.insert(s->current);
  }
  const std::vector<bool> keep =
      leaves.empty() ? std::vector<bool>(values.size()) : keeps_history(values, leaves);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::shared_ptr<Storage>& s = tensors[i].self().storage;
    const std::lock_guard lock(s->mutex);
    if (s->current == values[i] && (s->requires_grad || !keep[i])) s->current = buffers[i];
  }
}

const Tensor& Tensor::realize() const {
  realize(std::vector<Tensor>{*this});
  return *this;
}

std::vector<std::byte> Tensor::bytes() const {
  realize();
  // A view is gathered into a buffer of its own.
  const UOp value = uop();
  UOp buffer = realized_buffer(value);
  if (!buffer) buffer = koine::realize({value})[0];
  const auto memory = memory_of(buffer);
  return {memory->data(), memory->data() + memory->bytes()};
}

template <class Element>
Element Tensor::item() const {
  KOINE_REQUIRE(numel() == 1, Value, "item: shape {} has {} elements, not one", shape_text(uop()),
                numel());
  return tolist<Element>()[0];
}
template double Tensor::item<double>() const;
template float Tensor::item<float>() const;
template int Tensor::item<int>() const;
template int64_t Tensor::item<int64_t>() const;
template bool Tensor::item<bool>() const;

Tensor Tensor::to(const std::string& device) const {
  const Device target(device);
  if (target.name() == this->device()) return *this;
  (void)device_runtime(device);  // an unknown device is an error here, in the user's line
  return Tensor(copy_to(uop(), target));
}
Tensor Tensor::contiguous() const { return Tensor(koine::contiguous(uop())); }
Tensor Tensor::contiguous_backward() const {
  return Tensor(UOp::make(Op::ContiguousBackward, {uop()}));
}
Tensor Tensor::detach() const { return Tensor(koine::detach(uop())); }
Tensor Tensor::clone() const {
  const UOp value = uop();
  return Tensor(UOp::make(Op::Contiguous, {value}, {}, fresh_slot() + 1));
}

// --- assignment ----------------------------------------------------------------------------------

Tensor& Tensor::assign(const Tensor& value) {
  const Impl& i = self();
  UOp v = value.uop();
  const UOp target = uop();
  KOINE_REQUIRE(v.rank() <= target.rank(), Value, "assign: shape {} does not broadcast to {}",
                shape_text(v), shape_text(target));
  if (const UOp full = value.as_literal();
      full && is_float(full.dtype()) && is_float(target.dtype()))
    v = constant(target.dtype(), const_double(full));
  if (v.dtype() != target.dtype()) v = koine::cast(v, target.dtype());
  if (!(v.shape() == target.shape())) v = Tensor(v).expand(target.sizes()).uop();
  if (target.device() && v.device() && !(v.device() == target.device()))
    v = copy_to(v, target.device());
  if (!i.view) {
    const std::lock_guard lock(i.storage->mutex);
    i.storage->current = v;
    return *this;
  }
  // Through a view: a store into the buffer of the base. Whoever else still reads the old state
  // keeps the old buffer, and the store goes to a copy (amendment C29).
  Tensor base;
  base.impl_ = std::make_shared<Impl>();
  base.impl_->storage = i.storage;
  base.realize();
  const std::lock_guard lock(i.storage->mutex);
  UOp& current = i.storage->current;
  current = realized_buffer(current);
  {
    const std::lock_guard view_lock(i.mutex);
    i.seen_base = {};
    i.seen_value = {};
  }
  const NodeList below = toposort(v);
  const bool value_reads = std::find(below.begin(), below.end(), current) != below.end();
  if (current.use_count() > 1 || value_reads) {
    const auto memory = memory_of(current);
    current =
        buffer_from_host(current.shape(), current.dtype(), current.device().name(), memory->data());
  }
  const UOp place = substitute(i.view, {{tensor::placeholder(current), current}});
  current = after(current, {store(place, v)});
  // Effects run at once: later reads of the buffer must not depend on who asks first.
  current = koine::realize({current})[0];
  return *this;
}

// --- gradients -----------------------------------------------------------------------------------

Tensor& Tensor::requires_grad(bool on) {
  const Impl& i = self();
  KOINE_REQUIRE(!on || is_float(dtype()), Type,
                "requires_grad: {} tensors have no gradient: cast to a float dtype",
                dtype_name(dtype()));
  KOINE_REQUIRE(!i.view, Value, "requires_grad: this is a view; ask its base, or clone() it");
  i.storage->requires_grad = on;
  if (on) {
    // The leaf owns a buffer of its own, so that equal constants stay apart (amendment C34).
    if (!uop().is(Op::Buffer)) {
      const UOp own = koine::realize({clone().uop()})[0];
      const std::lock_guard lock(i.storage->mutex);
      i.storage->current = own;
    }
    const std::lock_guard lock(gradient_registry().mutex);
    auto& list = gradient_registry().storages;
    std::erase_if(list, [](const std::weak_ptr<void>& w) { return w.expired(); });
    list.push_back(i.storage);
  }
  return *this;
}

bool Tensor::has_grad() const { return bool(self().storage->grad); }
Tensor Tensor::grad() const {
  KOINE_REQUIRE(has_grad(), Value,
                "grad: there is no gradient yet: call requires_grad() before and backward() after "
                "the computation");
  return Tensor(self().storage->grad);
}
void Tensor::zero_grad() { self().storage->grad = {}; }
void Tensor::set_grad(const Tensor& gradient) {
  KOINE_REQUIRE(gradient.shape() == shape(), Value,
                "set_grad: the gradient has shape {}, the tensor {}", shape_text(gradient.uop()),
                shape_text(uop()));
  self().storage->grad = gradient.uop();
}

void Tensor::backward() const {
  KOINE_REQUIRE(numel() == 1, Value, "backward: shape {} has {} elements; reduce to a scalar first",
                shape_text(uop()), numel());
  const UOp root = uop();
  std::unordered_map<UOp, std::vector<std::shared_ptr<Storage>>> leaves;
  for (const auto& s : gradient_leaves()) {
    const std::lock_guard lock(s->mutex);
    leaves[s->current].push_back(s);
  }
  std::vector<UOp> targets;
  for (const UOp& u : toposort(root))
    if (leaves.contains(u)) targets.push_back(u);
  KOINE_REQUIRE(
      !targets.empty(), Value,
      "backward: nothing here requires a gradient: call requires_grad() on the parameters");
  const UOp one = tensor::broadcast_scalar(constant(root.dtype(), 1), root.sizes());
  const std::vector<UOp> outputs{root}, seeds{one};
  const std::vector<UOp> grads = koine::gradient(outputs, seeds, targets);
  for (size_t k = 0; k < targets.size(); ++k)
    for (const auto& s : leaves[targets[k]])
      if (grads[k]) s->grad = s->grad ? add(s->grad, grads[k]) : grads[k];
}

std::vector<Tensor> Tensor::gradient(const std::vector<Tensor>& targets) const {
  KOINE_REQUIRE(numel() == 1, Value, "gradient: shape {} has {} elements; reduce to a scalar first",
                shape_text(uop()), numel());
  const UOp root = uop();
  std::vector<UOp> nodes;
  for (const Tensor& t : targets) nodes.push_back(t.uop());
  const UOp one = tensor::broadcast_scalar(constant(root.dtype(), 1), root.sizes());
  const std::vector<UOp> outputs{root}, seeds{one};
  std::vector<Tensor> out;
  const std::vector<UOp> grads = koine::gradient(outputs, seeds, nodes);
  for (size_t i = 0; i < grads.size(); ++i)
    out.push_back(grads[i] ? Tensor(grads[i]) : zeros(nodes[i].sizes(), nodes[i].dtype()));
  return out;
}

}  // namespace koine

// What a tensor is, and running.
#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/step.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/transform/function.hpp"

namespace koine {

namespace tensor {

std::string text_of(const Shape& shape) {
  std::string out = "(";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + (shape.size() == 1 ? ",)" : ")");
}

std::string Called::text(bool with_operands) const {
  std::vector<std::string> all;
  for (const Tensor* t : operands_) {
    if (t == nullptr || !t->defined()) continue;
    const Placement& place = t->uop().node()->placement;
    all.push_back(shape_text(t->uop()));
    if (place.device.count() > 1)
      all.back() += place.axes.empty() ? " whole" : " split along " + axes_text(place.axes);
  }
  if (all.empty() || (all.size() == 1 && !with_operands)) return std::string(name_);
  return fmt::format("{} of {}", name_, fmt::join(all, ", "));
}

void refuse_as(std::string_view method, Operands operands, const Error& reason) {
  if (const auto* named = dynamic_cast<const NamedError*>(&reason)) throw NamedError(*named);
  const std::string_view what = reason.what();
  if (what.starts_with(fmt::format("{}:", method)) ||
      what.starts_with(fmt::format("{} of", method)))
    throw Error(reason);
  std::string shapes;
  for (const Tensor& t : operands)
    if (t.defined()) shapes += (shapes.empty() ? "" : ", ") + shape_text(t.uop());
  raise(reason.kind(), "{} of {}: {}", method, shapes, what);
}

int64_t known_size(std::string_view method, const Tensor& x, int64_t axis) {
  return as_method(method, {x}, [&] { return int64_t{x.size(axis)}; });
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

}  // namespace

Tensor::Tensor() = default;

Tensor::Tensor(UOp value) : impl_(std::make_shared<Impl>()) {
  impl_->storage = std::make_shared<Storage>();
  impl_->storage->current = std::move(value);
  impl_->storage->trace = trace_number();
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

Tensor::Tensor(const Size& size)
    : Tensor(size.is_number() ? Tensor(int64_t{size})
                              : Tensor(koine::cast(size.uop(), DType::Int64))) {}

const Tensor::Impl& Tensor::self() const {
  KOINE_REQUIRE(impl_, Value, "this Tensor was default-constructed: it has no value");
  return *impl_;
}

Tensor Tensor::standing_for_number() const {
  Tensor out(uop());
  out.impl_->number = out.uop();
  return out;
}
bool Tensor::stands_for_number() const {
  const UOp& number = self().number;
  return number && uop() == number;  // not once something else was assigned
}
bool Tensor::is_number() const { return as_literal() || stands_for_number(); }

UOp Tensor::as_literal() const {
  const UOp& full = self().literal;
  if (!full) return {};
  const UOp written = is_float(full.dtype()) ? constant(DType::Float32, const_double(full)) : full;
  return uop() == written ? full : UOp();  // not once something else was assigned
}

UOp Tensor::uop() const {
  const Impl& i = self();
  const std::lock_guard lock(i.storage->mutex);
  const UOp& base = i.storage->current;
  if (!i.view) return base;
  if (i.seen) return i.seen;
  UOp value = substitute(i.view, {{view_base(base), base}});
  if (base.is(Op::Buffer)) {  // what is held of a value that is to be written over costs a copy
    i.seen = value;
    i.storage->seen.insert(&i);
  }
  return value;
}

Tensor::Impl::~Impl() {
  if (!seen) return;
  const std::lock_guard lock(storage->mutex);
  storage->seen.erase(this);
}

const void* Tensor::storage_id() const { return self().storage.get(); }

Shape Tensor::shape() const { return Shape::of(uop()); }
int64_t Tensor::ndim() const { return static_cast<int64_t>(uop().rank()); }
Size Tensor::numel() const {
  const Shape sizes = shape();
  const auto count = tensor::count_of(sizes);
  KOINE_REQUIRE(count, Memory, "numel: a tensor of shape {} has too many elements",
                tensor::text_of(sizes));
  return *count;
}
DType Tensor::dtype() const { return uop().dtype(); }
Size Tensor::size(int64_t axis) const {
  return shape()[static_cast<size_t>(axis_of(axis, "size"))];
}
std::string Tensor::device() const {
  const Device d = uop().device();
  return d ? d.name() : default_device();
}

int64_t Tensor::axis_of(int64_t axis, std::string_view method, int64_t extra) const {
  const int64_t n = ndim() + extra;
  KOINE_REQUIRE(n > 0, Index, "{}: a scalar has no axis {}: reshape it to (1,) first", method,
                axis);
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

std::optional<Size> tensor::count_of(const Shape& shape) {
  Size count = 1;
  int64_t most = 1;
  for (const Size& s : shape) {
    if (s.smallest() < 0 || __builtin_mul_overflow(most, s.largest(), &most)) return std::nullopt;
    count *= s;
  }
  return count;
}
void Tensor::require_count(int64_t count, const Shape& shape) {
  const auto wanted = tensor::count_of(shape);
  KOINE_REQUIRE(wanted && *wanted == count, Value, "from: {} elements do not fill shape {}", count,
                tensor::text_of(shape));
}
Tensor Tensor::from_bytes(const void* data, const Shape& shape, DType dtype,
                          const std::string& device) {
  for (const Size& s : shape)
    KOINE_REQUIRE(s.smallest() >= 0, Value, "from: shape {} has a negative size",
                  tensor::text_of(shape));
  return Tensor(buffer_from_host(shape_of(shape), dtype, device_or_default(device), data));
}

Tensor Tensor::borrow(const void* data, const Shape& shape, DType dtype,
                      std::shared_ptr<const void> owner) {
  (void)tensor::count_for("borrow", shape);
  KOINE_REQUIRE(reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(item_size(dtype)) == 0,
                Value,
                "borrow: {} elements at {} are not aligned to {} bytes: copy them with from()",
                dtype_name(dtype), data, item_size(dtype));
  return Tensor(buffer_over(shape_of(shape), dtype, data, std::move(owner)));
}

// --- running -------------------------------------------------------------------------------------

void Tensor::realize(const std::vector<Tensor>& tensors) {
  History::compute(tensors, History::Graphs::Drop);
}

const Tensor& Tensor::realize() const {
  realize(std::vector<Tensor>{*this});
  return *this;
}

std::shared_ptr<Memory> Tensor::look() const {
  History::compute({*this}, History::Graphs::Keep);
  const UOp value = uop();
  if (const UOp buffer = realized_buffer(value)) return memory_of(buffer);
  // A view is gathered into a buffer of its own; of memory of others for each look, since it shows
  // what there is.
  if (!value.node()->foreign) return memory_of(koine::realize({value})[0]);
  CapturedStep step({value});
  step.run();
  return memory_of(step.outputs()[0]);
}
std::vector<std::byte> Tensor::bytes() const {
  const auto memory = look();
  // A buffer of symbolic size is as large as the largest.
  std::vector<std::byte> out(static_cast<size_t>(numel().present() * item_size(dtype())));
  memory->copy_out(out.data(), 0, static_cast<int64_t>(out.size()));
  return out;
}

std::shared_ptr<const std::byte> Tensor::data() const {
  const std::shared_ptr<Memory> memory = look();
  if (memory->data() == nullptr) {
    const auto copy = std::make_shared<const std::vector<std::byte>>(bytes());
    return {copy, copy->data()};
  }
  memory->add_reader();
  return {memory->data(), [memory](const std::byte*) { memory->remove_reader(); }};
}

template <class Element>
Element Tensor::item() const {
  const int64_t count = numel().present();
  KOINE_REQUIRE(count == 1, Value, "item: shape {} has {} elements, not one", shape_text(uop()),
                count);
  return tolist<Element>()[0];
}
template double Tensor::item<double>() const;
template float Tensor::item<float>() const;
template int Tensor::item<int>() const;
template int64_t Tensor::item<int64_t>() const;
template uint64_t Tensor::item<uint64_t>() const;
template bool Tensor::item<bool>() const;

Device tensor::known_device(const std::string& name) {
  const Device device(name);
  for (size_t i = 0; i < device.count(); ++i) (void)device_runtime(device.part(i));
  return device;
}

Tensor Tensor::to(const std::string& device) const {
  const Device target = tensor::known_device(device);
  if (target.name() == this->device() && (target.count() == 1 || shard_axis() == 0)) return *this;
  return Tensor(copy_to(uop(), target));
}
Tensor Tensor::shard(const std::string& devices, std::optional<int64_t> axis) const {
  const Device target = tensor::known_device(devices);
  const int64_t split = axis ? axis_of(*axis, "shard") : -1;
  if (target.count() == 1) return to(devices);
  const auto parts = static_cast<int64_t>(target.count());
  if (axis && size(split).is_number())
    KOINE_REQUIRE(int64_t{size(split)} % parts == 0, Value,
                  "shard of {}: axis {} of size {} does not split evenly over the {} devices {}: "
                  "pad() it to a multiple of {}",
                  tensor::text_of(shape()), split, size(split), parts, target.name(), parts);
  return tensor::as_method("shard", {*this},
                           [&] { return Tensor(copy_to(uop(), Placement{target, split})); });
}
Tensor Tensor::shard_like(const Tensor& other) const {
  return other.uop().device().count() > 1 ? shard(other.device(), other.shard_axis())
                                          : to(other.device());
}
std::optional<int64_t> Tensor::shard_axis() const {
  const auto axis = uop().axis();
  return axis ? std::optional(static_cast<int64_t>(*axis)) : std::nullopt;
}
Tensor Tensor::contiguous() const { return Tensor(koine::contiguous(uop())); }
Tensor Tensor::contiguous_backward() const {
  return Tensor(UOp::make(Op::ContiguousBackward, {uop()}));
}
Tensor Tensor::detach() const {
  Tensor out(koine::detach(uop()));
  if (!is_tracing() && !uop().is(Op::Buffer)) History::add_state(out.self().storage);
  return out;
}
Tensor Tensor::clone() const { return Tensor(private_copy(uop())); }

}  // namespace koine

#include <algorithm>
#include <numeric>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {

// A view of the same storage: `move` is applied to the base as a Param (or to the view so
// far). Invalid arguments throw here, in the user's line.
template <class F>
Tensor Tensor::moved(F&& move) const {
  const Impl& i = self();
  auto view = std::make_shared<Impl>();
  view->storage = i.storage;
  UOp so_far;
  {
    const std::lock_guard lock(i.storage->mutex);  // `History::leave_base`
    so_far = i.view ? i.view : view_base(i.storage->current);
  }
  view->view = move(so_far);
  return Tensor(std::move(view));
}

namespace {

// What -1 stands for among sizes that multiply to `known` otherwise, in a shape of n elements.
Size missing_size(const Tensor& x, const Shape& requested, const Size& known) {
  const Size n = x.numel();
  KOINE_REQUIRE(known.smallest() > 0 && n % known == 0, Value,
                "reshape: shape {} has {} elements, which {} (with -1) cannot divide: the sizes "
                "must multiply to {}",
                shape_text(x.uop()), n, tensor::text_of(requested), n);
  return n / known;
}

}  // namespace

Tensor Tensor::reshape(const Shape& requested) const {
  const tensor::Called called("reshape", this);
  Shape sizes = requested, others;
  std::optional<size_t> unknown;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == -1) {
      KOINE_REQUIRE(!unknown, Value, "reshape: {} has more than one -1",
                    tensor::text_of(requested));
      unknown = i;
    } else {
      KOINE_REQUIRE(sizes[i].smallest() >= 0, Value, "reshape: {} has a negative size",
                    tensor::text_of(requested));
      others.push_back(sizes[i]);
    }
  }
  const auto known = tensor::count_of(others);
  KOINE_REQUIRE(known, Value, "reshape: {} has more elements than memory can hold",
                tensor::text_of(requested));
  if (unknown) {
    sizes[*unknown] = missing_size(*this, requested, *known);
  } else {
    const Size n = numel();
    KOINE_REQUIRE(*known == n, Value,
                  "reshape: shape {} has {} elements, {} has {}: the sizes must multiply to {}",
                  shape_text(uop()), n, tensor::text_of(requested), *known, n);
  }
  return moved([&](const UOp& u) { return koine::reshape(u, shape_of(sizes)); });
}

Tensor Tensor::expand(const Shape& requested) const {
  const tensor::Called called("expand", this);
  Shape own = shape();
  KOINE_REQUIRE(requested.size() >= own.size(), Value, "expand: shape {} has more axes than {}",
                tensor::text_of(own), tensor::text_of(requested));
  const Shape before = own;
  own.insert(own.begin(), requested.size() - own.size(), 1);
  Shape target = requested;
  for (size_t i = 0; i < target.size(); ++i) {
    KOINE_REQUIRE(target[i] != -1 || i >= target.size() - before.size(), Value,
                  "expand: axis {} of {} is a new one of shape {}, which has no size to keep", i,
                  tensor::text_of(requested), tensor::text_of(before));
    if (target[i] == -1) target[i] = own[i];
    KOINE_REQUIRE(target[i].smallest() >= 0, Value,
                  "expand: {} has a negative size: only -1 keeps a size",
                  tensor::text_of(requested));
    KOINE_REQUIRE(
        own[i] == target[i] || own[i] == 1, Value,
        "expand: shape {} does not expand to {}: axis {} has size {}, only size 1 expands",
        tensor::text_of(before), tensor::text_of(requested), i, own[i]);
  }
  return moved(
      [&](const UOp& u) { return koine::expand(in_shape(u, shape_of(own)), shape_of(target)); });
}

Tensor Tensor::permute(const std::vector<int64_t>& order) const {
  std::vector<int64_t> axes;
  for (const int64_t a : order) axes.push_back(axis_of(a, "permute"));
  return tensor::as_method("permute", {*this}, [&] {
    return moved([&](const UOp& u) { return koine::permute(u, axes); });
  });
}

Tensor Tensor::transpose(int64_t a, int64_t b) const {
  const tensor::Called called("transpose", this);
  std::vector<int64_t> order(static_cast<size_t>(ndim()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::swap(order[static_cast<size_t>(axis_of(a, "transpose"))],
            order[static_cast<size_t>(axis_of(b, "transpose"))]);
  return permute(order);
}

Tensor Tensor::T() const {
  return tensor::as_method("T", {*this}, [&] { return transpose(); });
}
Tensor Tensor::view(const Shape& shape) const {
  return tensor::as_method("view", {*this}, [&] { return reshape(shape); });
}

Tensor Tensor::flip(const std::vector<int64_t>& axes) const {
  const tensor::Called called("flip", this);
  std::vector<int64_t> flags(static_cast<size_t>(ndim()), 0);
  for (const int64_t a : axes) {
    int64_t& flag = flags[static_cast<size_t>(axis_of(a, "flip"))];
    KOINE_REQUIRE(flag == 0, Value, "flip: axis {} of shape {} is named twice", a,
                  shape_text(uop()));
    flag = 1;
  }
  return moved([&](const UOp& u) { return koine::flip(u, flags); });
}

Tensor Tensor::shrink(const SizePairs& bounds) const {
  const tensor::Called called("shrink", this);
  const Shape sizes = shape();
  KOINE_REQUIRE(bounds.size() == sizes.size(), Value, "shrink: {} bounds for shape {}",
                bounds.size(), tensor::text_of(sizes));
  Shape offset, size;
  for (size_t i = 0; i < bounds.size(); ++i) {
    const auto& [from, to] = bounds[i];
    KOINE_REQUIRE(never_exceeds(0, from) && never_exceeds(from, to) && never_exceeds(to, sizes[i]),
                  Value, "shrink: bounds {}..{} of axis {} leave shape {}", from, to, i,
                  tensor::text_of(sizes));
    offset.push_back(from);
    size.push_back(to - from);
  }
  return moved([&](const UOp& u) { return koine::shrink(u, shape_of(offset), shape_of(size)); });
}

namespace {
std::pair<UOp, UOp> offset_and_size(const Shape& sizes, const SizePairs& padding) {
  KOINE_REQUIRE(padding.size() == sizes.size(), Value, "pad: {} paddings for shape {}",
                padding.size(), tensor::text_of(sizes));
  Shape offset, size;
  for (size_t i = 0; i < padding.size(); ++i) {
    const auto& [before, behind] = padding[i];
    KOINE_REQUIRE(before.smallest() >= 0 && behind.smallest() >= 0, Value,
                  "pad: {} and {} around axis {} of shape {}: to cut off, use shrink", before,
                  behind, i, tensor::text_of(sizes));
    offset.push_back(before);
    int64_t most = sizes[i].largest();
    KOINE_REQUIRE(!__builtin_add_overflow(most, before.largest(), &most) &&
                      !__builtin_add_overflow(most, behind.largest(), &most),
                  Value, "pad: {} and {} around axis {} of shape {} are too large", before, behind,
                  i, tensor::text_of(sizes));
    size.push_back(sizes[i] + before + behind);
  }
  return {shape_of(offset), shape_of(size)};
}
}  // namespace

Tensor Tensor::pad(const SizePairs& padding, const Tensor& value) const {
  const tensor::Called called("pad", this);
  const auto [offset, size] = offset_and_size(shape(), padding);
  return Tensor(koine::pad(uop(), offset, size, value.in_dtype("pad", dtype())));
}
// For slices, which cut off what is padded: it stays a view.
Tensor Tensor::padded_view(const SizePairs& padding) const {
  const auto [offset, size] = offset_and_size(shape(), padding);
  const UOp zero = constant_int(dtype(), 0);
  return moved([&](const UOp& u) { return koine::pad(u, offset, size, zero); });
}

namespace {
// A size in the description of a function that may be 1 or not is neither.
bool is_one(const Size& n) {
  const bool open = n.smallest() <= 1 && n.largest() >= 1 && !has_present_value(n.uop());
  return open ? int64_t{n} == 1 : n == 1;
}
}  // namespace

Tensor Tensor::squeeze(std::optional<int64_t> axis) const {
  const tensor::Called called("squeeze", this);
  Shape out;
  const Shape sizes = shape();
  const int64_t only = axis ? axis_of(*axis, "squeeze") : -1;
  for (size_t i = 0; i < sizes.size(); ++i)
    if ((axis && static_cast<int64_t>(i) != only) || !is_one(sizes[i])) out.push_back(sizes[i]);
  return reshape(out);
}
Tensor Tensor::unsqueeze(int64_t axis) const {
  const tensor::Called called("unsqueeze", this);
  Shape out = shape();
  out.insert(out.begin() + axis_of(axis, "unsqueeze", 1), 1);
  return reshape(out);
}
Tensor Tensor::flatten(int64_t from, int64_t to) const {
  const tensor::Called called("flatten", this);
  const Shape sizes = shape();
  if (sizes.empty()) return reshape({1});
  const auto a = static_cast<size_t>(axis_of(from, "flatten")),
             b = static_cast<size_t>(axis_of(to, "flatten"));
  KOINE_REQUIRE(a <= b, Value, "flatten: axis {} of shape {} stands behind axis {}", from,
                tensor::text_of(sizes), to);
  Shape out(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(a));
  Size merged = 1;
  for (size_t i = a; i <= b; ++i) merged *= sizes[i];
  out.push_back(merged);
  out.insert(out.end(), sizes.begin() + static_cast<std::ptrdiff_t>(b) + 1, sizes.end());
  return reshape(out);
}

Tensor Tensor::repeat(const Shape& times) const {
  const tensor::Called called("repeat", this);
  Shape own = shape();
  KOINE_REQUIRE(times.size() >= own.size(), Value, "repeat: {} counts for shape {}", times.size(),
                tensor::text_of(own));
  own.insert(own.begin(), times.size() - own.size(), 1);
  Shape split, wide, out;
  for (size_t i = 0; i < own.size(); ++i) {
    KOINE_REQUIRE(never_exceeds(0, times[i]), Value,
                  "repeat: count {} of axis {} of shape {} is negative", times[i], i,
                  tensor::text_of(own));
    split.insert(split.end(), {Size(1), own[i]});
    wide.insert(wide.end(), {times[i], own[i]});
    out.push_back(times[i] * own[i]);
  }
  return reshape(split).expand(wide).reshape(out);
}

Tensor Tensor::roll(int64_t shift) const {
  const tensor::Called called("roll", this);
  return flatten().roll(shift, 0).reshape(shape());
}
// A slice of two copies side by side, so that the shift is where it begins and no size.
Tensor Tensor::roll(int64_t shift, int64_t axis) const {
  const tensor::Called called("roll", this);
  const int64_t a = axis_of(axis, "roll");
  const Size n = size(a);
  if (n == 0) return *this;
  const Size from = n - Size(shift) % larger(n, 1);
  return Tensor(slice(cat({*this, *this}, a).uop(), static_cast<size_t>(a), from.uop(), n.uop()));
}

Tensor Tensor::roll(const IntList& shifts, const IntList& axes) const {
  const tensor::Called called("roll", this);
  KOINE_REQUIRE(shifts.size() == axes.size(), Value, "roll: {} shifts for {} axes", shifts.size(),
                axes.size());
  Tensor out = *this;
  for (size_t k = 0; k < axes.size(); ++k) out = out.roll(shifts[k], axes[k]);
  return out;
}

Tensor Tensor::stack(const std::vector<Tensor>& tensors, int64_t axis) {
  const tensor::Called called("stack", tensors);
  KOINE_REQUIRE(!tensors.empty(), Value, "stack: no tensors");
  std::vector<UOp> values;
  DType dtype = tensors[0].dtype();
  for (const Tensor& t : tensors) dtype = promote(dtype, t.dtype());
  for (const Tensor& t : tensors) {
    KOINE_REQUIRE(t.shape() == tensors[0].shape(), Value, "stack: shapes {} and {} differ",
                  tensor::text_of(tensors[0].shape()), tensor::text_of(t.shape()));
    values.push_back(koine::cast(t.uop(), dtype));
  }
  Tensor out(koine::stack(values));
  const int64_t at = tensors[0].axis_of(axis, "stack", 1);
  if (at == 0) return out;
  std::vector<int64_t> order;
  for (int64_t i = 1; i < out.ndim(); ++i) order.push_back(i);
  order.insert(order.begin() + at, 0);
  return out.permute(order);
}

// Each part placed in the full shape, zero elsewhere; the sum is exact because all but one are
// zero. (A where-chain by position would cost the same and not be differentiable by the movement
// rules.)
Tensor Tensor::cat(const std::vector<Tensor>& tensors, int64_t axis) {
  const tensor::Called called("cat", tensors);
  KOINE_REQUIRE(!tensors.empty(), Value, "cat: no tensors");
  const int64_t a = tensors[0].axis_of(axis, "cat");
  DType dtype = tensors[0].dtype();
  Size total = 0;
  for (const Tensor& t : tensors) {
    dtype = promote(dtype, t.dtype());
    const Shape s = t.shape(), first = tensors[0].shape();
    bool fits = s.size() == first.size();
    for (size_t i = 0; fits && i < s.size(); ++i)
      fits = static_cast<int64_t>(i) == a || s[i] == first[i];
    KOINE_REQUIRE(fits, Value,
                  "cat: shapes {} and {} differ off axis {}: only that axis may differ",
                  tensor::text_of(first), tensor::text_of(s), a);
    total += s[static_cast<size_t>(a)];
  }
  Tensor out, position;
  Size at = 0;
  for (const Tensor& t : tensors) {
    SizePairs padding(t.shape().size(), {0, 0});
    const Size n = t.shape()[static_cast<size_t>(a)];
    padding[static_cast<size_t>(a)] = {at, total - at - n};
    const Tensor part = t.cast(dtype).pad(padding);
    if (!out.defined()) {
      out = part;
    } else {
      // From its start on, the later part shows.
      if (!position.defined()) {
        Shape wide(t.shape().size(), 1);
        wide[static_cast<size_t>(a)] = total;
        position = arange(total).reshape(wide);
      }
      out = where(position < Tensor(at), out, part);
    }
    at += n;
  }
  return out;
}

// Of an axis without elements there is one part, without elements.
std::vector<Tensor> Tensor::split(int64_t size, int64_t axis) const {
  const tensor::Called called("split", this);
  KOINE_REQUIRE(size > 0, Value, "split of {}: the size {} must be positive",
                tensor::text_of(shape()), size);
  const int64_t n = tensor::known_size("split", *this, axis_of(axis, "split"));
  if (n == 0) return {*this};
  std::vector<int64_t> sizes(static_cast<size_t>((n - 1) / size), size);
  sizes.push_back((n - 1) % size + 1);
  return split(sizes, axis);
}
std::vector<Tensor> Tensor::split(const std::vector<int64_t>& sizes, int64_t axis) const {
  const tensor::Called called("split", this);
  const int64_t a = axis_of(axis, "split"), n = tensor::known_size("split", *this, a);
  int64_t left = n;
  const bool fit = std::all_of(sizes.begin(), sizes.end(),
                               [&](int64_t size) { return size >= 0 && (left -= size) >= 0; });
  KOINE_REQUIRE(fit && left == 0, Value,
                "split of {}: parts of {} do not make up axis {}, which has {} elements",
                tensor::text_of(shape()), tensor::text_of(Shape(sizes.begin(), sizes.end())), a, n);
  std::vector<Tensor> out;
  int64_t from = 0;
  for (const int64_t size : sizes) {
    SizePairs bounds;
    for (const Size& s : shape()) bounds.emplace_back(0, s);
    bounds[static_cast<size_t>(a)] = {from, from + size};
    out.push_back(shrink(bounds));
    from += size;
  }
  return out;
}
std::vector<Tensor> Tensor::chunk(int64_t count, int64_t axis) const {
  const tensor::Called called("chunk", this);
  KOINE_REQUIRE(count > 0, Value, "chunk: the count {} must be positive", count);
  const int64_t n = tensor::known_size("chunk", *this, axis_of(axis, "chunk"));
  if (n == 0) return std::vector<Tensor>(static_cast<size_t>(count), *this);
  return split((n + count - 1) / count, axis);
}

}  // namespace koine

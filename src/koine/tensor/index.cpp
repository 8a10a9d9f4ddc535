// x[...]: positions, slices, new axes and tensors of positions (amendment C28).
#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/tensor/select.hpp"

namespace koine {

namespace {

// int64, of which unsigned integers beyond its range become the largest.
Tensor as_int64(const Tensor& index) {
  if (index.dtype() != DType::UInt64) return index.cast(DType::Int64);
  return index.minimum(Tensor(static_cast<uint64_t>(INT64_MAX))).cast(DType::Int64);
}

// Positions that must lie in 0..n-1; `what` names them in the error.
Tensor within_axis(const std::string& what, const Tensor& at, const Size& n) {
  const Tensor zero(int64_t{0}), last(n - 1);
  const Interval& bounds = at.uop().bounds();
  if (bounds.low >= 0 && bounds.high < n.smallest()) return at;
  switch (options().index) {
    case IndexMode::Clamp:
      return at.maximum(zero).minimum(last);
    case IndexMode::Fill:
      return at;
    case IndexMode::Raise:
      break;
  }
  return Tensor(UOp::make(Op::Assume, {at.uop(), zero.uop(), last.uop()}, what));
}

void require_integers(std::string_view method, std::string_view what, const Tensor& index) {
  KOINE_REQUIRE(is_integer(index.dtype()), Type, "{}: {} must be integers, got {}: cast them",
                method, what, dtype_name(index.dtype()));
}

}  // namespace

Tensor tensor::positions(std::string_view method, const Tensor& index, const Size& n) {
  require_integers(method, "positions", index);
  const UOp& given = index.uop();
  if (given.is(Op::Expand))  // what is repeated is looked at once
    return Tensor(
        koine::expand(positions(method, Tensor(UOp(given.src(0))), n).uop(), given.shape()));
  const Tensor i = as_int64(index), zero(int64_t{0});
  const Tensor wrapped = is_unsigned(index.dtype()) ? i : Tensor::where(i < zero, i + Tensor(n), i);
  return within_axis(fmt::format("{}: position", method), wrapped, n);
}
Tensor tensor::class_numbers(std::string_view method, const Tensor& target, const Size& n) {
  require_integers(method, "class targets", target);
  return within_axis(fmt::format("{}: class", method), as_int64(target), n);
}

namespace {

// Along one axis by positions of any shape, whose axes take the place of that axis.
Tensor picked(const Tensor& x, int64_t a, const Tensor& at) {
  std::vector<int64_t> order{a};
  for (int64_t k = 0; k < x.ndim(); ++k)
    if (k != a) order.push_back(k);
  const Tensor rows(koine::index(x.permute(order).uop(), {at.uop()}));
  const int64_t width = at.ndim();
  std::vector<int64_t> back;
  for (int64_t k = 0; k < a; ++k) back.push_back(width + k);
  for (int64_t k = 0; k < width; ++k) back.push_back(k);
  for (int64_t k = width + a; k < rows.ndim(); ++k) back.push_back(k);
  return rows.permute(back);
}

}  // namespace

Tensor tensor::selected(std::string_view method, const Tensor& x, int64_t axis,
                        const Tensor& index) {
  const Called called(method, &x, &index);
  return picked(x, axis, positions(method, index, x.size(axis)));
}

namespace {

// What an index asks of each axis.
struct Plan {
  SizePairs bounds;                                 // of an axis, before it is flipped
  std::vector<int64_t> flips;                       // axes
  std::vector<int64_t> steps;                       // of an axis; 0 where it is dropped
  Shape out;                                        // with new axes, before tensors are applied
  std::vector<std::pair<int64_t, Tensor>> tensors;  // with their axis of `out`
  bool apart = false;  // whether an ellipsis stands between them, be it of no axis
};

void take_all(Plan& plan, const Size& size) {
  plan.bounds.emplace_back(0, size);
  plan.steps.push_back(1);
  plan.out.push_back(size);
}

// A place along an axis of n elements: negative ones count from its end.
Size place(std::string_view method, const Size& at, const Size& n) {
  if (never_exceeds(0, at)) return at;
  KOINE_REQUIRE(
      at.largest() < 0, Value,
      "{}: {} is from {} to {}: a place counts from the start or, where negative, from the "
      "end of an axis, and this may be either",
      method, at, at.smallest(), at.largest());
  return at + n;
}

void take_slice(Plan& plan, std::string_view method, const Slice& slice, const Size& n) {
  KOINE_REQUIRE(slice.step != 0, Value, "{}: a slice has step 0", method);
  // A step as long as the axis takes one element, like every longer one.
  const int64_t most = std::max<int64_t>(n.largest(), 1),
                step = std::clamp(slice.step, -most, most);
  auto clamp = [&](const Size& v, const Size& low, const Size& high) {
    return smaller(larger(place(method, v, n), low), high);
  };
  Size from, to;
  if (step > 0) {
    from = slice.start ? clamp(*slice.start, 0, n) : Size(0);
    to = larger(slice.stop ? clamp(*slice.stop, 0, n) : n, from);
  } else {  // as a forward range of the flipped axis
    const Size first = slice.start ? clamp(*slice.start, -1, n - 1) : n - 1;
    const Size last = slice.stop ? clamp(*slice.stop, -1, n - 1) : Size(-1);
    from = smaller(last + 1, first + 1);
    to = first + 1;
    plan.flips.push_back(static_cast<int64_t>(plan.bounds.size()));
  }
  plan.bounds.emplace_back(from, to);
  plan.steps.push_back(step);
  plan.out.push_back((to - from + std::abs(step) - 1) / std::abs(step));
}

void take_position(Plan& plan, std::string_view method, const Size& position, const Shape& sizes) {
  const size_t axis = plan.bounds.size();
  const Size& n = sizes[axis];
  const bool inside =
      position.smallest() < 0 ? never_exceeds(0, position + n) : never_exceeds(position + 1, n);
  KOINE_REQUIRE(inside && position.smallest() != INT64_MIN, Index,
                "{}: position {} is out of range for axis {} of shape {} with size {}", method,
                position, axis, tensor::text_of(sizes), n);
  const Size at = place(method, position, n);
  plan.bounds.emplace_back(at, at + 1);
  plan.steps.push_back(0);
}

Plan plan_of(std::string_view method, const std::vector<IndexItem>& items, const Shape& sizes) {
  using Kind = IndexItem::Kind;
  size_t consumed = 0, ellipses = 0;
  for (const IndexItem& item : items) {
    ellipses += item.kind() == Kind::Ellipsis;
    consumed += item.kind() != Kind::Ellipsis && item.kind() != Kind::NewAxis;
  }
  KOINE_REQUIRE(ellipses <= 1, Index, "{}: more than one ellipsis", method);
  KOINE_REQUIRE(consumed <= sizes.size(), Index, "{}: {} indices for shape {}", method, consumed,
                tensor::text_of(sizes));
  Plan plan;
  bool dots = false;
  for (const IndexItem& item : items) {
    const size_t axis = plan.bounds.size();
    switch (item.kind()) {
      case Kind::NewAxis:
        plan.out.push_back(1);
        break;
      case Kind::Ellipsis:
        dots = !plan.tensors.empty();
        for (size_t k = 0; k < sizes.size() - consumed; ++k) take_all(plan, sizes[axis + k]);
        break;
      case Kind::Position:
        take_position(plan, method, item.position(), sizes);
        break;
      case Kind::Slice:
        take_slice(plan, method, item.slice(), sizes[axis]);
        break;
      case Kind::Tensor:
        require_integers(method, "positions", item.tensor());
        plan.apart = plan.apart || dots;
        plan.tensors.emplace_back(static_cast<int64_t>(plan.out.size()), item.tensor());
        take_all(plan, sizes[axis]);
        break;
    }
  }
  while (plan.bounds.size() < sizes.size()) take_all(plan, sizes[plan.bounds.size()]);
  return plan;
}

}  // namespace

// Pad to whole groups of `step`, keep the first of each.
Tensor Tensor::every(int64_t step, size_t axis) const {
  const Shape now = shape();
  const Size kept = (now[axis] + step - 1) / step;
  Tensor t = *this;
  if (!(now[axis] % step == 0)) {
    SizePairs padding(now.size(), {0, 0});
    padding[axis].second = kept * step - now[axis];
    t = t.padded_view(padding);
  }
  Shape grouped = t.shape();
  grouped[axis] = kept;
  const Shape dropped = grouped;
  grouped.insert(grouped.begin() + static_cast<std::ptrdiff_t>(axis) + 1, step);
  SizePairs first;
  for (const Size& s : grouped) first.emplace_back(0, s);
  first[axis + 1] = {0, 1};
  return t.reshape(grouped).shrink(first).reshape(dropped);
}

// Several tensors broadcast against each other and select points (NumPy's zipped meaning): one
// flattened index over the indexed axes, moved to the front; of tensors next to each other back to
// their place.
Tensor Tensor::points(std::string_view method,
                      const std::vector<std::pair<int64_t, Tensor>>& tensors, bool apart) const {
  std::vector<int64_t> order;
  for (const auto& [axis, index] : tensors) order.push_back(axis);
  for (int64_t i = 0; i < ndim(); ++i)
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  const Tensor front = permute(order);
  Shape merged = front.shape();
  merged.erase(merged.begin(), merged.begin() + static_cast<std::ptrdiff_t>(tensors.size()));
  Tensor flat = Tensor(int64_t{0}), valid = Tensor(true);
  Size count = 1;
  const bool fill = options().index == IndexMode::Fill;
  for (const auto& [axis, index] : tensors) {
    const Size n = size(axis);
    const Tensor at = tensor::positions(method, index, n);
    try {
      flat = flat * Tensor(n) + at;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::Value) throw;
      std::string shapes;
      for (const auto& [_, given] : tensors)
        shapes += (shapes.empty() ? "" : ", ") + shape_text(given.uop());
      raise(ErrorKind::Index, "{}: positions of shapes {} do not broadcast against each other",
            method, shapes);
    }
    if (fill) valid = valid.bitwise_and((at >= Tensor(int64_t{0})).bitwise_and(at < Tensor(n)));
    count *= n;
  }
  merged.insert(merged.begin(), count);
  if (fill) flat = where(valid, flat, Tensor(int64_t{-1}));
  const Tensor out = picked(front.reshape(merged), 0, flat);
  bool adjacent = !apart;
  for (size_t i = 1; i < tensors.size(); ++i)
    adjacent = adjacent && tensors[i].first == tensors[i - 1].first + 1;
  const int64_t place = adjacent ? tensors[0].first : 0, width = flat.ndim();
  std::vector<int64_t> back;
  for (int64_t i = 0; i < place; ++i) back.push_back(width + i);
  for (int64_t i = 0; i < width; ++i) back.push_back(i);
  for (int64_t i = width + place; i < out.ndim(); ++i) back.push_back(i);
  return place == 0 ? out : out.permute(back);
}

// Positions, slices and new axes make a view; tensors are applied to it afterwards.
Tensor Tensor::indexed(std::string_view method, const std::vector<IndexItem>& items) const {
  const tensor::Called called(method, this);
  const Plan plan = plan_of(method, items, shape());
  Tensor t = shrink(plan.bounds);
  if (!plan.flips.empty()) t = t.flip(plan.flips);
  for (size_t axis = 0; axis < plan.steps.size(); ++axis)
    if (const int64_t step = std::abs(plan.steps[axis]); step >= 2) t = t.every(step, axis);
  t = t.reshape(plan.out);
  if (plan.tensors.empty()) return t;
  if (plan.tensors.size() > 1) return t.points(method, plan.tensors, plan.apart);
  const auto& [axis, index] = plan.tensors[0];
  return tensor::selected(method, t, axis, index);
}

Tensor Tensor::operator[](int64_t position) const {
  return indexed("index", {IndexItem(position)});
}
Tensor Tensor::operator[](const Size& position) const {
  return indexed("index", {IndexItem(position)});
}
Tensor Tensor::operator[](const std::vector<IndexItem>& items) const {
  return indexed("index", items);
}

Tensor Tensor::index_select(int64_t axis, const Tensor& index) const {
  const tensor::Called called("index_select", this, &index);
  return tensor::selected("index_select", *this, axis_of(axis, "index_select"), index);
}

}  // namespace koine

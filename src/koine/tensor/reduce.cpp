#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/tensor/recurrence.hpp"
#include "koine/transform/custom_rule.hpp"

namespace koine {

namespace {
// Of a symbolic size: in this run.
bool is_empty(const Size& n) { return n.smallest() <= 0 && n.present() == 0; }
}  // namespace

Tensor Tensor::reduced(Op op, const Axes& axes, bool keepdim, std::string_view method) const {
  const Axes over = axes_of(axes, method);
  const Tensor out(over.empty() ? uop() : koine::reduce(op, uop(), over));
  if (keepdim) return out;
  Shape kept;
  const Shape sizes = shape();
  for (size_t i = 0; i < sizes.size(); ++i)
    if (std::find(over.begin(), over.end(), static_cast<int64_t>(i)) == over.end())
      kept.push_back(sizes[i]);
  return Tensor(koine::reshape(out.uop(), shape_of(kept)));
}

namespace {
// Bool and narrow integers add and multiply in 32 bits; NumPy takes 64.
DType accumulated(DType d) {
  if (is_float(d) || item_size(d) >= 4) return d;
  return is_unsigned(d) ? DType::UInt32 : DType::Int32;
}
}  // namespace

// Narrow floats add in float32.
Tensor Tensor::accumulate(Op op, const Axes& axes, bool keepdim, std::string_view method) const {
  const DType d = dtype();
  if (is_small_float(d)) return cast(DType::Float32).reduced(op, axes, keepdim, method).cast(d);
  return cast(accumulated(d)).reduced(op, axes, keepdim, method);
}
Tensor Tensor::sum(const Axes& axes, bool keepdim) const {
  return accumulate(Op::Add, axes, keepdim, "sum");
}
Tensor Tensor::prod(const Axes& axes, bool keepdim) const {
  return accumulate(Op::Mul, axes, keepdim, "prod");
}
// No number is the largest of none.
void Tensor::require_elements(const Axes& axes, std::string_view method) const {
  for (const int64_t a : axes_of(axes, method))
    KOINE_REQUIRE(!is_empty(size(a)), Value, "{}: axis {} of shape {} is empty: it has no {}",
                  method, a, shape_text(uop()), method);
}
Tensor Tensor::largest(const Axes& axes, bool keepdim, std::string_view method) const {
  if (is_small_float(dtype()))
    return cast(DType::Float32).reduced(Op::Max, axes, keepdim, method).cast(dtype());
  return reduced(Op::Max, axes, keepdim, method);
}
Tensor Tensor::max(const Axes& axes, bool keepdim) const {
  require_elements(axes, "max");
  return largest(axes, keepdim, "max");
}
Tensor Tensor::min(const Axes& axes, bool keepdim) const {
  require_elements(axes, "min");
  if (is_float(dtype())) return neg().largest(axes, keepdim, "min").neg();
  return bitwise_not().largest(axes, keepdim, "min").bitwise_not();
}
namespace {
// 1 / count, rounded once, in float64.
Tensor inverse_of(const Size& count) {
  if (count.is_number()) return Tensor(1.0 / static_cast<double>(int64_t{count}));
  return Tensor(constant(DType::Float64, 1)) / Tensor(count).cast(DType::Float64);
}
}  // namespace

Tensor Tensor::mean(const Axes& axes, bool keepdim) const {
  Size count = 1;
  for (const int64_t a : axes_of(axes, "mean")) count *= size(a);
  const DType out = is_float(dtype()) ? dtype() : DType::Float32;
  const Tensor wide = is_small_float(out) ? cast(DType::Float32) : cast(out);
  const Tensor total = wide.sum(axes, keepdim), share = inverse_of(count);
  return (total * (count.is_number() ? share : share.cast(total.dtype()))).cast(out);
}
namespace {
// What the squares of deviations from a mean are computed in: they would leave the range of narrow
// floats, and float32 may not hold the mean of integers.
DType squares_in(DType d) {
  return is_small_float(d) ? DType::Float32 : is_float(d) ? d : DType::Float64;
}
DType result_of(DType d) { return is_float(d) ? d : DType::Float32; }

// The root of a sum of squares, whose slope at 0 is 0 by convention (that of the root is infinite).
Tensor root_of_squares(const Tensor& sum) {
  const Tensor is_zero = sum == tensor::like(sum, 0);
  return Tensor::where(is_zero, tensor::like(sum, 0),
                       Tensor::where(is_zero, tensor::like(sum, 1), sum).sqrt());
}
}  // namespace

Tensor Tensor::var(const Axes& axes, bool keepdim, int64_t correction) const {
  const tensor::Called called("var", this);
  if (const DType wide = squares_in(dtype()); wide != dtype())
    return cast(wide).var(axes, keepdim, correction).cast(result_of(dtype()));
  Size count = 1;
  for (const int64_t a : axes_of(axes, "var")) count *= size(a);
  const Tensor centred = *this - mean(axes, true);
  const Size degrees = larger(0, count - correction);
  return centred.square().sum(axes, keepdim) / (degrees.is_number()
                                                    ? Tensor(static_cast<double>(int64_t{degrees}))
                                                    : Tensor(degrees).cast(dtype()));
}
Tensor Tensor::std(const Axes& axes, bool keepdim, int64_t correction) const {
  if (const DType wide = squares_in(dtype()); wide != dtype())
    return cast(wide).std(axes, keepdim, correction).cast(result_of(dtype()));
  return root_of_squares(var(axes_of(axes, "std"), keepdim, correction));
}
Tensor Tensor::any(const Axes& axes, bool keepdim) const {
  return cast(DType::Bool).reduced(Op::Max, axes, keepdim, "any");
}
Tensor Tensor::all(const Axes& axes, bool keepdim) const {
  return cast(DType::Bool).logical_not().reduced(Op::Max, axes, keepdim, "all").logical_not();
}

namespace {
// What is found along an axis of all elements in one row, with as many axes as there were.
template <class F>
Tensor found_in_all(std::string_view method, const Tensor& x, bool keepdim, F&& find) {
  for (const Size& size : x.shape())
    KOINE_REQUIRE(!is_empty(size), Value, "{}: shape {} is empty", method, shape_text(x.uop()));
  const Tensor at = find(x.reshape({-1}));
  return keepdim ? at.reshape(Shape(static_cast<size_t>(x.ndim()), 1)) : at;
}
}  // namespace

// The first position of the largest: positions counted down from n, kept where the value is the
// largest (a NaN counts as the largest), and the largest of them.
Tensor Tensor::argmax(std::optional<int64_t> axis, bool keepdim) const {
  const tensor::Called called("argmax", this);
  if (!axis)
    return found_in_all("argmax", *this, keepdim, [](const Tensor& x) { return x.argmax(0); });
  const int64_t a = axis_of(*axis, "argmax");
  const Size n = size(a);
  KOINE_REQUIRE(!is_empty(n), Value, "argmax: axis {} of shape {} is empty", *axis,
                shape_text(uop()));
  const Tensor top = max({a}, true);
  Tensor hit = *this == top;
  if (is_float(dtype())) hit = hit.bitwise_or(isnan());
  Shape wide(static_cast<size_t>(ndim()), 1);
  wide[static_cast<size_t>(a)] = n;
  const Tensor countdown = arange(n, 0, -1).reshape(wide);
  const Tensor best = (hit.cast(DType::Int32) * countdown).max({a}, keepdim);
  return (n.is_number() ? Tensor(static_cast<int>(int64_t{n})) : Tensor(n).cast(DType::Int32)) -
         best;
}
Tensor Tensor::argmin(std::optional<int64_t> axis, bool keepdim) const {
  const tensor::Called called("argmin", this);
  if (!axis)
    return found_in_all("argmin", *this, keepdim, [](const Tensor& x) { return x.argmin(0); });
  const int64_t a = axis_of(*axis, "argmin");
  KOINE_REQUIRE(!is_empty(size(a)), Value, "argmin: axis {} of shape {} is empty", *axis,
                shape_text(uop()));
  return (is_float(dtype()) ? neg() : bitwise_not()).argmax(a, keepdim);
}

namespace {

// out[i] = fold of x[0..i] along an axis. A mask says which elements belong to a result, and
// results are counted from the last: the gradient of this form is this form along the other axis,
// summed in the order of a loop that goes down. Scans are recognised in it (lower/scan).
Tensor running(Op op, const Tensor& x, int64_t a) {
  const Size n = x.size(a);
  Shape results = x.shape(), elements = results, from_last(results.size() + 1, 1), at = from_last;
  results.insert(results.begin() + a, n);
  elements.insert(elements.begin() + a, 1);
  from_last[static_cast<size_t>(a)] = at[static_cast<size_t>(a) + 1] = n;
  const Tensor last_counted =
      Tensor(n - 1) - Tensor::arange(0, n, 1, DType::Int64).reshape(from_last);
  const Tensor counts = Tensor::arange(0, n, 1, DType::Int64).reshape(at) <= last_counted;
  const Tensor none(identity_of(op, x.dtype()));
  return Tensor(
             koine::reshape(
                 koine::reduce(op, Tensor::where(counts, x.reshape(elements), none).uop(), {a + 1}),
                 x.uop().shape()))
      .flip({a});
}

// The derivatives of running products: of p[j], x[j] p'[j - 1] + p[j - 1] x'[j].
const std::string& product_rule() {
  using Given = CustomRule::Given;
  static const std::string& name = *new std::string(register_custom_rule(
      "cumprod",
      {.vjp =
           [](const Given& of) {
             const Tensor x(of.arguments[0]), before = tensor::shifted(Tensor(of.results[0]), 1);
             return std::vector<UOp>{
                 (tensor::recurrence_back(x, Tensor(of.moved[0])) * before).uop()};
           },
       .jvp =
           [](const Given& of) {
             const Tensor x(of.arguments[0]), before = tensor::shifted(Tensor(of.results[0]), 1);
             return std::vector<UOp>{tensor::recurrence(x, Tensor(of.moved[0]) * before).uop()};
           },
       .rows = true}));
  return name;
}

// Of fewer elements each has its own product of all others: that costs less than kernels.
constexpr int64_t fewest_of_a_recurrence = 32;

// A running product along an axis, whose derivatives take one step an element.
Tensor running_product(const Tensor& x, int64_t a) {
  const Shape shape = x.shape();
  const bool known =
      std::all_of(shape.begin(), shape.end(), [](const Size& s) { return s.is_number(); });
  if (!known || !is_float(x.dtype()) ||
      int64_t{shape[static_cast<size_t>(a)]} < fewest_of_a_recurrence ||
      x.uop().device().count() > 1)
    return running(Op::Mul, x, a);
  Ints order;
  for (int64_t k = 0; k < x.ndim(); ++k) order.push_back(k);
  std::swap(order[static_cast<size_t>(a)], order.back());
  const UOp rows = permute(x.uop(), order);
  const UOp product = running(Op::Mul, Tensor(argument_param(0, rows)), x.ndim() - 1).uop();
  const UOp call =
      custom_function(tuple(std::vector<UOp>{product}), std::vector<UOp>{rows}, product_rule());
  return Tensor(permute(get_tuple(call, 0), order));
}

// The same in the dtype that a sum or product of these elements has.
Tensor accumulating(Op op, const Tensor& x, int64_t axis) {
  const DType d = x.dtype();
  if (is_small_float(d)) return accumulating(op, x.cast(DType::Float32), axis).cast(d);
  if (const DType wide = accumulated(d); wide != d) return accumulating(op, x.cast(wide), axis);
  if (x.ndim() == 0 || x.numel() == 0) return x;
  return op == Op::Mul ? running_product(x, axis) : running(op, x, axis);
}

}  // namespace

Tensor Tensor::cumsum(int64_t axis) const {
  const tensor::Called called("cumsum", this);
  return accumulating(Op::Add, *this, ndim() == 0 ? 0 : axis_of(axis, "cumsum"));
}
Tensor Tensor::cumprod(int64_t axis) const {
  const tensor::Called called("cumprod", this);
  return accumulating(Op::Mul, *this, ndim() == 0 ? 0 : axis_of(axis, "cumprod"));
}

// By the position of the largest so far, which a gradient goes to.
Tensor Tensor::cummax(int64_t axis) const {
  const tensor::Called called("cummax", this);
  if (ndim() == 0) return *this;
  const int64_t a = axis_of(axis, "cummax");
  if (numel() == 0) return *this;
  if (!is_float(dtype())) return running(Op::Max, *this, a);
  const Tensor x = is_small_float(dtype()) ? detach().cast(DType::Float32) : detach();
  const Tensor top = running(Op::Max, x, a);
  Shape places(static_cast<size_t>(ndim()), 1);
  places[static_cast<size_t>(a)] = size(a);
  const Tensor position =
      where((x == top).bitwise_or(x.isnan()), arange(size(a)).reshape(places), Tensor(int32_t{0}));
  return along(a, running(Op::Max, position, a));
}
Tensor Tensor::cummin(int64_t axis) const {
  const tensor::Called called("cummin", this);
  return tensor::as_method("cummin", {*this}, [&] {
    return is_float(dtype()) ? neg().cummax(axis).neg() : bitwise_not().cummax(axis).bitwise_not();
  });
}

Tensor Tensor::softmax(int64_t axis) const {
  const tensor::Called called("softmax", this);
  const Tensor x = is_float(dtype()) ? *this : cast(DType::Float32);
  const int64_t a = axis_of(axis, "softmax");
  const Tensor e = (x - x.largest(a, true, "softmax").detach()).exp();
  return e / e.sum(a, true);
}
Tensor Tensor::log_softmax(int64_t axis) const {
  const tensor::Called called("log_softmax", this);
  const Tensor x = is_float(dtype()) ? *this : cast(DType::Float32);
  const int64_t a = axis_of(axis, "log_softmax");
  const Tensor shifted = x - x.largest(a, true, "log_softmax").detach();
  return shifted - shifted.exp().sum(a, true).log();
}
Tensor Tensor::logsumexp(const Axes& axes, bool keepdim) const {
  const tensor::Called called("logsumexp", this);
  const Tensor x = is_float(dtype()) ? *this : cast(DType::Float32);
  const Tensor top = x.largest(axes, true, "logsumexp").detach();
  const Tensor shift = where(top.isinf(), tensor::like(top, 0), top);  // inf - inf would be NaN
  const Tensor total = (x - shift).exp().sum(axes, keepdim).log();
  return total + shift.reshape(total.shape());
}
Tensor Tensor::norm(const Axes& axes, bool keepdim) const {
  const tensor::Called called("norm", this);
  if (is_small_float(dtype())) return cast(DType::Float32).norm(axes, keepdim).cast(dtype());
  if (!is_float(dtype())) return cast(DType::Float32).norm(axes, keepdim);  // squares would wrap
  return root_of_squares(square().reduced(Op::Add, axes, keepdim, "norm"));
}
Tensor Tensor::layernorm(int64_t last_axes, double eps) const {
  const tensor::Called called("layernorm", this);
  KOINE_REQUIRE(last_axes >= 1 && last_axes <= ndim(), Value,
                "layernorm: over the last {} axes of shape {}: use 1 to {}", last_axes,
                shape_text(uop()), ndim());
  if (const DType wide = squares_in(dtype()); wide != dtype())
    return cast(wide).layernorm(last_axes, eps).cast(result_of(dtype()));
  Axes axes;
  for (int64_t i = 1; i <= last_axes; ++i) axes.push_back(-i);
  const Tensor centred = *this - mean(axes, true);
  return centred * (centred.square().mean(axes, true) + Tensor(eps)).rsqrt();
}

}  // namespace koine

#include <cmath>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/transform/compose.hpp"

namespace koine {

Size tensor::count_for(std::string_view method, const Shape& shape) {
  const auto count = count_of(shape);
  KOINE_REQUIRE(count, Value, "{}: shape {} has a negative size or is too large", method,
                text_of(shape));
  return *count;
}

Tensor Tensor::full(const Shape& shape, const Tensor& value, std::optional<DType> dtype) {
  (void)tensor::count_for("full", shape);
  const DType d = dtype.value_or(value.dtype());
  const UOp filled = tensor::broadcast_scalar(value.in_dtype("full", d), shape);
  return Tensor(is_float(d) ? History::leaf_of(filled) : filled);
}
Tensor Tensor::zeros(const Shape& shape, DType dtype) {
  (void)tensor::count_for("zeros", shape);
  return full(shape, 0, dtype);
}
Tensor Tensor::ones(const Shape& shape, DType dtype) {
  (void)tensor::count_for("ones", shape);
  return full(shape, 1, dtype);
}
Tensor tensor::like(const Tensor& x, double value) {
  return Tensor(broadcast_scalar(constant(x.dtype(), value), x.shape()));
}
Tensor Tensor::full_like(const Tensor& value) const {
  const UOp filled = tensor::broadcast_scalar(value.in_dtype("full_like", dtype()), shape());
  return Tensor(is_float(dtype()) ? History::leaf_of(filled) : filled);
}

namespace {
// Whether a number is in the range of a dtype; floats may round it.
bool holds(DType dtype, const __int128& v) {
  if (is_float(dtype)) return std::isfinite(const_double(constant(dtype, static_cast<double>(v))));
  const IntegerRange range = integer_range(dtype);
  return range.low <= v && v <= range.high;
}
}  // namespace

// How many numbers arange(start, stop, step) has, before its ends are known to be in range.
namespace {
Size arange_length(int64_t start, int64_t stop, int64_t step) {
  // In 128 bits: stop - start may need 65.
  const __int128 from = start, span = step > 0 ? stop - from : from - stop,
                 width = step > 0 ? step : -static_cast<__int128>(step);
  const __int128 count = span <= 0 ? 0 : (span + width - 1) / width;
  KOINE_REQUIRE(count <= INT64_MAX, Value, "arange({}, {}, {}): more elements than memory can hold",
                start, stop, step);
  return static_cast<int64_t>(count);
}
Size arange_length(const Size& start, const Size& stop, int64_t step) {
  if (start.is_number() && stop.is_number())
    return arange_length(int64_t{start}, int64_t{stop}, step);
  const Size span = step > 0 ? stop - start : start - stop;
  KOINE_REQUIRE(
      never_exceeds(0, span) && step != INT64_MIN, Value,
      "arange({}, {}, {}): the length may be negative: give the Variables narrower ranges", start,
      stop, step);
  return (span + (std::abs(step) - 1)) / std::abs(step);
}
}  // namespace

Tensor Tensor::arange(const Size& start, const Size& stop, int64_t step, DType dtype) {
  KOINE_REQUIRE(is_float(dtype) || is_integer(dtype) || dtype == DType::Bool, Type,
                "arange: {} is not a dtype of tensors", dtype_name(dtype));
  KOINE_REQUIRE(step != 0, Value, "arange: the step must not be 0");
  const Size n = arange_length(start, stop, step);
  const __int128 steps = static_cast<__int128>(n.largest() - 1) * step;
  const __int128 low = start.smallest() + std::min<__int128>(steps, 0),
                 high = start.largest() + std::max<__int128>(steps, 0);
  KOINE_REQUIRE(n.largest() == 0 || (holds(dtype, low) && holds(dtype, high)), Value,
                "arange({}, {}, {}): {} does not hold {} to {}: ask for a wider dtype", start, stop,
                step, dtype_name(dtype), start, start.largest() + static_cast<int64_t>(steps));
  // Positions are counted in integers and converted once, so that float sequences are exact.
  const bool large = std::max(start.largest(), stop.largest()) > INT32_MAX ||
                     std::min(start.smallest(), stop.smallest()) < -INT32_MAX;
  const DType counting = is_float(dtype) || large ? DType::Int64
                         : dtype == DType::Bool   ? DType::Int32
                                                  : dtype;
  const Tensor i(iota(n.uop(), counting));
  const Tensor scaled = step == 1 ? i : i * Tensor(constant_int(counting, step));
  const Tensor first =
      start.is_number() ? Tensor(constant_int(counting, start)) : Tensor(start).cast(counting);
  return (start == 0 ? scaled : scaled + first).cast(dtype);
}
namespace {

// Whether a dtype has a number near this one.
bool has_near(DType dtype, double value) {
  if (is_float(dtype)) return std::isfinite(bits_to_double(dtype, double_to_bits(dtype, value)));
  return std::abs(value) < 0x1p64 && holds(dtype, static_cast<__int128>(value));
}

}  // namespace

Tensor Tensor::evenly_spaced(double start, double stop, double step, DType dtype) {
  KOINE_REQUIRE(std::isfinite(start) && std::isfinite(stop) && std::isfinite(step), Value,
                "arange({}, {}, {}): start, stop and step must be finite", start, stop, step);
  KOINE_REQUIRE(step != 0, Value, "arange: the step must not be 0");
  const double count = std::max(0.0, std::ceil((stop - start) / step));
  KOINE_REQUIRE(count < 0x1p53, Value, "arange({}, {}, {}): more elements than memory can hold",
                start, stop, step);
  const double last = start + std::max(count - 1, 0.0) * step;
  KOINE_REQUIRE(count == 0 || (has_near(dtype, start) && has_near(dtype, last)), Value,
                "arange({}, {}, {}): {} does not hold {} to {}: ask for a wider dtype", start, stop,
                step, dtype_name(dtype), start, last);
  const Tensor i = arange(0, static_cast<int64_t>(count), 1, DType::Float64);
  return (i * Tensor(step) + Tensor(start)).cast(dtype);
}
Tensor Tensor::linspace(double start, double stop, int64_t steps) {
  KOINE_REQUIRE(steps >= 0, Value, "linspace: {} steps", steps);
  KOINE_REQUIRE(has_near(DType::Float32, start) && has_near(DType::Float32, stop), Value,
                "linspace({}, {}, {}): float32 does not hold these ends", start, stop, steps);
  if (steps == 1) return full({1}, start);
  // In float64 and rounded once: the last number is `stop`.
  const Tensor i = arange(0, steps, 1, DType::Float64);
  return (i * Tensor((stop - start) / static_cast<double>(steps - 1)) + Tensor(start))
      .cast(DType::Float32);
}
Tensor Tensor::eye(const Size& n, DType dtype) {
  KOINE_REQUIRE(n.smallest() >= 0, Value, "eye: the size {} is negative", n);
  return (arange(n).reshape({n, 1}) == arange(n).reshape({1, n})).cast(dtype);
}

}  // namespace koine

#include <cmath>
#include <mutex>
#include <numbers>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/transform/gradient.hpp"

namespace koine {

namespace {
// How many elements a shape has; refused in the name of `method` where it is none.
Size count_for(std::string_view method, const Shape& shape) {
  const auto count = tensor::count_of(shape);
  KOINE_REQUIRE(count, Value, "{}: shape {} has a negative size or is too large", method,
                tensor::text_of(shape));
  return *count;
}
}  // namespace

Tensor Tensor::full(const Shape& shape, const Tensor& value, DType dtype) {
  (void)count_for("full", shape);
  const UOp filled = tensor::broadcast_scalar(value.in_dtype("full", dtype), shape);
  return Tensor(is_float(dtype) ? History::leaf_of(filled) : filled);
}
Tensor Tensor::zeros(const Shape& shape, DType dtype) {
  (void)count_for("zeros", shape);
  return full(shape, 0, dtype);
}
Tensor Tensor::ones(const Shape& shape, DType dtype) {
  (void)count_for("ones", shape);
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
Tensor Tensor::linspace(double start, double stop, int64_t steps) {
  KOINE_REQUIRE(steps >= 0, Value, "linspace: {} steps", steps);
  if (steps == 1) return full({1}, start);
  // In float64 and rounded once: the last number is `stop`.
  const Tensor i = arange(0, steps, 1, DType::Float64);
  return (i * Tensor((stop - start) / static_cast<double>(steps - 1)) + Tensor(start))
      .cast(DType::Float32);
}
Tensor Tensor::eye(int64_t n, DType dtype) {
  KOINE_REQUIRE(n >= 0, Value, "eye: the size {} is negative", n);
  return (arange(n).reshape({n, 1}) == arange(n).reshape({1, n})).cast(dtype);
}

// --- random
// ----------------------------------------------------------------------------------------

namespace {

// The global key and counter. Both reach kernels as buffers, so that the compiled code is the same
// for every draw (amendment C36).
struct RandomState {
  std::mutex mutex;
  uint64_t seed = 0, counter = 0;
};
RandomState& random_state() {
  static auto& state = *new RandomState;
  return state;
}

}  // namespace

Tensor tensor::random_bits(std::string_view method, const Shape& shape, const Placement& place) {
  const Size n = count_for(method, shape);
  uint64_t draw[2];
  {
    RandomState& state = random_state();
    const std::lock_guard lock(state.mutex);
    draw[0] = state.seed;
    draw[1] = state.counter;
    state.counter += static_cast<uint64_t>(n.present());
  }
  // Each device has the state, and counts the elements that it holds.
  const Tensor state(buffer_from_host(shape_of({2}), DType::UInt64, place.device.name(), draw, -1));
  const Tensor key = state.shrink({{0, 1}}).reshape({}), base = state.shrink({{1, 2}}).reshape({});
  UOp counters = reshape(iota(n.uop(), DType::UInt64), shape_of(shape));
  if (place.device.count() > 1) counters = copy_to(counters, place);
  return Tensor(binary(Op::Threefry, add(counters, base.uop()), key.uop()));
}

Placement tensor::place_of(const std::string& device) {
  return {Device(device.empty() ? default_device() : device), 0};
}

namespace {

// 24 random bits: every float32 multiple of 2^-24 in [0, 1) is equally likely.
Tensor random_floats(std::string_view method, const Shape& shape, const Placement& place) {
  const Tensor bits = tensor::random_bits(method, shape, place)
                          .cast(DType::UInt32)
                          .rshift(Tensor(constant_int(DType::UInt32, 8)));
  return bits.cast(DType::Float32) * Tensor(0x1p-24);
}

}  // namespace

void Tensor::manual_seed(uint64_t seed) {
  RandomState& state = random_state();
  const std::lock_guard lock(state.mutex);
  state.seed = seed;
  state.counter = 0;
}

Tensor Tensor::rand(const Shape& shape, const std::string& device) {
  return random_floats("rand", shape, tensor::place_of(device));
}
// Box and Muller's transform; 1 - u keeps the logarithm's argument above 0.
Tensor Tensor::randn(const Shape& shape, const std::string& device) {
  auto uniform = [&] { return random_floats("randn", shape, tensor::place_of(device)); };
  const Tensor radius = ((Tensor(1.0) - uniform()).log() * Tensor(-2.0)).sqrt();
  return radius * (uniform() * Tensor(2 * std::numbers::pi)).cos();
}
Tensor Tensor::randint(const Shape& shape, int64_t low, int64_t high, const std::string& device) {
  KOINE_REQUIRE(low < high && low >= INT32_MIN && high - 1 <= INT32_MAX, Value,
                "randint: the range [{}, {}) is empty or leaves int32", low, high);
  // 64 random bits modulo the range: the bias is below 2^-32.
  const Tensor bits = tensor::random_bits("randint", shape, tensor::place_of(device));
  const Tensor offset =
      bits.mod(Tensor(constant_int(DType::UInt64, high - low))).cast(DType::Int64);
  return (offset + Tensor(low)).cast(DType::Int32);
}
Tensor Tensor::uniform(const Shape& shape, double low, double high, const std::string& device) {
  KOINE_REQUIRE(low <= high && std::isfinite(low) && std::isfinite(high), Value,
                "uniform: from {} to {}: both must be finite, and the first not above the second",
                low, high);
  return random_floats("uniform", shape, tensor::place_of(device)) * Tensor(high - low) +
         Tensor(low);
}
namespace {
int64_t fan_in(std::string_view method, const Shape& shape) {
  KOINE_REQUIRE(!shape.empty(), Value, "{}: needs a shape with at least one axis", method);
  int64_t n = 1;
  for (size_t i = 1; i < shape.size(); ++i) n *= shape[i];
  return shape.size() == 1 ? int64_t{shape[0]} : n;
}
}  // namespace
Tensor Tensor::kaiming_uniform(const Shape& shape, const std::string& device) {
  const double bound = std::sqrt(3.0) * std::sqrt(2.0 / (1 + 0.01 * 0.01)) /
                       std::sqrt(static_cast<double>(fan_in("kaiming_uniform", shape)));
  return uniform(shape, -bound, bound, device);
}
Tensor Tensor::glorot_uniform(const Shape& shape, const std::string& device) {
  const double fans = static_cast<double>(shape.empty() ? 1 : int64_t{shape[0]}) +
                      static_cast<double>(fan_in("glorot_uniform", shape));
  const double bound = std::sqrt(6.0 / fans);
  return uniform(shape, -bound, bound, device);
}
Tensor Tensor::dropout(double p, bool training) const {
  KOINE_REQUIRE(p >= 0 && p <= 1, Value, "dropout: p = {} is not a probability", p);
  if (!training || p == 0) return *this;
  if (p == 1) return tensor::like(*this, 0);
  const UOp x = uop();
  const Placement place = x.device() ? x.node()->placement : tensor::place_of("");
  const Tensor keep = random_floats("dropout", shape(), place) >= Tensor(p);
  return where(keep, *this * Tensor(1 / (1 - p)), tensor::like(*this, 0));
}

}  // namespace koine

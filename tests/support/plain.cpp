#include "plain.hpp"

#include <algorithm>
#include <limits>

#include "koine/ir/text.hpp"

namespace koine::test {

Real Plain::operator()(const Place& index) const {
  int64_t place = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    EXPECT_TRUE(index[i] >= 0 && index[i] < shape[i]) << "a definition reads beyond its operand";
    place = place * shape[i] + index[i];
  }
  return at.at(static_cast<size_t>(place));
}

int64_t count_of(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}
Place place_of(const Shape& shape, int64_t place) {
  Place out(shape.size());
  for (size_t i = shape.size(); i-- > 0; place /= shape[i]) out[i] = place % shape[i];
  return out;
}
Plain plain(DType dtype, const Shape& shape, const std::function<Real(const Place&)>& value) {
  Plain out{dtype, shape, {}};
  for (int64_t i = 0; i < count_of(shape); ++i) out.at.push_back(value(place_of(shape, i)));
  return out;
}
Plain row_of(DType dtype, const std::vector<Real>& values) {
  return {dtype, {static_cast<int64_t>(values.size())}, values};
}

Real broadcast(const Plain& x, const Place& place) {
  Place own(place.end() - static_cast<std::ptrdiff_t>(x.shape.size()), place.end());
  for (size_t i = 0; i < own.size(); ++i) own[i] = x.shape[i] == 1 ? 0 : own[i];
  return x(own);
}
Real larger(Real a, Real b) { return std::isnan(a) || a > b ? a : b; }
Real smaller(Real a, Real b) { return std::isnan(a) || a < b ? a : b; }

Plain exact_numbers(std::mt19937_64& random, DType dtype, const Shape& shape) {
  return plain(dtype, shape, [&](const Place&) -> Real {
    const auto v = static_cast<int64_t>(random() % 33) - 16;
    if (dtype == DType::Bool) return v < 0 ? 1 : 0;
    if (is_float(dtype)) return static_cast<Real>(v) / 4;
    return static_cast<Real>(is_unsigned(dtype) ? v + 16 : v);
  });
}
Plain special_numbers(std::mt19937_64& random, DType dtype, const Shape& shape, int every) {
  const Real special[] = {inf, -inf, std::numeric_limits<Real>::quiet_NaN(), -0.0L};
  Plain out = exact_numbers(random, dtype, shape);
  if (is_float(dtype))
    for (Real& v : out.at)
      if (random() % static_cast<uint64_t>(every) == 0) v = special[random() % 4];
  return out;
}

Tensor tensor_of(const Plain& x) {
  Array out{x.dtype, x.shape, {}, {}};
  for (const Real v : x.at)
    out.data.push_back(is_float(x.dtype) ? double_to_bits(x.dtype, static_cast<double>(v))
                                         : int_to_bits(x.dtype, static_cast<int64_t>(v)));
  return Tensor::from_bytes(bytes_of(out).data(), x.shape, x.dtype);
}

namespace {

Real rounded(DType dtype, Real v) {
  if (is_float(dtype))
    return dtype == DType::Float32
               ? static_cast<Real>(static_cast<float>(v))
               : bits_to_double(dtype, double_to_bits(dtype, static_cast<double>(v)));
  return static_cast<Real>(bits_to_int(dtype, int_to_bits(dtype, static_cast<int64_t>(v))));
}

// The distance from a number to the next larger one of its dtype.
Real unit_at(DType dtype, Real v) {
  int exponent = 0;
  (void)std::frexp(v, &exponent);
  const bool wide = dtype == DType::Float64;
  return std::ldexp(Real(1), std::max(exponent - (wide ? 53 : 24), wide ? -1074 : -149));
}

bool is_near(DType dtype, Real want, Real got, const Within& within) {
  if (std::isnan(want)) return std::isnan(got);
  const Real once = rounded(dtype, want);
  if (once == got)
    return !within.signs || got != 0 || !is_float(dtype) || std::signbit(want) == std::signbit(got);
  if (within.units == 0 || !std::isfinite(once) || !std::isfinite(got)) return false;
  return std::fabs(got - want) <=
         within.units * unit_at(dtype, std::max(std::fabs(want), within.scale));
}

}  // namespace

std::string difference(const Plain& want, const Tensor& got, const Within& within) {
  if (got.dtype() != want.dtype)
    return fmt::format("dtype {}, not {}", dtype_name(got.dtype()), dtype_name(want.dtype));
  if (got.shape() != want.shape)
    return "shape " + shape_text(got.uop()) + ", not " + shape_text(shape_of(want.shape));
  const std::vector<double> values = got.tolist<double>();
  for (size_t i = 0; i < values.size(); ++i)
    if (!is_near(want.dtype, want.at[i], values[i], within))
      return fmt::format("element {} of {} is {:.17g}, not {:.17g}", i, values.size(), values[i],
                         static_cast<double>(want.at[i]));
  return "";
}

void on_both(bool quick, const std::function<void()>& action) {
  in_both_modes([&] {
    Options o = options();
    if (quick || o.strict) o.device = "INTERP";
    if (quick) o.verify = std::min(o.verify, 1);
    const OptionScope scope(o);
    action();
  });
}

void expect_exactly(const Tensor& got, const std::vector<double>& wanted) {
  const auto values = got.tolist<double>();
  ASSERT_EQ(values.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::isnan(wanted[i])) {
      EXPECT_TRUE(std::isnan(values[i])) << i;
      continue;
    }
    EXPECT_EQ(values[i], wanted[i]) << i;
    EXPECT_EQ(std::signbit(values[i]), std::signbit(wanted[i])) << i;
  }
}

}  // namespace koine::test

#include <cmath>
#include <limits>
#include <numbers>
#include <span>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/transform/custom_rule.hpp"

// The error function and what networks apply to each element.
namespace koine {

using tensor::in_floats;

Tensor Tensor::relu() const {
  const Tensor zero(constant(dtype(), 0));
  return where(*this > zero, *this, detach().maximum(zero));  // NaN stays
}
Tensor Tensor::leaky_relu(double slope) const {
  return in_floats(*this, [&](const Tensor& x) { return where(x < 0.0, x * slope, x); });
}

namespace {

// exp(z) for z <= 0 as the product of two factors, so that what it is multiplied with comes between
// them: the exponential alone would already have lost digits where it is subnormal. The first is 0
// where the product with what gates and densities have is, so that nothing underflows there.
struct Decay {
  Tensor main, rest;  // the second is 1 but where z is far below 0
};
Decay decay(const Tensor& z) {
  const bool wide = z.dtype() == DType::Float64;
  const double step = wide ? 455 : 60.625;  // exp(-step) is almost a float
  const double end = wide ? -755 : -110;
  const Tensor deep = z < -step;
  const Tensor main = Tensor::where(z < end, -std::numeric_limits<double>::infinity(),
                                    Tensor::where(deep, z + step, z));
  return {main.exp(), Tensor::where(deep, tensor::like(z, std::exp(-step)), 1.0)};
}

// x / (1 + exp(-y)) for y = high + low, low a small correction. y has the sign of x, and x is not
// -inf.
Tensor gated(const Tensor& x, const Tensor& high, const Tensor& low = {}) {
  const Tensor negative = high < 0.0;
  auto [main, rest] = decay(tensor::magnitude(high).neg());
  if (low.defined()) main = main + main * Tensor::where(negative, low, low.neg());
  return Tensor::where(negative, x * main * rest, x) / (main * rest + 1.0);
}

// gelu is gated by 2 sqrt(2/pi) (x + 0.044715 x^3).
constexpr double gelu_linear = 1.5957691216057308, gelu_cubic = 0.071354816272600254;
Tensor gelu_argument(const Tensor& x) { return x * (x * x * gelu_cubic + gelu_linear); }

// The rounding error of gelu_argument(x) = y: exp multiplies the relative error of y by y.
Tensor gelu_argument_error(const Tensor& x, const Tensor& y) {
  if (x.dtype() == DType::Float32)
    return (gelu_argument(x.cast(DType::Float64)) - y.cast(DType::Float64)).cast(DType::Float32);
  // Of x = h + d, h has 13 bits: h^3 is exact, and so are the products of h and h^3 with the
  // leading bits of the coefficients. The rest is small.
  constexpr double linear = 0x1.9884533d42000p+0, linear_rest = 0x1.6508d0fcb3c50p-40;
  constexpr double cubic = 0x1.2440000000000p-4, cubic_rest = 0x1.3ca9362d2bd27p-18;
  const Tensor leading(constant_bits(DType::UInt64, ~uint64_t{0} << 40));
  const Tensor h = x.bitcast(DType::UInt64).bitwise_and(leading).bitcast(DType::Float64);
  const Tensor d = x - h, cube = h * h * h, a = h * linear, b = cube * cubic;
  const Tensor sum = a + b, b_part = sum - a, lost = (a - (sum - b_part)) + (b - b_part);
  const Tensor slope = h * h * (3 * gelu_cubic) + gelu_linear;
  const Tensor rest = h * linear_rest + cube * cubic_rest +
                      d * (slope + d * (h * (3 * gelu_cubic) + d * gelu_cubic));
  return (sum - y) + (lost + rest);
}

Tensor gelu_of(const Tensor& value) {
  constexpr double bound = 64;  // beyond it the result is 0 or x
  const Tensor x = value.maximum(-bound), bounded = x.minimum(bound), y = gelu_argument(bounded);
  return gated(x, y, gelu_argument_error(bounded, y));
}

double silu_bound(DType dtype) { return dtype == DType::Float64 ? 2048.0 : 256.0; }
Tensor silu_of(const Tensor& value) {
  const Tensor x = value.maximum(-silu_bound(value.dtype()));
  return gated(x, x);
}

// With t = exp(-|x|), which does not overflow: 1 / (1 + t), or t / (1 + t) on the left of 0.
Tensor sigmoid_of(const Tensor& x) {
  const Tensor t = tensor::magnitude(x).neg().exp();
  return Tensor::where(x < 0.0, t, 1.0) / (t + 1.0);
}
// Near 0 the rational approximation of Cephes (S. L. Moshier, tanh.c), whose error is relative;
// farther out (1 - t) / (1 + t) with t = exp(-2|x|).
Tensor tanh_of(const Tensor& x) {
  const Tensor zero = tensor::like(x, 0), one(1.0), negative = x < zero;
  const Tensor size = tensor::magnitude(x), is_near = size < Tensor(0.625);
  const Tensor near = Tensor::where(is_near, x, zero), z = near * near;
  const Tensor p = (z * Tensor(-9.64399179425052238628e-1) - Tensor(9.92877231001918586564e1)) * z -
                   Tensor(1.61468768441708447952e3);
  const Tensor q =
      ((z + Tensor(1.12811678491632931402e2)) * z + Tensor(2.23548839060100448583e3)) * z +
      Tensor(4.84406305325125486048e3);
  const Tensor t = (size * Tensor(-2.0)).exp();
  const Tensor far = Tensor::where(negative, t - one, one - t);
  return Tensor::where(is_near, near * (q + z * p), far) / Tensor::where(is_near, q, one + t);
}

// Near 0 erf(x) is x + x P(x^2). Farther out erfc(x) = exp(-x^2) / x times a polynomial in
// (x - centre) / (x + centre), which takes the half-line into an interval (after M. Shepherd and
// J. Laframboise, Chebyshev Approximation of (1 + 2x) exp(x^2) erfc x in 0 <= x < inf, Math. Comp.
// 36, 1981). The coefficients are those of least relative error, by E. Remez's algorithm: 2^-27.6
// in float32, 2^-55.8 in float64, about a centre where the first one is almost a float.
struct ErrorFunction {
  std::vector<double> near, far;  // ascending
  double centre;
};
const ErrorFunction& error_function(DType dtype) {
  static const auto& single = *new const ErrorFunction{
      {0.128379166, -0.376126051, 0.112831116, -0.0268196091, 0.00508152461, -0.000650527771},
      {0.482378125, 0.228453159, -0.216114208, 0.0616929196, 0.0198317543, -0.00875973701,
       -0.00527344225, 0.000441277429, 0.00206326228, -0.000513705367},
      1.5};
  static const auto& twice = *new const ErrorFunction{
      {0.12837916709551256, -0.37612638903183249, 0.11283791670927718, -0.026866170639303383,
       0.0052239775617841577, -0.0008548322961780204, 0.00012055171216622727,
       -1.4921505245152898e-5, 1.6393630849519961e-6, -1.5656938729775204e-7,
       1.0550631808465553e-8},
      {0.51994633214338171,    0.1439668233481782,     -0.19022077212868763,
       0.13515353572619951,    -0.052410656407863118,  0.0040238859343998895,
       0.0054307956322479723,  -0.0012163799714431437, -0.00077746952971090625,
       0.00018322337064325374, 0.00015467367235181756, -1.375228737995816e-5,
       -3.3659144693167899e-5, -4.7211903393602181e-6, 6.144839832352124e-6,
       2.891319671028714e-6,   -3.8863041832273664e-7, -8.2488819412447624e-7,
       -4.7052390790897228e-7, 2.1525807112722093e-7,  3.4859377112219508e-7,
       -2.3147964468986523e-7, 3.9891557432934804e-8},
      2.25};
  return dtype == DType::Float64 ? twice : single;
}
constexpr double near_end = 0.8125;  // where erfc begins to lie below 1/4
constexpr double erf_bound = 64;     // beyond it the decay is 0

Tensor polynomial(std::span<const double> coefficients, const Tensor& x) {
  Tensor sum = tensor::like(x, coefficients.back());
  for (size_t k = coefficients.size() - 1; k-- > 0;) sum = sum * x + coefficients[k];
  return sum;
}

// exp(-scale x^2) = main (1 - lost) rest for a scale that is a power of two: `lost` is what x * x
// is rounded by, which exp would multiply by x^2.
struct Gaussian {
  Tensor main, rest, lost;
};
Gaussian gaussian(const Tensor& x, double scale) {
  const bool single = x.dtype() == DType::Float32;
  const DType bits = single ? DType::UInt32 : DType::UInt64;
  const Tensor leading(constant_bits(bits, single ? 0xfffff000u : ~uint64_t{0} << 27));
  const Tensor square = x * x, h = x.bitcast(bits).bitwise_and(leading).bitcast(x.dtype());
  const Tensor d = x - h;  // h^2, h d and d^2 are exact (T. Dekker)
  const Tensor lost = ((h * h - square) + h * d * 2.0) + d * d;
  const auto [main, rest] = decay(square * -scale);
  return {main, rest, lost.detach() * scale};
}
// factor exp(y^2) erfc(y) y (1 - lost) for y = x / unit >= near_end. What is lost is taken from a
// small summand, where it costs no rounding of the whole.
Tensor scaled_tail(const Tensor& x, const Tensor& lost = {}, double unit = 1, double factor = 1) {
  const ErrorFunction& f = error_function(x.dtype());
  std::vector<double> coefficients = f.far;
  for (double& c : coefficients) c *= factor;
  const Tensor u = (x - f.centre * unit) / (x + f.centre * unit);
  const Tensor small = u * polynomial(std::span(coefficients).subspan(1), u);
  const Tensor sum = small + coefficients[0];
  return lost.defined() ? (small - sum * lost) + coefficients[0] : sum;
}
Tensor within(const Tensor& x, double bound) { return x.minimum(bound).maximum(-bound); }
Tensor within_bound(const Tensor& x) { return within(x, erf_bound); }

Tensor erf_of(const Tensor& x) {
  const Tensor size = tensor::magnitude(x).minimum(erf_bound);
  const Tensor near = x + x * polynomial(error_function(x.dtype()).near, size * size);
  const Tensor tail = (size * size).neg().exp() * scaled_tail(size) / size;
  const Tensor far = Tensor::where(x < 0.0, tail - 1.0, 1.0 - tail);
  return Tensor::where(size < near_end, near, far);
}
Tensor erfc_of(const Tensor& x) {
  const Tensor size = tensor::magnitude(x).minimum(erf_bound);
  const Tensor near = (1.0 - x) - x * polynomial(error_function(x.dtype()).near, size * size);
  const auto [main, rest, lost] = gaussian(size, 1);
  const Tensor tail = scaled_tail(size, lost) / size * main * rest;
  return Tensor::where(size < near_end, near, Tensor::where(x < 0.0, 2.0 - tail, tail));
}
// x (1 + erf(x sqrt(1/2))) / 2, on the left of 0 x erfc(-x sqrt(1/2)) / 2.
Tensor exact_gelu_of(const Tensor& x) {
  constexpr double root_half = 1 / std::numbers::sqrt2;
  const Tensor size = tensor::magnitude(x).minimum(erf_bound);
  // erf(x sqrt(1/2)) / 2 as x / 4, which is exact, and x times what is left, a polynomial in x^2.
  std::vector<double> left = error_function(x.dtype()).near;
  for (size_t k = 0; k < left.size(); ++k)
    left[k] = std::ldexp(left[k] * root_half, -1 - static_cast<int>(k));
  left[0] += root_half / 2 - 0.25;
  const Tensor near = x * ((x * 0.25 + 0.5) + x * polynomial(left, size * size));
  const auto [main, rest, lost] = gaussian(size, 0.5);
  const Tensor missing = scaled_tail(size, lost, std::numbers::sqrt2, root_half) * main * rest;
  const Tensor far = Tensor::where(x < 0.0, missing.neg(), x - missing);
  return Tensor::where(size < near_end * std::numbers::sqrt2, near, far);
}

Tensor erf_slope(const Tensor& x) {
  const auto [main, rest, lost] = gaussian(within_bound(x), 1);
  return (main - main * lost) * (2 * std::numbers::inv_sqrtpi) * rest;
}
Tensor erfc_slope(const Tensor& x) { return erf_slope(x).neg(); }
Tensor exact_gelu_slope(const Tensor& x) {
  const Tensor b = within_bound(x);
  const auto [main, rest, lost] = gaussian(b, 0.5);
  const Tensor density =
      (main - main * lost) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2) * rest;
  return (x * (-1 / std::numbers::sqrt2)).erfc() * 0.5 + b * density;
}

// The slope of x / (1 + exp(-y)), where that of y is dy: of x, not of what its value was computed
// by, which is a dozen values for a backward pass to keep.
Tensor gated_slope(const Tensor& x, const Tensor& y, const Tensor& dy) {
  const auto [main, rest] = decay(tensor::magnitude(y).neg());
  const Tensor t = main * rest, whole = t + 1.0;
  return (Tensor::where(y < 0.0, t, 1.0) + x * dy * (t / whole)) / whole;
}
Tensor gelu_slope(const Tensor& x) {
  const Tensor b = within_bound(x);
  return gated_slope(b, gelu_argument(b), b * b * (3 * gelu_cubic) + gelu_linear);
}
Tensor silu_slope(const Tensor& x) {
  const Tensor b = within(x, silu_bound(x.dtype()));
  return gated_slope(b, b, tensor::like(b, 1.0));
}

using OfOne = Tensor (*)(const Tensor&);

// Makes a derivative known that is a product with the slope, for with_slope(): with that at what a
// value is made of, or as a formula of the value itself.
enum class At { Argument, Value };
std::string known_slope(const std::string& name, OfOne slope, At at = At::Argument) {
  const auto moved = [slope, at](const CustomRule::Given& of) {
    const UOp& read = at == At::Argument ? of.arguments[0] : of.results[0];
    return std::vector<UOp>{(Tensor(of.moved[0]) * slope(Tensor(read))).uop()};
  };
  return register_custom_rule(name, {.vjp = moved, .jvp = moved, .rows = true});
}
// f(x), whose derivative would be that of an approximation.
Tensor with_slope(const std::string& rule, OfOne f, const Tensor& x) {
  const UOp value = f(Tensor(argument_param(0, x.uop()))).uop();
  const UOp call = custom_function(tuple(std::vector<UOp>{value}), std::vector<UOp>{x.uop()}, rule);
  return Tensor(get_tuple(call, 0));
}

}  // namespace

Tensor Tensor::erf() const {
  static const auto& rule = *new const std::string(known_slope("erf", erf_slope));
  return in_floats(*this, [](const Tensor& x) { return with_slope(rule, erf_of, x); });
}
Tensor Tensor::erfc() const {
  static const auto& rule = *new const std::string(known_slope("erfc", erfc_slope));
  return in_floats(*this, [](const Tensor& x) { return with_slope(rule, erfc_of, x); });
}

// By the value: a backward pass keeps that alone, and a product reads it as well. Where the value
// is an end that it never gets beyond, the slope is 0.
Tensor Tensor::sigmoid() const {
  static const auto& rule = *new const std::string(
      known_slope("sigmoid", [](const Tensor& y) { return y * (1.0 - y); }, At::Value));
  return in_floats(*this, [](const Tensor& x) { return with_slope(rule, sigmoid_of, x); });
}
Tensor Tensor::tanh() const {
  static const auto& rule = *new const std::string(
      known_slope("tanh", [](const Tensor& y) { return 1.0 - y * y; }, At::Value));
  return in_floats(*this, [](const Tensor& x) { return with_slope(rule, tanh_of, x); });
}
Tensor Tensor::gelu(const std::string& approximate) const {
  KOINE_REQUIRE(approximate == "none" || approximate == "tanh", Value,
                "gelu: approximate is \"none\" or \"tanh\", got \"{}\"", approximate);
  static const auto& exact = *new const std::string(known_slope("gelu", exact_gelu_slope));
  static const auto& rule = *new const std::string(known_slope("gelu by tanh", gelu_slope));
  if (approximate == "none")
    return in_floats(*this, [](const Tensor& x) { return with_slope(exact, exact_gelu_of, x); });
  return in_floats(*this, [](const Tensor& x) { return with_slope(rule, gelu_of, x); });
}
Tensor Tensor::silu() const {
  static const auto& rule = *new const std::string(known_slope("silu", silu_slope));
  return in_floats(*this, [](const Tensor& x) { return with_slope(rule, silu_of, x); });
}
// max(x, 0) + log(1 + t), t = exp(-|x|): does not overflow. At 0 both take the side x, on which all
// derivatives of the sum are right.
Tensor Tensor::softplus() const {
  return in_floats(*this, [](const Tensor& x) {
    const Tensor t = tensor::magnitude(x).neg().exp(), u = t + 1.0, lost = u == 1.0;
    // What rounding took from u is given back by t / (u - 1) (W. Kahan).
    const Tensor log = where(lost, t, u.log() * t / where(lost, 1.0, u - 1.0));
    return where(x < 0.0, 0.0, x) + log;
  });
}
Tensor Tensor::elu(double alpha) const {
  return in_floats(*this, [&](const Tensor& x) {
    // exp(x) - 1 = 2y / (1 - y) with y = tanh(x / 2), which does not cancel.
    const Tensor positive = x > 0.0, y = (where(positive, 0.0, x) * 0.5).tanh();
    return where(positive, x, y * (2 * alpha) / (1.0 - y));
  });
}

}  // namespace koine

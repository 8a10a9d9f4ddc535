#include <cmath>
#include <numbers>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {
namespace {

// The dtype a float function computes in: integers and bool go to float32.
DType float_dtype(DType d) { return is_float(d) ? d : DType::Float32; }

// Exp2, Log2 and Sin of narrow floats are computed in float32 and rounded once, as by their rules.
Tensor apply(Op op, const Tensor& x) {
  return Tensor(unary(op, koine::cast(x.uop(), float_dtype(x.dtype()))));
}

UOp literal(const Tensor& like, double v) { return constant(like.dtype(), v); }

}  // namespace

namespace tensor {

// A C++ literal takes its partner's dtype where the partner can hold its kind of number.
std::pair<UOp, UOp> meet(const Tensor& a, const Tensor& b, const UOp& literal_a,
                         const UOp& literal_b) {
  const UOp x = a.uop(), y = b.uop();
  const bool weak_a = bool(literal_a), weak_b = bool(literal_b);
  auto fits = [](DType weak, DType strong) {
    return is_float(strong) || (!is_float(weak) && is_integer(strong)) || weak == DType::Bool;
  };
  DType d = promote(x.dtype(), y.dtype());
  if (weak_a && !weak_b && fits(x.dtype(), y.dtype())) d = y.dtype();
  if (weak_b && !weak_a && fits(y.dtype(), x.dtype())) d = x.dtype();
  if (weak_a != weak_b && d == DType::Float64 && !(is_float(x.dtype()) && is_float(y.dtype())) &&
      x.dtype() != DType::Float64 && y.dtype() != DType::Float64)
    d = DType::Float32;  // an integer tensor with a float literal
  auto in_full = [&](const UOp& value, const UOp& literal) {
    const bool number = literal && literal.dtype() == DType::Float64 && is_float(d);
    return number ? constant(d, const_double(literal)) : koine::cast(value, d);
  };
  return {in_full(x, literal_a), in_full(y, literal_b)};
}

namespace {

// |x|, whose slope at 0 is 1.
Tensor magnitude(const Tensor& x) { return Tensor::where(x < x.zeros_like(), x.neg(), x); }

// By squaring, with the wrap of the dtype. A negative exponent gives the whole part of the result,
// which is 0 but for bases 1 and -1.
Tensor integer_power(const Tensor& base, const Tensor& exponent) {
  if (base.dtype() == DType::Bool)
    return integer_power(base.cast(DType::Int8), exponent.cast(DType::Int8));
  const DType d = base.dtype();
  auto whole = [&](int64_t v) { return Tensor(constant_int(d, v)); };
  const Tensor zero = whole(0), one = whole(1);
  const UOp known = exponent.uop();
  Tensor result = one, square = base;
  for (int64_t bit = 0; bit < 8 * item_size(d) - (is_signed(d) ? 1 : 0); ++bit) {
    if (known.is(Op::Const)) {
      const uint64_t left = static_cast<uint64_t>(const_int(known)) >> bit;
      if (left == 0) break;
      if ((left & 1) != 0) result = result * square;
      if (left == 1) break;
    } else {
      const Tensor set = exponent.rshift(whole(bit)).bitwise_and(one) != zero;
      result = Tensor::where(set, result * square, result);
    }
    square = square * square;
  }
  if (!is_signed(d)) return result;
  const Tensor odd = exponent.bitwise_and(one) != zero;
  const Tensor inverse = Tensor::where(
      base == one, one, Tensor::where(base == whole(-1), Tensor::where(odd, base, one), zero));
  return Tensor::where(exponent < zero, inverse, result);
}

// floor(a/b) of floats from the exact remainder; no gradient. a - remainder is the divisor times a
// whole number, which the division gives back but for rounding.
Tensor float_floor_division(const Tensor& x, const Tensor& y) {
  const DType d = x.dtype();
  if (d != DType::Float64)
    return float_floor_division(x.cast(DType::Float64), y.cast(DType::Float64)).cast(d);
  const Tensor a = x.detach(), b = y.detach(), ratio = a / b;
  const Tensor remainder(koine::mod(a.uop(), b.uop()));
  const Tensor endless = b.isinf().bitwise_and(a.isfinite());
  const Tensor near = (a - remainder) / b;
  const Tensor other_side =
      (a != a.zeros_like()).bitwise_and((a < a.zeros_like()) != (b < b.zeros_like()));
  const Tensor quotient =
      Tensor::where(endless, Tensor::where(other_side, Tensor(-1.0), ratio), near.round());
  const Tensor signed_quotient =
      Tensor::where(quotient == Tensor(0.0), ratio * b.zeros_like(), quotient);
  return Tensor::where(b == b.zeros_like(), ratio, signed_quotient);
}

}  // namespace
}  // namespace tensor

namespace {

UOp combine(Op op, const UOp& x, const UOp& y) {
  switch (op) {
    case Op::CmpLt:
      return lt(x, y);
    default:
      return binary(op, x, y);
  }
}

}  // namespace

// Friends see `impl_`; everything binary goes through these two.
#define KOINE_MEET(a, b) const auto [x, y] = tensor::meet(a, b, (a).as_literal(), (b).as_literal())

Tensor operator+(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  return Tensor(combine(Op::Add, x, y));
}
Tensor operator-(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  KOINE_REQUIRE(x.dtype() != DType::Bool, Type,
                "Sub: bool has no difference: use bitwise_xor or logical_not");
  return Tensor(sub(x, y));
}
Tensor operator*(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  return Tensor(combine(Op::Mul, x, y));
}
Tensor operator/(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  // Integers divide in float32 (float64 for 64-bit ones would surprise a GPU user; NumPy takes it).
  const DType d = is_float(x.dtype())         ? x.dtype()
                  : item_size(x.dtype()) == 8 ? DType::Float64
                                              : DType::Float32;
  return Tensor(fdiv(koine::cast(x, d), koine::cast(y, d)));
}
Tensor& Tensor::operator/=(const Tensor& b) {
  KOINE_REQUIRE(is_float(dtype()), Type,
                "/=: a quotient of {} is a float, which {} cannot hold: write x = x / y, or use "
                "idiv()",
                dtype_name(dtype()), dtype_name(dtype()));
  return assign(*this / b);
}
Tensor operator<(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  return Tensor(lt(x, y));
}
Tensor operator>(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  return Tensor(gt(x, y));
}
Tensor operator<=(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  return Tensor(le(x, y));
}
Tensor operator>=(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  return Tensor(ge(x, y));
}
Tensor operator==(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  return Tensor(eq(x, y));
}
Tensor operator!=(const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  return Tensor(ne(x, y));
}
Tensor Tensor::maximum(const Tensor& b) const {
  KOINE_MEET(*this, b);
  return Tensor(koine::maximum(x, y));
}
Tensor Tensor::minimum(const Tensor& b) const {
  KOINE_MEET(*this, b);
  return Tensor(koine::minimum(x, y));
}
Tensor Tensor::pow(const Tensor& b) const {
  KOINE_MEET(*this, b);
  if (!is_float(x.dtype())) return tensor::integer_power(Tensor(x), Tensor(y));
  if (is_const(y, 2)) return Tensor(mul(x, x));
  return Tensor(binary(Op::Pow, x, y));
}
Tensor Tensor::idiv(const Tensor& b) const {
  KOINE_MEET(*this, b);
  if (is_float(x.dtype())) return tensor::float_floor_division(Tensor(x), Tensor(y));
  return Tensor(koine::idiv(x, y));
}
Tensor Tensor::mod(const Tensor& b) const {
  KOINE_MEET(*this, b);
  return Tensor(koine::mod(x, y));
}
Tensor Tensor::bitwise_and(const Tensor& b) const {
  KOINE_MEET(*this, b);
  return Tensor(bit_and(x, y));
}
Tensor Tensor::bitwise_or(const Tensor& b) const {
  KOINE_MEET(*this, b);
  return Tensor(bit_or(x, y));
}
Tensor Tensor::bitwise_xor(const Tensor& b) const {
  KOINE_MEET(*this, b);
  return Tensor(bit_xor(x, y));
}
Tensor Tensor::lshift(const Tensor& b) const {
  KOINE_MEET(*this, b);
  return Tensor(binary(Op::Shl, x, y));
}
Tensor Tensor::rshift(const Tensor& b) const {
  KOINE_MEET(*this, b);
  return Tensor(binary(Op::Shr, x, y));
}
Tensor Tensor::where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  KOINE_MEET(a, b);
  return Tensor(koine::where(condition.cast(DType::Bool).uop(), x, y));
}
#undef KOINE_MEET

Tensor Tensor::cast(DType dtype) const {
  KOINE_REQUIRE(dtype != DType::Void && dtype != DType::Index, Type,
                "cast: {} is not a dtype of tensors", dtype_name(dtype));
  return this->dtype() == dtype ? *this : Tensor(koine::cast(uop(), dtype));
}
Tensor Tensor::bitcast(DType dtype) const { return Tensor(koine::bitcast(uop(), dtype)); }
Tensor Tensor::neg() const { return Tensor(koine::neg(uop())); }
Tensor Tensor::logical_not() const { return Tensor(koine::logical_not(cast(DType::Bool).uop())); }
Tensor Tensor::bitwise_not() const {
  if (dtype() == DType::Bool) return logical_not();
  return Tensor(bit_xor(uop(), constant_int(dtype(), -1)));
}
Tensor Tensor::reciprocal() const { return Tensor(1.0) / *this; }
Tensor Tensor::sqrt() const { return apply(Op::Sqrt, *this); }
Tensor Tensor::rsqrt() const { return sqrt().reciprocal(); }
Tensor Tensor::exp2() const { return apply(Op::Exp2, *this); }
Tensor Tensor::log2() const { return apply(Op::Log2, *this); }
Tensor Tensor::exp() const {
  if (is_small_float(dtype())) return cast(DType::Float32).exp().cast(dtype());  // rounds once
  const Tensor x = cast(float_dtype(dtype()));
  return Tensor(unary(Op::Exp2, mul(x.uop(), literal(x, std::numbers::log2e))));
}
Tensor Tensor::log() const {
  if (is_small_float(dtype())) return cast(DType::Float32).log().cast(dtype());
  const Tensor l = log2();
  return Tensor(mul(l.uop(), literal(l, std::numbers::ln2)));
}
Tensor Tensor::sin() const { return apply(Op::Sin, *this); }
Tensor Tensor::cos() const { return Tensor(sine(cast(float_dtype(dtype())).uop(), 1)); }
Tensor Tensor::tan() const {
  if (is_small_float(dtype())) return cast(DType::Float32).tan().cast(dtype());
  return sin() / cos();
}
Tensor Tensor::trunc() const { return is_float(dtype()) ? Tensor(unary(Op::Trunc, uop())) : *this; }
Tensor Tensor::floor() const {
  if (!is_float(dtype())) return *this;
  const Tensor t = trunc();
  return where(*this < t, t - Tensor(1.0), t);
}
Tensor Tensor::ceil() const {
  if (!is_float(dtype())) return *this;
  const Tensor t = trunc();
  return where(*this > t, t + Tensor(1.0), t);
}
Tensor Tensor::round() const {
  if (!is_float(dtype())) return *this;
  // Half to even: the nearest integer, and of the two neighbours of a half the even one.
  const Tensor down = floor(), half = *this - down;
  const Tensor up = down + Tensor(1.0);
  const Tensor even = (down * Tensor(0.5)).floor() * Tensor(2.0);
  const Tensor nearest =
      where(half < Tensor(0.5), down, where(half > Tensor(0.5), up, where(down == even, down, up)));
  return where(nearest == zeros_like(), *this * zeros_like(), nearest);  // the sign of 0
}
// What detach() marks below has no part in a gradient: it gives the corners of amendment C40. It
// costs nothing: see forward_rules.
Tensor Tensor::abs() const {
  if (!is_signed(dtype()) && !is_float(dtype())) return *this;
  const Tensor zero = zeros_like();
  const Tensor rest = is_float(dtype()) ? where(*this > zero, *this, detach() + zero) : *this;
  return where(*this < zero, neg(), rest);
}
Tensor Tensor::sign() const {
  const Tensor one = ones_like(), zero = zeros_like();
  if (!is_signed(dtype()) && !is_float(dtype())) return where(*this != zero, one, zero);
  const Tensor rest = is_float(dtype()) ? detach() + zero : zero;  // NaN stays, -0 becomes 0
  return where(*this > zero, one, where(*this < zero, one.neg(), rest));
}
Tensor Tensor::square() const { return *this * *this; }
Tensor Tensor::isnan() const { return *this != *this; }
Tensor Tensor::isinf() const {
  if (!is_float(dtype())) return zeros_like().cast(DType::Bool);
  const double inf = std::numeric_limits<double>::infinity();
  return (*this == Tensor(inf)).bitwise_or(*this == Tensor(-inf));
}
Tensor Tensor::isfinite() const { return isnan().bitwise_or(isinf()).logical_not(); }

Tensor Tensor::relu() const {
  const Tensor zero(constant(dtype(), 0));
  return where(*this > zero, *this, detach().maximum(zero));  // NaN stays
}
Tensor Tensor::leaky_relu(double slope) const {
  return where(*this < Tensor(0.0), *this * Tensor(slope), *this);
}
// With t = exp(-|x|), which does not overflow: 1 / (1 + t), or t / (1 + t) on the left of 0.
Tensor Tensor::sigmoid() const {
  const Tensor negative = *this < Tensor(0.0), t = tensor::magnitude(*this).neg().exp();
  return where(negative, t, Tensor(1.0)) / (Tensor(1.0) + t);
}
// Near 0 the rational approximation of Cephes (S. L. Moshier, tanh.c), whose error is relative;
// farther out (1 - t) / (1 + t) with t = exp(-2|x|).
Tensor Tensor::tanh() const {
  if (!is_float(dtype()) || is_small_float(dtype()))
    return cast(DType::Float32).tanh().cast(float_dtype(dtype()));
  const Tensor zero = zeros_like(), one(1.0), negative = *this < zero;
  const Tensor size = tensor::magnitude(*this), is_near = size < Tensor(0.625);
  const Tensor near = where(is_near, *this, zero), z = near * near;
  const Tensor p = (z * Tensor(-9.64399179425052238628e-1) - Tensor(9.92877231001918586564e1)) * z -
                   Tensor(1.61468768441708447952e3);
  const Tensor q =
      ((z + Tensor(1.12811678491632931402e2)) * z + Tensor(2.23548839060100448583e3)) * z +
      Tensor(4.84406305325125486048e3);
  const Tensor t = (size * Tensor(-2.0)).exp();
  const Tensor far = where(negative, t - one, one - t);
  return where(is_near, near * (q + z * p), far) / where(is_near, q, one + t);
}
Tensor Tensor::gelu() const {  // the tanh form, as tinygrad's
  const Tensor cube = *this * *this * *this;
  return Tensor(0.5) * *this *
         (Tensor(1.0) +
          ((*this + cube * Tensor(0.044715)) * Tensor(std::sqrt(2 / std::numbers::pi))).tanh());
}
Tensor Tensor::silu() const { return *this * sigmoid(); }
Tensor Tensor::softplus() const {  // max(x, 0) + log(1 + t), t = exp(-|x|): does not overflow
  const Tensor t = abs().neg().exp(), u = t + Tensor(1.0), lost = u == Tensor(1.0);
  // What rounding took from u is given back by t / (u - 1) (W. Kahan).
  const Tensor log = where(lost, t, u.log() * t / where(lost, Tensor(1.0), u - Tensor(1.0)));
  return maximum(Tensor(0.0)) + log;
}
Tensor Tensor::elu(double alpha) const {
  // exp(x) - 1 = 2y / (1 - y) with y = tanh(x / 2), which does not cancel.
  const Tensor positive = *this > Tensor(0.0);
  const Tensor y = (where(positive, Tensor(0.0), *this) * Tensor(0.5)).tanh();
  return where(positive, *this, Tensor(2 * alpha) * y / (Tensor(1.0) - y));
}
Tensor Tensor::clip(double low, double high) const {
  KOINE_REQUIRE(low <= high, Value, "clip: the low bound {} is above the high bound {}", low, high);
  return maximum(Tensor(constant(dtype(), low))).minimum(Tensor(constant(dtype(), high)));
}
Tensor Tensor::lerp(const Tensor& end, const Tensor& weight) const {
  return *this + (end - *this) * weight;
}
Tensor Tensor::masked_fill(const Tensor& mask, double value) const {
  return where(mask, Tensor(constant(dtype(), value)), *this);
}

}  // namespace koine

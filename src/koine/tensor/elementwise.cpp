#include <algorithm>
#include <bit>
#include <cmath>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/eval.hpp"
#include "koine/ir/float_layout.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"

namespace koine {
namespace {

using tensor::in_floats;

Tensor apply(Op op, const Tensor& x) {
  return in_floats(x, [op](const Tensor& v) { return Tensor(unary(op, v.uop())); });
}

}  // namespace

namespace tensor {

// A number as written: its floor, and whether that is all of it. Beyond 2^100 any number will do.
struct Written {
  __int128 floor;
  bool whole;
};
Written written(const UOp& literal) {
  if (literal.dtype() == DType::UInt64) return {literal.as<ConstArg>().bits, true};
  if (!is_float(literal.dtype())) return {const_int(literal), true};
  const double v = const_double(literal), far = 0x1p100;
  if (std::fabs(v) >= far) return {static_cast<__int128>(std::copysign(far, v)), true};
  return {static_cast<__int128>(std::floor(v)), std::floor(v) == v};
}
long double number_of(const UOp& literal) {
  return is_float(literal.dtype()) ? const_double(literal)
                                   : static_cast<long double>(written(literal).floor);
}
bool holds(DType dtype, const __int128& v) {
  const IntegerRange range = integer_range(dtype);
  return range.low <= v && v <= range.high;
}
UOp integer_const(DType dtype, const __int128& v) {
  return constant_bits(dtype, dtype == DType::UInt64 ? static_cast<Bits>(v)
                                                     : int_to_bits(dtype, static_cast<int64_t>(v)));
}
std::string literal_text(const UOp& literal) {
  if (literal.dtype() == DType::UInt64) return fmt::format("{}", literal.as<ConstArg>().bits);
  if (is_float(literal.dtype())) return fmt::format("{}", const_double(literal));
  return fmt::format("{}", const_int(literal));
}
template <class Number>
[[noreturn]] void refuse_literal(std::string_view method, const UOp& literal, DType dtype,
                                 Number low, Number high) {
  raise(ErrorKind::Value, "{}: {} is not in {}, which holds {} to {}: cast to a wider dtype first",
        method, literal_text(literal), dtype_name(dtype), low, high);
}
[[noreturn]] void refuse_literal(std::string_view method, const UOp& literal, DType dtype) {
  if (!is_float(dtype)) {
    const IntegerRange range = integer_range(dtype);
    refuse_literal(method, literal, dtype, range.low, range.high);
  }
  const double largest = largest_float(dtype);
  refuse_literal(method, literal, dtype, -largest, largest);
}
// A number in another dtype is a number, so that 2 and 2.0 are one value.
UOp number_in(const UOp& number, DType dtype) {
  return constant_bits(dtype, evaluate_cast(dtype, number.dtype(), number.as<ConstArg>().bits));
}
bool has_near(DType dtype, double number) {
  return std::isfinite(bits_to_double(dtype, double_to_bits(dtype, number)));
}
// Of a literal in a dtype of floats; a number that would be none there is refused.
UOp float_const(std::string_view method, const UOp& literal, DType dtype) {
  const double number = const_double(literal);
  if (std::isfinite(number) && !has_near(dtype, number)) refuse_literal(method, literal, dtype);
  return is_float(literal.dtype()) ? constant(dtype, number) : number_in(literal, dtype);
}
// Whether a literal lies beyond all numbers of a dtype of floats, on the side of `sign`: as a bound
// it changes nothing.
bool is_beyond(const UOp& literal, DType dtype, int sign) {
  if (!literal || !is_float(dtype)) return false;
  const double number = const_double(literal);
  return number * sign > 0 && !has_near(dtype, number);
}

// Any integer may say yes or no; whether a float does is seldom meant.
void require_condition(std::string_view method, const Tensor& condition) {
  KOINE_REQUIRE(!is_float(condition.dtype()), Type,
                "{}: the condition must be bool, got {}: compare it, for example x != 0", method,
                dtype_name(condition.dtype()));
}

// Shapes broadcast from the right: sizes are equal, or one is 1.
void require_broadcast(std::string_view method, const UOp& x, const UOp& y) {
  const UOp &of_x = x.node()->shape, &of_y = y.node()->shape;
  if (of_x && of_x == of_y) return;
  for (size_t i = 1; i <= std::min(x.rank(), y.rank()); ++i) {
    const UOp a = x.dim(x.rank() - i), b = y.dim(y.rank() - i);
    KOINE_REQUIRE(a == b || is_const(a, 1) || is_const(b, 1), Value,
                  "{}: shapes {} and {} do not broadcast at axis {}: sizes must be equal or 1; "
                  "reshape or expand one operand",
                  method, shape_text(x), shape_text(y), -static_cast<int64_t>(i));
  }
}

// A C++ literal takes its partner's dtype where the partner can hold its kind of number; an integer
// beyond the partner's range is refused, as in NumPy.
std::pair<UOp, UOp> meet(std::string_view method, const Tensor& a, const Tensor& b,
                         const UOp& literal_a, const UOp& literal_b) {
  const UOp x = a.uop(), y = b.uop();
  require_broadcast(method, x, y);
  const bool weak_a = literal_a || a.stands_for_number(),
             weak_b = literal_b || b.stands_for_number();
  auto fits = [](DType weak, DType strong) {
    return is_float(strong) || (!is_float(weak) && is_integer(strong)) || weak == DType::Bool;
  };
  DType d = promote(x.dtype(), y.dtype());
  if (weak_a && !weak_b && fits(x.dtype(), y.dtype())) d = y.dtype();
  if (weak_b && !weak_a && fits(y.dtype(), x.dtype())) d = x.dtype();
  if (weak_a != weak_b && d == DType::Float64 && !(is_float(x.dtype()) && is_float(y.dtype())) &&
      x.dtype() != DType::Float64 && y.dtype() != DType::Float64)
    d = DType::Float32;  // an integer tensor with a float literal
  if (weak_a && weak_b && is_float(x.dtype()) != is_float(y.dtype())) d = DType::Float32;
  auto in_full = [&](const UOp& value, const UOp& literal) {
    if (literal && is_float(d)) return float_const(method, literal, d);
    if (!literal || weak_a == weak_b) return koine::cast(value, d);
    if (is_integer(literal.dtype()) && is_integer(d) && !holds(d, written(literal).floor))
      refuse_literal(method, literal, d);
    return number_in(value, d);
  };
  return {in_full(x, literal_a), in_full(y, literal_b)};
}

Tensor magnitude(const Tensor& x) { return Tensor::where(x < like(x, 0), x.neg(), x); }

namespace {

// By squaring, with the wrap of the dtype. A negative exponent gives the whole part of the result,
// which is 0 but for bases 1 and -1. Of an exponent that is known, its sign and how many bits it
// has make the graph, and no bit does: so all exponents of a length are one program.
Tensor integer_power(const Tensor& base, const Tensor& exponent) {
  if (base.dtype() == DType::Bool)
    return integer_power(base.cast(DType::Int8), exponent.cast(DType::Int8));
  const DType d = base.dtype();
  auto whole = [&](int64_t v) { return Tensor(constant_int(d, v)); };
  const Tensor zero = whole(0), one = whole(1);
  const UOp number = exponent.uop();
  const bool known = number.is(Op::Const);
  const int bits = known ? std::bit_width(static_cast<uint64_t>(const_int(number)))
                         : 8 * static_cast<int>(item_size(d)) - (is_signed(d) ? 1 : 0);
  auto bit_of_exponent = [&](int bit) {
    return exponent.rshift(whole(bit)).bitwise_and(one) != zero;
  };
  auto of_negative = [&] {
    return Tensor::where(
        base == one, one,
        Tensor::where(base == whole(-1), Tensor::where(bit_of_exponent(0), base, one), zero));
  };
  if (known && is_signed(d) && const_int(number) < 0) return of_negative();
  Tensor result = tensor::like(base, 1), square = base;
  for (int bit = 0; bit < bits; ++bit) {
    if (bit > 0) square = square * square;
    const bool is_set = known && bit == bits - 1;
    result =
        is_set ? result * square : Tensor::where(bit_of_exponent(bit), result * square, result);
  }
  return known || !is_signed(d) ? result : Tensor::where(exponent < zero, of_negative(), result);
}

// floor(a/b) of floats from the exact remainder; no gradient. a/b less remainder/b is a whole
// number but for rounding; a - remainder may be beyond the largest number.
Tensor float_floor_division(const Tensor& x, const Tensor& y) {
  const DType d = x.dtype();
  if (d != DType::Float64)
    return float_floor_division(x.cast(DType::Float64), y.cast(DType::Float64)).cast(d);
  const Tensor a = x.detach(), b = y.detach(), ratio = a / b;
  const Tensor remainder(koine::mod(a.uop(), b.uop()));
  const Tensor endless = b.isinf().bitwise_and(a.isfinite());
  const Tensor near = ratio - remainder / b;
  const Tensor other_side =
      (a != tensor::like(a, 0)).bitwise_and((a < tensor::like(a, 0)) != (b < tensor::like(b, 0)));
  const Tensor quotient =
      Tensor::where(endless, Tensor::where(other_side, Tensor(-1.0), ratio), near.round());
  const Tensor signed_quotient =
      Tensor::where(quotient == Tensor(0.0), ratio * tensor::like(b, 0), quotient);
  return Tensor::where(b == tensor::like(b, 0), ratio, signed_quotient);
}

}  // namespace
}  // namespace tensor

// Everything binary goes through this: both operands in one dtype; what the op refuses is refused
// in the method's name.
template <class Build>
Tensor Tensor::met(std::string_view method, const Tensor& b, Build&& build) const {
  return tensor::as_method(method, {*this, b}, [&] {
    const UOp literal_a = as_literal(), literal_b = b.as_literal();
    const auto [x, y] = tensor::meet(method, *this, b, literal_a, literal_b);
    const Tensor made(build(x, y));
    const bool stands = is_number() && b.is_number() && !(literal_a && literal_b);
    return stands ? made.standing_for_number() : made;
  });
}

Tensor operator+(const Tensor& a, const Tensor& b) { return a.met("+", b, add); }
Tensor operator-(const Tensor& a, const Tensor& b) {
  return a.met("-", b, [](const UOp& x, const UOp& y) {
    KOINE_REQUIRE(x.dtype() != DType::Bool, Type,
                  "-: bool has no difference: use bitwise_xor or logical_not");
    return sub(x, y);
  });
}
Tensor operator*(const Tensor& a, const Tensor& b) { return a.met("*", b, mul); }
Tensor operator/(const Tensor& a, const Tensor& b) {
  return a.met("/", b, [](const UOp& x, const UOp& y) {
    // Integers divide in float32 (float64 for 64-bit ones would surprise a GPU user; NumPy takes
    // it).
    const DType d = is_float(x.dtype())         ? x.dtype()
                    : item_size(x.dtype()) == 8 ? DType::Float64
                                                : DType::Float32;
    return fdiv(koine::cast(x, d), koine::cast(y, d));
  });
}
Tensor& Tensor::in_place(std::string_view op, const Tensor& value) {
  const DType here = dtype(), there = value.dtype();
  KOINE_REQUIRE(here == there || is_float(here) || (!is_float(there) && here != DType::Bool), Type,
                "{}: the result is {}, which {} cannot hold: make a new tensor of it, or cast it "
                "before",
                op, dtype_name(there), dtype_name(here));
  // assign() would spread it.
  KOINE_REQUIRE(value.ndim() > ndim() || value.shape() == shape(), Value,
                "{}: the result has shape {}, and the tensor {}", op,
                tensor::text_of(value.shape()), tensor::text_of(shape()));
  return assign(value);
}
Tensor& Tensor::operator/=(const Tensor& b) {
  KOINE_REQUIRE(is_float(dtype()), Type,
                "/=: a quotient of {} is a float, which {} cannot hold: write x = x / y, or use "
                "idiv()",
                dtype_name(dtype()), dtype_name(dtype()));
  return assign(*this / b);
}

enum class Tensor::Relation : uint8_t { Less, LessEqual, Greater, GreaterEqual, Equal, NotEqual };

// Comparisons answer for the numbers as they are written, also where a literal is beyond what the
// other operand's dtype holds.
Tensor Tensor::compare(Relation relation, const Tensor& a, const Tensor& b) {
  using enum Relation;
  constexpr std::string_view names[] = {"<", "<=", ">", ">=", "==", "!="};
  const tensor::Called called(names[static_cast<size_t>(relation)], &a, &b);
  constexpr Relation mirrored[] = {Greater, GreaterEqual, Less, LessEqual, Equal, NotEqual};
  const UOp literal_a = a.as_literal(), literal = b.as_literal();
  if (literal_a && !literal) return compare(mirrored[static_cast<size_t>(relation)], b, a);
  auto among = [&](std::initializer_list<Relation> list) {
    return std::find(list.begin(), list.end(), relation) != list.end();
  };
  auto plain = [&](const UOp& x, const UOp& y) {
    UOp (*const build[])(const UOp&, const UOp&) = {lt, le, gt, ge, eq, ne};
    return Tensor(build[static_cast<size_t>(relation)](x, y));
  };
  const UOp x = a.uop();
  const DType d = x.dtype();
  const bool of_bools = d == DType::Bool && literal && literal.dtype() == DType::Bool;
  if (d == DType::Bool && literal && !literal_a && !of_bools)
    return compare(relation, a.cast(DType::Int8), b);
  if (!literal || literal_a || of_bools) {
    const auto [left, right] =
        tensor::meet(names[static_cast<size_t>(relation)], a, b, literal_a, literal);
    return plain(left, right);
  }
  if (is_float(d)) {
    const double v = const_double(literal);
    if (std::isfinite(v) && !tensor::has_near(d, v))
      return plain(koine::cast(x, DType::Float64), constant(DType::Float64, v));
    return plain(x, constant(d, v));
  }
  auto always = [&](bool value) {
    const Tensor differs(ne(x, x));  // false
    return value ? differs.logical_not() : differs;
  };
  if (is_float(literal.dtype()) && std::isnan(const_double(literal)))
    return always(relation == NotEqual);
  const tensor::Written number = tensor::written(literal);
  const IntegerRange range = integer_range(d);
  if (number.floor < range.low) return always(among({Greater, GreaterEqual, NotEqual}));
  if (number.floor > range.high) return always(among({Less, LessEqual, NotEqual}));
  if (!number.whole) {  // of the numbers between two integers the lower one decides
    if (among({Equal, NotEqual})) return always(relation == NotEqual);
    relation = among({Less, LessEqual}) ? LessEqual : Greater;
  }
  return plain(x, tensor::integer_const(d, number.floor));
}

Tensor operator<(const Tensor& a, const Tensor& b) {
  return Tensor::compare(Tensor::Relation::Less, a, b);
}
Tensor operator>(const Tensor& a, const Tensor& b) {
  return Tensor::compare(Tensor::Relation::Greater, a, b);
}
Tensor operator<=(const Tensor& a, const Tensor& b) {
  return Tensor::compare(Tensor::Relation::LessEqual, a, b);
}
Tensor operator>=(const Tensor& a, const Tensor& b) {
  return Tensor::compare(Tensor::Relation::GreaterEqual, a, b);
}
Tensor operator==(const Tensor& a, const Tensor& b) {
  return Tensor::compare(Tensor::Relation::Equal, a, b);
}
Tensor operator!=(const Tensor& a, const Tensor& b) {
  return Tensor::compare(Tensor::Relation::NotEqual, a, b);
}
Tensor Tensor::maximum(const Tensor& b) const {
  const tensor::Called called("maximum", this, &b);
  if (tensor::is_beyond(b.as_literal(), dtype(), -1)) return Tensor(uop());
  return met("maximum", b, koine::maximum);
}
Tensor Tensor::minimum(const Tensor& b) const {
  const tensor::Called called("minimum", this, &b);
  if (tensor::is_beyond(b.as_literal(), dtype(), 1)) return Tensor(uop());
  return met("minimum", b, koine::minimum);
}
Tensor Tensor::pow(const Tensor& b) const {
  const tensor::Called called("pow", this, &b);
  return met("pow", b, [](const UOp& x, const UOp& y) {
    if (!is_float(x.dtype())) return tensor::integer_power(Tensor(x), Tensor(y)).uop();
    return is_const(y, 2) ? mul(x, x) : binary(Op::Pow, x, y);
  });
}
Tensor Tensor::idiv(const Tensor& b) const {
  const tensor::Called called("idiv", this, &b);
  return met("idiv", b, [](const UOp& x, const UOp& y) {
    if (is_float(x.dtype())) return tensor::float_floor_division(Tensor(x), Tensor(y)).uop();
    return koine::idiv(x, y);
  });
}
Tensor Tensor::mod(const Tensor& b) const { return met("mod", b, koine::mod); }
Tensor Tensor::bitwise_and(const Tensor& b) const { return met("bitwise_and", b, bit_and); }
Tensor Tensor::bitwise_or(const Tensor& b) const { return met("bitwise_or", b, bit_or); }
Tensor Tensor::bitwise_xor(const Tensor& b) const { return met("bitwise_xor", b, bit_xor); }
Tensor Tensor::lshift(const Tensor& b) const {
  return met("lshift", b, [](const UOp& x, const UOp& y) { return binary(Op::Shl, x, y); });
}
Tensor Tensor::rshift(const Tensor& b) const {
  return met("rshift", b, [](const UOp& x, const UOp& y) { return binary(Op::Shr, x, y); });
}
Tensor Tensor::where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  const tensor::Called called("where", &condition, &a, &b);
  return a.met("where", b, [&](const UOp& x, const UOp& y) {
    tensor::require_condition("where", condition);
    const Tensor chosen = condition.cast(DType::Bool);
    tensor::require_broadcast("where", chosen.uop(), x);
    tensor::require_broadcast("where", chosen.uop(), y);
    return koine::where(chosen.uop(), x, y);
  });
}

Tensor Tensor::cast(DType dtype) const {
  KOINE_REQUIRE(dtype != DType::Void && dtype != DType::Index, Type,
                "cast: {} is not a dtype of tensors", dtype_name(dtype));
  return this->dtype() == dtype ? *this : Tensor(koine::cast(uop(), dtype));
}
Tensor Tensor::bitcast(DType dtype) const {
  return tensor::as_method("bitcast", {*this},
                           [&] { return Tensor(koine::bitcast(uop(), dtype)); });
}
Tensor Tensor::neg() const {
  return tensor::as_method("neg", {*this}, [&] {
    const Tensor made(koine::neg(uop()));
    return stands_for_number() ? made.standing_for_number() : made;
  });
}
Tensor Tensor::logical_not() const { return Tensor(koine::logical_not(cast(DType::Bool).uop())); }
Tensor Tensor::bitwise_not() const {
  if (dtype() == DType::Bool) return logical_not();
  return tensor::as_method("bitwise_not", {*this},
                           [&] { return Tensor(bit_xor(uop(), constant_int(dtype(), -1))); });
}
Tensor Tensor::reciprocal() const { return Tensor(1.0) / *this; }
Tensor Tensor::sqrt() const { return apply(Op::Sqrt, *this); }
Tensor Tensor::rsqrt() const {
  return in_floats(*this, [](const Tensor& x) { return x.sqrt().reciprocal(); });
}
Tensor Tensor::exp2() const { return apply(Op::Exp2, *this); }
Tensor Tensor::log2() const { return apply(Op::Log2, *this); }
Tensor Tensor::exp() const {
  return in_floats(*this, [](const Tensor& x) { return Tensor(exponential(x.uop(), Base::E)); });
}
Tensor Tensor::log() const {
  return in_floats(*this, [](const Tensor& x) { return Tensor(logarithm(x.uop(), Base::E)); });
}
Tensor Tensor::sin() const { return apply(Op::Sin, *this); }
Tensor Tensor::cos() const {
  return in_floats(*this, [](const Tensor& x) { return Tensor(sine(x.uop(), 1)); });
}
Tensor Tensor::tan() const {
  return in_floats(*this, [](const Tensor& x) { return x.sin() / x.cos(); });
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
  return where(nearest == tensor::like(*this, 0), *this * tensor::like(*this, 0),
               nearest);  // the sign of 0
}
// What detach() marks below has no part in a gradient: it gives the corners of amendment C40. It
// costs nothing: see forward_rules.
Tensor Tensor::abs() const {
  if (!is_signed(dtype()) && !is_float(dtype())) return *this;
  const Tensor zero = tensor::like(*this, 0);
  const Tensor rest = is_float(dtype()) ? where(*this > zero, *this, detach() + zero) : *this;
  return where(*this < zero, neg(), rest);
}
Tensor Tensor::sign() const {
  const Tensor one = tensor::like(*this, 1), zero = tensor::like(*this, 0);
  if (!is_signed(dtype()) && !is_float(dtype())) return where(*this != zero, one, zero);
  const Tensor rest = is_float(dtype()) ? detach() + zero : zero;  // NaN stays, -0 becomes 0
  return where(*this > zero, one, where(*this < zero, one.neg(), rest));
}
Tensor Tensor::square() const { return *this * *this; }
Tensor Tensor::isnan() const { return *this != *this; }
Tensor Tensor::isinf() const {
  if (!is_float(dtype())) return tensor::like(*this, 0).cast(DType::Bool);
  const double inf = std::numeric_limits<double>::infinity();
  return (*this == Tensor(inf)).bitwise_or(*this == Tensor(-inf));
}
Tensor Tensor::isfinite() const { return isnan().bitwise_or(isinf()).logical_not(); }

Tensor Tensor::clip(const Tensor& low, const Tensor& high) const {
  const tensor::Called called("clip", this, &low, &high);
  KOINE_REQUIRE(low.defined() || high.defined(), Value, "clip: neither a low bound nor a high one");
  if (!low.defined())
    return tensor::as_method("clip", {*this, high}, [&] { return minimum(high); });
  if (!high.defined()) return tensor::as_method("clip", {*this, low}, [&] { return maximum(low); });
  if (const UOp l = low.as_literal(), h = high.as_literal(); l && h)
    KOINE_REQUIRE(tensor::number_of(l) <= tensor::number_of(h), Value,
                  "clip: the low bound {} is above the high bound {}", tensor::literal_text(l),
                  tensor::literal_text(h));
  return tensor::as_method("clip", {*this, low, high}, [&] { return maximum(low).minimum(high); });
}
Tensor Tensor::hardtanh(double low, double high) const {
  return tensor::as_method("hardtanh", {*this}, [&] { return clip(low, high); });
}
Tensor Tensor::lerp(const Tensor& end, const Tensor& weight) const {
  return tensor::as_method("lerp", {*this, end, weight},
                           [&] { return *this + (end - *this) * weight; });
}
Tensor Tensor::masked_fill(const Tensor& mask, const Tensor& value) const {
  tensor::require_condition("masked_fill", mask);
  const Tensor filling(value.in_dtype("masked_fill", dtype()));
  return tensor::as_method("masked_fill", {*this, mask},
                           [&] { return where(mask, filling, *this); });
}

UOp Tensor::in_dtype(std::string_view method, DType dtype) const {
  const UOp literal = as_literal(), value = uop();
  KOINE_REQUIRE(value.is_scalar(), Value, "{}: the value must be a scalar, its shape is {}", method,
                shape_text(value));
  if (!literal) return koine::cast(value, dtype);
  if (dtype == DType::Bool) return tensor::number_in(value, dtype);
  if (is_float(dtype)) return tensor::float_const(method, literal, dtype);
  const bool number = !is_float(literal.dtype()) || std::isfinite(const_double(literal));
  const __int128 towards_zero =
      is_float(literal.dtype()) && number
          ? tensor::written(constant(DType::Float64, std::trunc(const_double(literal)))).floor
          : 0;
  const __int128 whole = is_float(literal.dtype()) ? towards_zero : tensor::written(literal).floor;
  if (!number || !tensor::holds(dtype, whole)) tensor::refuse_literal(method, literal, dtype);
  return tensor::integer_const(dtype, whole);
}

}  // namespace koine

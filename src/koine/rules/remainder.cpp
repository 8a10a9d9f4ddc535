#include "koine/rules/remainder.hpp"

#include <cmath>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"

namespace koine {
namespace {

UOp real(double v) { return constant(DType::Float64, v); }
UOp whole(int64_t v) { return constant_int(DType::Int64, v); }
UOp shift_right(const UOp& v, int64_t n) { return binary(Op::Shr, v, whole(n)); }
UOp magnitude_of(const UOp& x) { return where(lt(x, constant_like(x, 0)), neg(x), x); }

// Most bits that a quotient of two numbers of the dtype has.
int quotient_bits(DType dtype) {
  switch (dtype) {
    case DType::Float8E4M3:
      return 18;
    case DType::Float8E5M2:
      return 32;
    case DType::Float16:
      return 40;
    default:
      return 277;  // float32, bfloat16
  }
}

// size mod step of two float64 that are floats of at most 24 bits, by long division: a digit of
// the quotient has 29 bits, so that its product with the step is exact. A digit that is estimated
// one off is set right.
UOp remainder_of_narrow(const UOp& size, const UOp& step, int bits) {
  constexpr int digit = 29;
  const UOp inverse = fdiv(real(1), step), zero = real(0);
  UOp rest = size;
  for (int place = (bits - 1) / digit; place >= 0; --place) {
    const double scale = std::ldexp(1.0, digit * place);
    const UOp divisor = mul(step, real(scale));
    const UOp estimate = unary(Op::Trunc, mul(rest, mul(inverse, real(1 / scale))));
    rest = sub(rest, mul(estimate, divisor));
    rest = where(lt(rest, zero), add(rest, divisor), rest);
    rest = where(lt(rest, divisor), rest, sub(rest, divisor));
  }
  return rest;
}

// a b mod m of whole numbers below 2^53, b < m: the quotient is estimated in float64, at most four
// off, and the difference of the two products fits 64 bits even where they wrap.
UOp product_modulo(const UOp& a, const UOp& b, const UOp& m, const UOp& inverse) {
  const UOp estimate = mul(mul(cast(a, DType::Float64), cast(b, DType::Float64)), inverse);
  UOp rest = sub(mul(a, b), mul(cast(estimate, DType::Int64), m));
  const UOp twice = add(m, m), four_times = add(twice, twice);
  rest = where(lt(rest, whole(0)), add(rest, four_times), rest);
  for (const UOp& multiple : {four_times, twice, m})
    rest = where(lt(rest, multiple), rest, sub(rest, multiple));
  return rest;
}

// size mod step of positive finite float64: with size = s 2^i and step = t 2^k in whole numbers,
// (s 2^(i-k) mod t) 2^k, the power by squaring modulo t.
UOp remainder_of_wide(const UOp& size, const UOp& step) {
  constexpr int64_t hidden = int64_t{1} << 52;
  auto exponent_of = [](const UOp& x) {  // 1 for subnormals
    const UOp field = shift_right(bitcast(x, DType::Int64), 52);
    return where(lt(whole(0), field), field, whole(1));
  };
  auto digits_of = [](const UOp& x) {
    const UOp bits = bitcast(x, DType::Int64);
    const UOp digits = bit_and(bits, whole(hidden - 1));
    return where(lt(bits, whole(hidden)), digits, bit_or(digits, whole(hidden)));
  };
  const UOp m = digits_of(step), low = exponent_of(step);
  const UOp inverse = fdiv(real(1), cast(m, DType::Float64));
  const UOp distance = sub(exponent_of(size), low);
  UOp power = where(eq(m, whole(1)), whole(0), whole(1));
  for (int64_t bit = 10; bit >= 0; --bit) {
    power = product_modulo(power, power, m, inverse);
    const UOp twice = add(power, power);
    const UOp doubled = where(lt(twice, m), twice, sub(twice, m));
    power = where(ne(bit_and(shift_right(distance, bit), whole(1)), whole(0)), doubled, power);
  }
  const UOp rest = product_modulo(digits_of(size), power, m, inverse);
  // Times 2^(low - 1075), in two factors that are normal.
  auto power_of_two = [](const UOp& n) {
    return bitcast(binary(Op::Shl, add(n, whole(1023)), whole(52)), DType::Float64);
  };
  const UOp half = shift_right(low, 1);
  const UOp scaled = mul(mul(cast(rest, DType::Float64), power_of_two(sub(half, whole(537)))),
                         power_of_two(sub(sub(low, half), whole(538))));
  return where(lt(size, step), size, scaled);
}

// The neighbour of x towards 0.
UOp toward_zero(const UOp& x) {
  const DType bits = storage_uint(x.dtype());
  return bitcast(add(bitcast(x, bits), constant_int(bits, -1)), x.dtype());
}

}  // namespace

UOp float_remainder(const UOp& a, const UOp& b) {
  const DType dtype = a.dtype();
  const UOp wide_a = cast(a, DType::Float64), wide_b = cast(b, DType::Float64);
  const UOp size = magnitude_of(wide_a), step = magnitude_of(wide_b);
  const UOp infinity = real(INFINITY), zero = constant_like(a, 0);
  const UOp part =
      cast(dtype == DType::Float64 ? remainder_of_wide(size, step)
                                   : remainder_of_narrow(size, step, quotient_bits(dtype)),
           dtype);
  const UOp unbounded = eq(step, infinity), finite = lt(size, infinity);
  const UOp defined = bit_and(finite, bit_and(lt(real(0), step), eq(step, step)));
  const UOp exact = where(unbounded, magnitude_of(a), part);
  const UOp a_negative = lt(a, zero), b_negative = lt(b, zero);
  const UOp with_sign = where(a_negative, neg(exact), exact), sum = add(with_sign, b);
  const UOp below = where(bit_and(eq(sum, b), logical_not(unbounded)), toward_zero(b), sum);
  const UOp moved = where(ne(a_negative, b_negative), below, with_sign);
  const UOp result = where(eq(exact, zero), where(b_negative, constant_like(a, -0.0), zero), moved);
  return where(defined, result, constant_like(a, std::nan("")));
}

}  // namespace koine

#include "koine/rules/remainder.hpp"

#include <cmath>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"

namespace koine {
namespace {

UOp real(double v) { return constant(DType::Float64, v); }
UOp whole(int64_t v) { return constant_int(DType::Int64, v); }
UOp shift_right(const UOp& v, int64_t n) { return binary(Op::Shr, v, whole(n)); }

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
// the quotient has 29 bits, so that its product with the step is exact. An estimated digit is off
// by less than 2^-24: one too high where the rest comes out negative, one too low where the rest,
// which has 24 bits as well, is no other multiple of the divisor than the divisor itself.
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
    rest = where(lt(rest, divisor), rest, zero);
  }
  return rest;
}

// The same in 32-bit integers and float32, for machines without float64. Of floats with digits s
// and m of at most 24 bits and a distance d of their exponents it is s 2^d mod m: eight bits of 2^d
// at a time, so that the rest, which is below m, stays below 2^32.
UOp remainder_of_single(const UOp& size, const UOp& step, int bits) {
  constexpr int digit = 8;
  constexpr int64_t hidden = int64_t{1} << 23;
  const auto word = [](int64_t v) { return constant_int(DType::UInt32, v); };
  const auto digits = [&](const UOp& x) {  // and its exponent; a subnormal has that of the next
    const UOp all = bitcast(x, DType::UInt32);
    const UOp field = binary(Op::Shr, all, word(23)), normal = ne(field, word(0));
    return std::pair(bit_or(bit_and(all, word(hidden - 1)), where(normal, word(hidden), word(0))),
                     maximum(field, word(1)));
  };
  const auto [s, high] = digits(size);
  const auto [m, low] = digits(step);
  UOp rest = binary(Op::Mod, s, m);
  UOp left = where(lt(low, high), sub(high, low), word(0));
  for (int places = bits; places > 0; places -= digit) {
    const UOp now = where(lt(left, word(digit)), left, word(digit));
    rest = binary(Op::Mod, binary(Op::Shl, rest, now), m);
    left = sub(left, now);
  }
  // Times 2^(low - 150), in two factors that are normal.
  const auto power_of_two = [&](const UOp& n) {
    return bitcast(binary(Op::Shl, n, word(23)), DType::Float32);
  };
  const UOp half = binary(Op::Shr, low, word(1));
  const UOp scaled = mul(mul(cast(rest, DType::Float32), power_of_two(add(half, word(52)))),
                         power_of_two(add(sub(low, half), word(52))));
  return where(lt(size, step), size, scaled);
}

// Whole numbers modulo m, 2^52 <= m < 2^53, as residues of either sign and at most m/2.
class Residues {
 public:
  explicit Residues(const UOp& m)
      : m_(m), half_(shift_right(m, 1)), inverse_(fdiv(real(1), cast(m, DType::Float64))) {}

  /// Of a number that is at most 3/2 m in magnitude.
  UOp nearest(const UOp& v) const {
    return where(lt(half_, v), sub(v, m_), where(lt(v, neg(half_)), add(v, m_), v));
  }
  /// a b, where its magnitude is at most 2^50 m: the quotient is estimated in float64, less than
  /// one off, and the difference of the two products fits 64 bits even where they wrap.
  UOp product(const UOp& a, const UOp& b) const {
    constexpr double magic = 0x1.8p52;  // adding it rounds to an integer in the low bits
    const UOp estimate = mul(mul(cast(a, DType::Float64), cast(b, DType::Float64)), inverse_);
    const UOp quotient = sub(bitcast(add(estimate, real(magic)), DType::Int64),
                             constant_bits(DType::Int64, double_to_bits(DType::Float64, magic)));
    return nearest(sub(mul(a, b), mul(quotient, m_)));
  }

 private:
  UOp m_, half_, inverse_;
};

// A positive finite float64 as digits 2^(exponent - 1075), digits of 53 bits, also where it is
// subnormal: the exponent is then below 1.
struct Scaled {
  UOp digits, exponent;
};
Scaled scaled_digits(const UOp& x) {
  constexpr int64_t hidden = int64_t{1} << 52;
  const UOp subnormal = lt(x, real(0x1p-1022));
  const UOp bits = bitcast(where(subnormal, mul(x, real(0x1p54)), x), DType::Int64);
  return {bit_or(bit_and(bits, whole(hidden - 1)), whole(hidden)),
          sub(shift_right(bits, 52), where(subnormal, whole(54), whole(0)))};
}

// size mod step of positive finite float64. With size = s 2^i and step = m 2^k in whole numbers and
// i - k = 64 h + l it is s 2^l (2^h)^64 mod m, times 2^k.
UOp remainder_of_wide(const UOp& size, const UOp& step) {
  const auto [s, high] = scaled_digits(size);
  const auto [m, low] = scaled_digits(step);
  const UOp distance = sub(high, low);
  const UOp steps = maximum(distance, whole(0));  // size < step: any
  const Residues modulo(m);
  auto two_to = [](const UOp& n) { return binary(Op::Shl, whole(1), n); };
  UOp power = two_to(shift_right(steps, 6));  // h <= 32
  for (int k = 0; k < 6; ++k) power = modulo.product(power, power);
  // 2^l in two factors of at most 2^32.
  const UOp rest = bit_and(steps, whole(63)), first = shift_right(rest, 1);
  UOp out = modulo.nearest(modulo.nearest(s));
  out = modulo.product(modulo.product(out, two_to(first)), two_to(sub(rest, first)));
  out = modulo.product(out, power);
  out = where(lt(out, whole(0)), add(out, m), out);
  // Times 2^(low - 1075), in two factors that are normal.
  auto power_of_two = [](const UOp& n) {
    return bitcast(binary(Op::Shl, add(n, whole(1023)), whole(52)), DType::Float64);
  };
  const UOp half = shift_right(low, 1);
  const UOp scaled = mul(mul(cast(out, DType::Float64), power_of_two(sub(half, whole(537)))),
                         power_of_two(sub(sub(low, half), whole(538))));
  return where(lt(size, step), size, scaled);
}

// The neighbour of x towards 0.
UOp toward_zero(const UOp& x) {
  const DType bits = storage_uint(x.dtype());
  return bitcast(add(bitcast(x, bits), constant_int(bits, -1)), x.dtype());
}

}  // namespace

UOp float_remainder(const UOp& a, const UOp& divisor, bool has_float64) {
  const DType dtype = a.dtype();
  if (dtype == DType::Float64) has_float64 = true;
  const DType wide = has_float64 ? DType::Float64 : DType::Float32;
  // The divisor is read several times, and added once: no product may be unrounded there alone.
  const UOp b = divisor.is(Op::Mul) ? rounded_product(divisor) : divisor;
  const UOp wide_a = cast(a, wide), wide_b = cast(b, wide);
  const UOp size = magnitude_of(wide_a), step = magnitude_of(wide_b);
  const UOp infinity = constant_like(size, INFINITY), zero = constant_like(a, 0);
  const UOp part = cast(dtype == DType::Float64 ? remainder_of_wide(size, step)
                        : has_float64 ? remainder_of_narrow(size, step, quotient_bits(dtype))
                                      : remainder_of_single(size, step, quotient_bits(dtype)),
                        dtype);
  const UOp unbounded = eq(step, infinity), finite = lt(size, infinity);
  const UOp defined = bit_and(finite, bit_and(lt(constant_like(step, 0), step), eq(step, step)));
  const UOp exact = where(unbounded, magnitude_of(a), part);
  const UOp a_negative = lt(a, zero), b_negative = lt(b, zero);
  const UOp with_sign = where(a_negative, neg(exact), exact), sum = add(with_sign, b);
  const UOp below = where(bit_and(eq(sum, b), logical_not(unbounded)), toward_zero(b), sum);
  const UOp moved = where(ne(a_negative, b_negative), below, with_sign);
  const UOp result = where(eq(exact, zero), where(b_negative, constant_like(a, -0.0), zero), moved);
  return where(defined, result, constant_like(a, std::nan("")));
}

}  // namespace koine

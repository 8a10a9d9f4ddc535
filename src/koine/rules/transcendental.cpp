#include <cmath>
#include <numbers>

#include "koine/ir/build.hpp"
#include "koine/rules/decompose.hpp"
#include "koine/rules/remainder.hpp"

namespace koine {
namespace {

// Layout of float32 and float64, the range of exponents that matters, and how many terms of the
// series of log reach the precision.
struct Format {
  DType dtype, bits;
  int mantissa;
  int64_t bias;
  double round_magic;  // 1.5 * 2^mantissa: adding it rounds to an integer in the low bits
  double exp_low, exp_high;
  int log_terms;
  double ln2_high, ln2_low;  // ln 2; a product of the first with an exponent is exact
};

Format format_of(DType dtype) {
  if (dtype == DType::Float64)
    return {DType::Float64,  DType::Int64,         52, 1023, 0x1.8p52, -1080, 1025, 10,
            0x1.62e42feep-1, 0x1.a39ef35793c76p-33};
  return {DType::Float32, DType::Int32, 23, 127,         0x1.8p23,
          -152,           129,          4,  0x1.62e4p-1, 0x1.7f7d1cf79abcap-20};
}

UOp like(const UOp& x, double v) { return constant(x.dtype(), v); }

// c0 + x (c1 + x (c2 + ...))
UOp horner(const UOp& x, const std::vector<double>& coefficients) {
  UOp sum = like(x, coefficients.back());
  for (size_t i = coefficients.size() - 1; i-- > 0;)
    sum = add(mul(sum, x), like(x, coefficients[i]));
  return sum;
}

// 2^n of an integer in the normal range, by its exponent bits.
UOp power_of_two(const UOp& n, const Format& f) {
  const UOp biased = add(n, constant_int(f.bits, f.bias));
  return bitcast(binary(Op::Shl, biased, constant_int(f.bits, f.mantissa)), f.dtype);
}

// The coefficients of e^(x ln base) for |x ln base| <= ln2 / 2: for float64 the Taylor series; for
// float32 a least-squares fit whose relative error is 2^-27.8.
std::vector<double> exp_series(const Format& f, double ln_base) {
  std::vector<double> series{1.0, 1.0};
  if (f.dtype == DType::Float64)
    while (series.size() < 14) series.push_back(series.back() / static_cast<double>(series.size()));
  else
    series.insert(series.end(), {0x1.00000045909aap-1, 0x1.55548acd2c6dcp-3, 0x1.55547c5f7333dp-5,
                                 0x1.123dc0a498561p-7, 0x1.6d994d08663b2p-10});
  double power = 1;
  for (double& c : series) {
    c *= power;
    power *= ln_base;
  }
  return series;
}

// base^x = 2^n base^r, n the nearest integer to x log2(base), |r| <= 1/2 log_base(2). r is exact
// for base 2; for e, n ln2 is subtracted in two parts (Cody and Waite). The scale is applied in two
// halves, so results in the subnormal range round once. Where the result is 0 it is not computed:
// processors take a hundred times as long for what underflows. `low`, if there is one, is added to
// r.
UOp exp_of(const UOp& x, Base base, const UOp& low_part = {}) {
  const Format f = format_of(x.dtype());
  const double ln_base = base == Base::E ? 1.0 : std::numbers::ln2;
  const double per_octave = base == Base::E ? std::numbers::ln2 : 1.0;
  const UOp low = like(x, f.exp_low * per_octave), high = like(x, f.exp_high * per_octave);
  const UOp vanishes = lt(x, low), zero = like(x, 0);
  const UOp clamped = where(vanishes, zero, where(lt(high, x), high, x));
  const UOp magic = like(x, f.round_magic);
  const UOp octaves = base == Base::E ? mul(clamped, like(x, std::numbers::log2e)) : clamped;
  const UOp shifted = add(octaves, magic);
  const UOp n =
      sub(bitcast(shifted, f.bits), constant_bits(f.bits, double_to_bits(f.dtype, f.round_magic)));
  const UOp whole = sub(shifted, magic);
  UOp rest = base == Base::E ? add(add(clamped, mul(whole, like(x, -f.ln2_high))),
                                   mul(whole, like(x, -f.ln2_low)))
                             : sub(clamped, whole);
  if (low_part) rest = add(rest, low_part);
  const UOp half = binary(Op::Shr, n, constant_int(f.bits, 1));
  const UOp scaled = mul(horner(rest, exp_series(f, ln_base)), power_of_two(half, f));
  return where(vanishes, zero, mul(scaled, power_of_two(sub(n, half), f)));
}

// x = m 2^e, m in [1/sqrt 2, sqrt 2), of a positive finite x.
struct Parts {
  UOp m, e;
};
Parts parts_of(const UOp& x) {
  const Format f = format_of(x.dtype());
  const double smallest = std::ldexp(1.0, static_cast<int>(1 - f.bias));
  const UOp subnormal = lt(x, like(x, smallest));
  const UOp scaled = where(subnormal, mul(x, like(x, std::ldexp(1.0, f.mantissa))), x);
  const UOp raw = bitcast(scaled, f.bits);
  const UOp pivot = constant_bits(f.bits, double_to_bits(f.dtype, std::numbers::sqrt2 / 2));
  const UOp shift = constant_int(f.bits, f.mantissa);
  const UOp exponent = binary(Op::Shr, sub(raw, pivot), shift);
  return {bitcast(sub(raw, binary(Op::Shl, exponent, shift)), f.dtype),
          add(cast(exponent, f.dtype), where(subnormal, like(x, -f.mantissa), like(x, 0)))};
}

// The terms of 2 atanh(s) = 2 s + 2 s^3/3 + 2 s^5/5 + ... from number `first` on, divided by
// s^(2 first + 1), times `scale`.
UOp atanh_series(const UOp& s2, int first, int terms, double scale = 1) {
  std::vector<double> series;
  for (int k = first; k < first + terms; ++k) series.push_back(2 * scale / (2 * k + 1));
  return horner(s2, series);
}

// f = m - 1, exact, and ln(1 + f) = f - f^2/2 + tail: with s = f / (2 + f),
// tail = s (f^2/2 + 2 s^2/3 + 2 s^4/5 + ...) (after K. C. Ng, in Sun's fdlibm).
struct LogParts {
  UOp f, half_square, tail;
};
LogParts log_parts(const UOp& m) {
  const UOp f = add(m, like(m, -1)), s = fdiv(f, add(f, like(m, 2))), s2 = mul(s, s);
  const UOp half_square = mul(mul(f, like(m, 0.5)), f);
  return {f, half_square,
          mul(s, add(half_square, mul(s2, atanh_series(s2, 1, format_of(m.dtype()).log_terms))))};
}

// ln(m 2^e) = e ln2 + ln(m), e ln2 in two parts, the large one exact.
UOp natural_log_of(const Parts& x) {
  const Format format = format_of(x.m.dtype());
  const auto [f, half_square, tail] = log_parts(x.m);
  const UOp small = add(tail, mul(x.e, like(x.m, format.ln2_low)));
  return add(mul(x.e, like(x.m, format.ln2_high)), add(f, sub(small, half_square)));
}

// log2(m 2^e) = e + ln(m)/ln2. ln(m) in two parts, of which the upper has half of the bits, so that
// its product with the upper half of 1/ln2 is exact.
UOp binary_log_of(const Parts& x) {
  const Format format = format_of(x.m.dtype());
  const bool wide = format.dtype == DType::Float64;
  const auto [f, half_square, tail] = log_parts(x.m);
  const DType bits = storage_uint(format.dtype);
  const UOp mask = constant_bits(bits, wide ? ~uint64_t{0xffffffff} : 0xfffff000);
  const UOp high = bitcast(bit_and(bitcast(sub(f, half_square), bits), mask), format.dtype);
  const UOp low = add(sub(sub(f, high), half_square), tail);
  const UOp c_high = like(x.m, wide ? 0x1.7154765200000p+0 : 0x1.716p+0);
  const UOp c_low = like(x.m, wide ? 0x1.705fc2eefa200p-33 : -0x1.7135a8fa03d11p-13);
  const UOp first = mul(high, c_high), rest = add(mul(add(low, high), c_low), mul(low, c_high));
  const UOp sum = add(x.e, first);
  return add(sum, add(add(sub(x.e, sum), first), rest));
}

UOp log_of(const UOp& x, Base base) {
  const Parts parts = parts_of(x);
  const UOp finite = base == Base::E ? natural_log_of(parts) : binary_log_of(parts);
  const double inf = std::numeric_limits<double>::infinity();
  const UOp zero = like(x, 0);
  // +inf and NaN pass through; negative gives NaN; both zeros give -inf.
  const UOp positive = where(lt(x, like(x, inf)), finite, x);
  return where(
      lt(zero, x), positive,
      where(eq(x, zero), like(x, -inf), like(x, std::numeric_limits<double>::quiet_NaN())));
}

// The sum of a float64 and one that is smaller by 2^25 or more.
struct Pair {
  UOp high, low;
};
// The upper 26 bits and the other 27. By a mask: a product that is rounded once and fused into a
// sum elsewhere would not be one value.
Pair halves(const UOp& v) {
  const UOp mask = constant_bits(DType::UInt64, ~uint64_t{0x7ffffff});
  const UOp high = bitcast(bit_and(bitcast(v, DType::UInt64), mask), DType::Float64);
  return {high, sub(v, high)};
}
// a b to about 78 bits (after Dekker, 1971).
Pair product_pair(const UOp& a, const UOp& b) {
  const Pair x = halves(a), y = halves(b);
  const UOp high = halves(mul(a, b)).high;
  const UOp rest = add(sub(mul(x.high, y.high), high), add(mul(x.high, y.low), mul(x.low, y.high)));
  return {high, add(rest, mul(x.low, y.low))};
}
// |a| >= |b|, or a is 0.
Pair exact_sum(const UOp& a, const UOp& b) {
  const UOp s = add(a, b);
  return {s, sub(b, sub(s, a))};
}

Pair any_sum(const UOp& a, const UOp& b) {
  const UOp s = add(a, b), b_part = sub(s, a);
  return {s, add(sub(a, sub(s, b_part)), sub(b, b_part))};
}

// log2 of a positive finite float64 to about 68 bits.
Pair log2_pair(const UOp& x) {
  constexpr double c = 2 * std::numbers::log2e, c_rest = 0x1.777d0ffda0d24p-55;  // 2/ln2
  constexpr double c3 = 0x1.ec709dc3a03fdp-1, c3_rest = 0x1.d27f05548af0cp-55;   // 2/(3 ln2)
  const auto [m, e] = parts_of(x);
  const UOp above = add(m, like(x, -1)), below = add(m, like(x, 1));  // the first is exact
  const UOp below_rest = sub(m, add(below, like(x, -1)));
  const UOp s = fdiv(above, below);
  const Pair back = product_pair(s, below);
  const UOp s_rest = fdiv(sub(sub(sub(above, back.high), back.low), mul(s, below_rest)), below);
  // The terms of s and of s^3 in two parts each; the next ones are below 2^-13.
  const Pair first = product_pair(s, like(x, c)), square = product_pair(s, s);
  const Pair cube = product_pair(square.high, s), third = product_pair(cube.high, like(x, c3));
  const UOp s2 = mul(s, s), s4 = mul(s2, s2);
  const UOp first_rest = add(first.low, mul(s, like(x, c_rest)));
  const UOp third_rest = add(add(third.low, mul(cube.high, like(x, c3_rest))),
                             mul(add(cube.low, mul(square.low, s)), like(x, c3)));
  const UOp slope = mul(like(x, c), add(add(s4, s2), like(x, 1)));
  const UOp others =
      add(mul(s_rest, slope), mul(mul(s, s4), atanh_series(s2, 2, 12, std::numbers::log2e)));
  const Pair large = exact_sum(first.high, third.high), sum = exact_sum(e, large.high);
  return exact_sum(sum.high,
                   add(sum.low, add(add(add(large.low, first_rest), third_rest), others)));
}

// The nearest integer of a float64 below 2^51 in magnitude, as a float64 and in its low bits.
struct Nearest {
  UOp value, bits;
};
Nearest nearest(const UOp& x) {
  const UOp magic = like(x, 0x1.8p52);
  const UOp shifted = add(x, magic);
  return {sub(shifted, magic), bitcast(shifted, DType::Int64)};
}

// (-1)^k / n!, from one k on: coefficients of the Taylor series of sin or cos in the square of r.
std::vector<double> alternating(int first, int count) {
  std::vector<double> out;
  double factorial = 1;
  for (int n = 1; static_cast<int>(out.size()) < count; ++n) {
    factorial *= n;
    if (n >= first && (n - first) % 2 == 0) out.push_back((n / 2 % 2 == 0 ? 1 : -1) / factorial);
  }
  return out;
}

// sin(quadrant pi/2 + r), of sin r and cos r, which are nearly r and 1: what is beside those.
UOp in_quadrant(const UOp& r, const UOp& sine_rest, const UOp& cosine, const UOp& cosine_rest,
                const UOp& quadrant) {
  auto bit = [&](int64_t mask) {
    return ne(bit_and(quadrant, constant_int(DType::Int64, mask)), constant_int(DType::Int64, 0));
  };
  const UOp value = where(bit(1), add(cosine, cosine_rest), add(r, sine_rest));
  return where(bit(2), neg(value), value);
}

// To the last place of float64: |r| <= pi/4, `low` is what is below the last place of r.
UOp sin_in_quadrant(const UOp& r, const UOp& low, const UOp& quadrant) {
  const UOp r2 = mul(r, r), one = like(r, 1);
  const UOp half_square = mul(r2, like(r, 0.5)), above = sub(one, half_square);
  const UOp sine_rest = add(mul(mul(r, r2), horner(r2, alternating(3, 8))), mul(low, above));
  const UOp cosine_rest =
      sub(add(sub(sub(one, above), half_square), mul(mul(r2, r2), horner(r2, alternating(4, 8)))),
          mul(r, low));
  return in_quadrant(r, sine_rest, above, cosine_rest, quadrant);
}

// To the last place of float32, in float64: the series end at 4e-12.
UOp sin_in_quadrant(const UOp& r, const UOp& quadrant) {
  const UOp r2 = mul(r, r);
  return in_quadrant(r, mul(mul(r, r2), horner(r2, alternating(3, 5))), like(r, 1),
                     mul(r2, horner(r2, alternating(2, 6))), quadrant);
}

UOp nan_like(const UOp& x) { return like(x, std::numeric_limits<double>::quiet_NaN()); }

// x = q pi/2 + r + low, |r| <= pi/4, low (or null: of float32) below the last place of r; the low
// bits of q.
struct Reduced {
  UOp r, low, quadrant;
};

// For |x| < 2^20, in four parts (Cody and Waite). The first three of pi/2 have 33 bits, so that q
// times a part is exact; what the differences lose is kept.
Reduced reduce_small(const UOp& x) {
  constexpr double part1 = 0x1.921fb544p+0, part2 = 0x1.0b4611a6p-34, part3 = 0x1.3198a2e0p-69;
  constexpr double part4 = 0x1.b839a252049c1p-104;
  const Nearest q = nearest(mul(x, like(x, 2 / std::numbers::pi)));
  auto times = [&](double part) { return mul(q.value, like(x, -part)); };
  const Pair second = any_sum(add(x, times(part1)), times(part2));
  const Pair third = any_sum(second.high, times(part3));
  const Pair r = exact_sum(third.high, add(add(second.low, third.low), times(part4)));
  return {r.high, r.low, q.bits};
}

// For x >= 2^20, in integers (Payne and Hanek, 1983): x = m 2^(e - 1075), and bits of 2/pi that
// give multiples of 4 in the product do not matter. The window of seven words that does is picked
// from the table by a barrel shifter.
Reduced reduce_large(const UOp& x) {
  // 34 zero bits, then 2/pi.
  constexpr uint32_t two_over_pi[38] = {
      0x00000000, 0x28be60db, 0x9391054a, 0x7f09d5f4, 0x7d4d3770, 0x36d8a566, 0x4f10e410,
      0x7f9458ea, 0xf7aef158, 0x6dc91b8e, 0x909374b8, 0x01924bba, 0x82746487, 0x3f877ac7,
      0x2c4a69cf, 0xba208d7d, 0x4baed121, 0x3a671c09, 0xad17df90, 0x4e64758e, 0x60d4ce7d,
      0x272117e2, 0xef7e4a0e, 0xc7fe25ff, 0xf7816603, 0xfbcbc462, 0xd6829b47, 0xdb4d9fb3,
      0xc9f2c26d, 0xd3d18fd9, 0xa797fa8b, 0x5d49eeb1, 0xfaf97c5e, 0xcf41ce7d, 0xe294a4ba,
      0x9afed7ec, 0x47e35742, 0x1580cc11};
  auto word = [](uint64_t v) { return constant_bits(DType::UInt64, v); };
  auto shr = [&](const UOp& v, uint64_t n) { return binary(Op::Shr, v, word(n)); };
  auto shl = [](const UOp& v, const UOp& n) { return binary(Op::Shl, v, n); };
  const UOp low_half = word(0xffffffff);
  const UOp bits = bitcast(x, DType::UInt64);
  const UOp start = sub(shr(bits, 52), word(1043));  // the window's first bit: 0 to 1004
  std::vector<UOp> window;
  for (const uint32_t w : two_over_pi) window.push_back(word(w));
  for (const size_t step : {16, 8, 4, 2, 1}) {
    const UOp moved = ne(bit_and(start, word(32 * step)), word(0));
    for (size_t k = 0; k < 6 + step; ++k) window[k] = where(moved, window[k + step], window[k]);
    window.resize(6 + step);
  }
  // m 2^(start mod 32) in three words, lowest first.
  const UOp m = bit_or(bit_and(bits, word((uint64_t{1} << 52) - 1)), word(uint64_t{1} << 52));
  const UOp by = bit_and(start, word(31));
  const UOp first = shl(bit_and(m, low_half), by);
  const UOp second = add(shl(shr(m, 32), by), shr(first, 32));
  const UOp words[3] = {bit_and(first, low_half), bit_and(second, low_half), shr(second, 32)};
  // The product modulo 4, word by word; the lowest word of seven is below the precision.
  UOp columns[8];
  for (UOp& c : columns) c = word(0);
  for (size_t k = 1; k < 7; ++k)
    for (size_t i = 0; i < 3 && i <= k; ++i) {
      const UOp product = mul(words[i], window[6 - (k - i)]);
      columns[k] = add(columns[k], bit_and(product, low_half));
      columns[k + 1] = add(columns[k + 1], shr(product, 32));
    }
  for (size_t k = 1; k < 7; ++k) {
    columns[k + 1] = add(columns[k + 1], shr(columns[k], 32));
    columns[k] = bit_and(columns[k], low_half);
  }
  // Two whole bits, then the fraction; it is made signed by rounding the quadrant.
  const UOp top = bit_or(shl(columns[6], word(32)), columns[5]);
  const UOp quadrant = shr(add(top, word(uint64_t{1} << 61)), 62);
  const UOp fraction = bitcast(sub(top, shl(quadrant, word(62))), DType::Int64);
  auto scaled = [&](const UOp& v, int exponent) {
    return mul(cast(cast(v, DType::Int64), DType::Float64), like(x, std::ldexp(1.0, exponent)));
  };
  const UOp high = scaled(binary(Op::Shr, fraction, constant_int(DType::Int64, 32)), -30);
  const UOp middle = scaled(bit_and(fraction, constant_int(DType::Int64, 0xffffffff)), -62);
  const Pair sum = exact_sum(high, middle);
  const Pair turn =
      exact_sum(sum.high, add(sum.low, add(scaled(columns[4], -94), scaled(columns[3], -126))));
  constexpr double half_pi = std::numbers::pi / 2, half_pi_rest = 0x1.1a62633145c07p-54;
  const Pair product = product_pair(turn.high, like(x, half_pi));
  const UOp rest = add(mul(turn.high, like(x, half_pi_rest)), mul(turn.low, like(x, half_pi)));
  const Pair r = exact_sum(product.high, add(product.low, rest));
  return {r.high, r.low, bitcast(quadrant, DType::Int64)};
}

// sin(x + turns pi/2) from the reduced |x|.
UOp sine_of(const UOp& x, const UOp& size, const Reduced& reduced, int64_t turns) {
  const UOp quadrant =
      turns == 0 ? reduced.quadrant : add(reduced.quadrant, constant_int(DType::Int64, turns));
  UOp value = reduced.low ? sin_in_quadrant(reduced.r, reduced.low, quadrant)
                          : sin_in_quadrant(reduced.r, quadrant);
  const UOp zero = like(x, 0);
  if (turns % 2 == 0) {  // odd: the sign of x, also that of 0
    value = where(lt(x, zero), neg(value), value);
    value = where(eq(x, zero), turns == 0 ? x : neg(x), value);
  }
  return where(lt(size, like(x, std::numeric_limits<double>::infinity())), value, nan_like(x));
}

UOp sin_of_double(const UOp& x, int64_t turns) {
  const UOp size = magnitude_of(x);
  const UOp is_small = lt(size, like(x, 0x1p20));
  const Reduced small = reduce_small(size);
  const Reduced large = reduce_large(where(is_small, like(x, 0x1p20), size));
  return sine_of(x, size,
                 {where(is_small, small.r, large.r), where(is_small, small.low, large.low),
                  where(is_small, small.quadrant, large.quadrant)},
                 turns);
}

// sin of a float32, given as a float64: any size. |x| = u 2^s with u below 2^50, a whole number
// where s is not 0, and 2^s 2/pi modulo 4 is a constant in three parts; u has 24 bits, so its
// products with the first two parts (29 bits each) are exact.
UOp sin_of_single(const UOp& x, int64_t turns) {
  struct Row {
    double scale, part1, part2, part3;
  };
  constexpr Row rows[4] = {{0x1p0, 0x1.45f306cp-1, 0x1.c9c882ap-29, 0x1.4fe13abe8fa9ap-59},
                           {0x1p-26, 0x1.b939106p+0, -0x1.6b01ec6p-29, 0x1.7d1f534ddc0dbp-58},
                           {0x1p-52, 0x1.529fc28p+0, -0x1.505c15ap-29, 0x1.377036d8a5665p-58},
                           {0x1p-78, 0x1.d5f47d4p+0, 0x1.a6ee06ep-29, -0x1.3ad4cd8778df8p-59}};
  const UOp size = magnitude_of(x);
  const UOp big = logical_not(lt(size, like(x, 0x1p50)));
  const UOp bigger = logical_not(lt(size, like(x, 0x1p76)));
  const UOp biggest = logical_not(lt(size, like(x, 0x1p102)));
  auto choose = [&](double Row::* column) {
    // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): it does not follow member pointers
    return where(biggest, like(x, rows[3].*column),
                 where(bigger, like(x, rows[2].*column),
                       where(big, like(x, rows[1].*column), like(x, rows[0].*column))));
  };
  const UOp u = mul(size, choose(&Row::scale));
  const UOp t1 = mul(u, choose(&Row::part1)), t2 = mul(u, choose(&Row::part2));
  const UOp t3 = mul(u, choose(&Row::part3));
  const UOp t1_mod_4 = sub(t1, mul(nearest(mul(t1, like(x, 0.25))).value, like(x, 4)));
  const Nearest q1 = nearest(t1_mod_4), q2 = nearest(t2);
  const UOp f1 = sub(t1_mod_4, q1.value), f2 = sub(t2, q2.value);  // exact
  const UOp sum = add(f1, f2), f2_part = sub(sum, f1);
  const UOp lost = add(sub(f1, sub(sum, f2_part)), sub(f2, f2_part));  // by rounding the sum
  const Nearest q = nearest(sum);
  const UOp r = mul(add(sub(sum, q.value), add(lost, t3)), like(x, std::numbers::pi / 2));
  return sine_of(x, size, {r, {}, add(q.bits, add(q1.bits, q2.bits))}, turns);
}

// a^b of a positive a: 2^(b log2 a). A rounded product would lose as many bits as its whole part
// has, so a result that stays float64 takes it in two parts.
UOp pow_of_positive(const UOp& a, const UOp& b, bool to_last_place) {
  if (!to_last_place) return exp_of(mul(log_of(a, Base::Two), b), Base::Two);
  const UOp zero = like(a, 0), most = like(a, 0x1p64);
  const UOp infinity = like(a, std::numeric_limits<double>::infinity());
  const UOp ordinary = bit_and(lt(zero, a), lt(a, infinity));
  const Pair log = log2_pair(where(ordinary, a, like(a, 1)));
  // Beyond 2^64 every power but that of 1 has left the range.
  const UOp exponent = where(lt(most, b), most, where(lt(b, neg(most)), neg(most), b));
  const Pair product = product_pair(exponent, log.high);
  const UOp rest = add(product.low, mul(exponent, log.low));
  const UOp in_range = bit_and(lt(product.high, like(a, 2048)), lt(like(a, -2048), product.high));
  const UOp power = exp_of(product.high, Base::Two, where(in_range, rest, zero));
  const UOp corner = where(ne(lt(zero, b), eq(a, zero)), infinity, zero);  // of 0 and infinity
  const UOp is_nan = bit_or(ne(a, a), ne(b, b));
  return where(ordinary, power, where(is_nan, add(a, b), corner));
}

// |a|^b, then the sign and the corners of IEEE pow.
UOp pow_of_double(const UOp& a, const UOp& b, bool to_last_place) {
  const UOp zero = like(a, 0), one = like(a, 1);
  const double inf = std::numeric_limits<double>::infinity();
  const UOp magnitude = magnitude_of(a);
  const UOp power = pow_of_positive(magnitude, b, to_last_place);
  // Every |b| >= 2^53 is an even integer.
  const UOp whole = eq(unary(Op::Trunc, b), b);
  const UOp halved = mul(b, like(b, 0.5));
  const UOp odd = bit_and(whole, ne(unary(Op::Trunc, halved), halved));
  const UOp negative_zero =
      bit_and(eq(a, zero), lt(bitcast(a, DType::Int64), constant_int(DType::Int64, 0)));
  const UOp negative = bit_or(lt(a, zero), negative_zero);
  UOp result = where(bit_and(negative, odd), neg(power), power);
  const UOp fractional = bit_and(logical_not(whole), bit_and(lt(a, zero), lt(like(a, -inf), a)));
  result = where(fractional, like(a, std::numeric_limits<double>::quiet_NaN()), result);
  const UOp b_infinite = bit_or(eq(b, like(b, inf)), eq(b, like(b, -inf)));
  const UOp always_one =
      bit_or(bit_or(eq(b, zero), eq(a, one)), bit_and(eq(magnitude, one), b_infinite));
  return where(always_one, one, result);
}

// Threefry2x32 with 20 rounds (Salmon et al., SC 2011): counter and key are pairs of words, low
// word first, packed in uint64.
UOp threefry_of(const UOp& counter, const UOp& key) {
  const DType u32 = DType::UInt32, u64 = DType::UInt64;
  auto word = [&](const UOp& v, int64_t shift) {
    return cast(shift ? binary(Op::Shr, v, constant_int(u64, shift)) : v, u32);
  };
  auto c32 = [&](int64_t v) { return constant_int(u32, v); };
  UOp x0 = word(counter, 0), x1 = word(counter, 32);
  const UOp k0 = word(key, 0), k1 = word(key, 32);
  const UOp ks[3] = {k0, k1, bit_xor(bit_xor(k0, k1), c32(0x1BD11BDA))};
  constexpr int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  x0 = add(x0, ks[0]);
  x1 = add(x1, ks[1]);
  for (int group_index = 0; group_index < 5; ++group_index) {
    for (const int r : rotations[group_index % 2]) {
      x0 = add(x0, x1);
      x1 = bit_or(binary(Op::Shl, x1, c32(r)), binary(Op::Shr, x1, c32(32 - r)));
      x1 = bit_xor(x1, x0);
    }
    x0 = add(x0, ks[(group_index + 1) % 3]);
    x1 = add(add(x1, ks[(group_index + 2) % 3]), c32(group_index + 1));
  }
  return bit_or(cast(x0, u64), binary(Op::Shl, cast(x1, u64), constant_int(u64, 32)));
}

}  // namespace

UOp decompose(Op op, std::span<const UOp> operands, const Arg& arg) {
  const UOp& x = operands[0];
  const DType dtype = x.dtype();
  if (op == Op::Threefry) return threefry_of(x, operands[1]);
  if (op == Op::Mod) return is_float(dtype) ? float_remainder(x, operands[1]) : UOp();
  const bool in_double = op == Op::Sin || op == Op::Pow;
  if (is_small_float(dtype) || (in_double && dtype == DType::Float32)) {
    std::vector<UOp> wide;
    for (const UOp& o : operands)
      wide.push_back(cast(o, in_double ? DType::Float64 : DType::Float32));
    const UOp result = op == Op::Sin   ? sin_of_single(wide[0], quarter_turns_of(arg))
                       : op == Op::Pow ? pow_of_double(wide[0], wide[1], false)
                                       : decompose(op, wide, arg);
    return result ? cast(result, dtype) : UOp();
  }
  switch (op) {
    case Op::Exp2:
      return exp_of(x, base_of(arg));
    case Op::Log2:
      return log_of(x, base_of(arg));
    case Op::Sin:
      return sin_of_double(x, quarter_turns_of(arg));
    case Op::Pow:
      return pow_of_double(x, operands[1], true);
    default:
      return {};
  }
}

const RuleSet<DecomposeContext>& transcendental_rules() {
  static const auto& rules = *new const RuleSet<DecomposeContext>{
      rule<DecomposeContext>("float-remainder", node(Op::Mod).of(DTypeClass::Float),
                             [](const Match& m, DecomposeContext& c) {
                               return float_remainder(m.root().src(0), m.root().src(1),
                                                      is_native(c.target, DType::Float64));
                             }),
      rule<DecomposeContext>(
          "transcendental", node(ops({Op::Exp2, Op::Log2, Op::Sin, Op::Pow, Op::Threefry})),
          [](const Match& m, DecomposeContext& c) {
            const UOp& u = m.root();
            return c.lacks(u.op(), u.src(0)) ? decompose(u.op(), u.src(), u.arg()) : UOp();
          }),
  };
  return rules;
}

const RuleSet<DecomposeContext>& fallback_rules() {
  using Context = DecomposeContext;
  static const auto& rules = *new const RuleSet<Context>{
      rule<Context>("recip", node(Op::Recip, {any(0)}),
                    [](const Match& m, Context& c) {
                      return c.lacks(Op::Recip, m[0]) && !c.lacks(Op::Fdiv, m[0])
                                 ? fdiv(like(m[0], 1), m[0])
                                 : UOp();
                    }),
      rule<Context>("fdiv", node(Op::Fdiv, {any(0), any(1)}),
                    [](const Match& m, Context& c) {
                      return c.lacks(Op::Fdiv, m[0]) ? mul(m[0], unary(Op::Recip, m[1])) : UOp();
                    }),
      rule<Context>("sqrt", node(Op::Sqrt, {any(0)}),
                    [](const Match& m, Context& c) {
                      return c.lacks(Op::Sqrt, m[0])
                                 ? unary(Op::Exp2, mul(unary(Op::Log2, m[0]), like(m[0], 0.5)))
                                 : UOp();
                    }),
      rule<Context>("mulacc", node(Op::Mulacc, {any(0), any(1), any(2)}),
                    [](const Match& m, Context& c) {
                      return c.lacks(Op::Mulacc, m[0]) ? add(mul(m[0], m[1]), m[2]) : UOp();
                    }),
      rule<Context>("trunc of a whole number", node(Op::Trunc, {any(0)}),
                    [](const Match& m, Context&) { return is_float(m[0].dtype()) ? UOp() : m[0]; }),
  };
  return rules;
}

}  // namespace koine

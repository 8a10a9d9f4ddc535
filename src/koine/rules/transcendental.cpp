#include <cmath>
#include <numbers>

#include "koine/ir/build.hpp"
#include "koine/rules/decompose.hpp"
#include "koine/rules/remainder.hpp"

namespace koine {
namespace {

// Layout of float32 and float64 and how many series terms reach their precision.
struct Format {
  DType dtype, bits;
  int mantissa;
  int64_t bias;
  double round_magic;  // 1.5 * 2^mantissa: adding it rounds to an integer in the low bits
  double exp_low, exp_high;
  int exp_terms, log_terms;
};

Format format_of(DType dtype) {
  if (dtype == DType::Float64)
    return {DType::Float64, DType::Int64, 52, 1023, 0x1.8p52, -1080, 1025, 14, 12};
  return {DType::Float32, DType::Int32, 23, 127, 0x1.8p23, -152, 129, 8, 6};
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

// 2^x = 2^n 2^f, n the nearest integer, |f| <= 1/2; the Taylor series of 2^f reaches the precision
// there. The scale is applied in two halves, so results in the subnormal range round once. `low`,
// if there is one, is added to f.
UOp exp2_of(const UOp& x, const UOp& low_part = {}) {
  const Format f = format_of(x.dtype());
  const UOp low = like(x, f.exp_low), high = like(x, f.exp_high);
  const UOp clamped = where(lt(x, low), low, where(lt(high, x), high, x));
  const UOp magic = like(x, f.round_magic);
  const UOp shifted = add(clamped, magic);
  const UOp n =
      sub(bitcast(shifted, f.bits), constant_bits(f.bits, double_to_bits(f.dtype, f.round_magic)));
  UOp fraction = sub(clamped, sub(shifted, magic));
  if (low_part) fraction = add(fraction, low_part);
  std::vector<double> series{1.0};
  for (int k = 1; k < f.exp_terms; ++k) series.push_back(series.back() * std::numbers::ln2 / k);
  const UOp half = binary(Op::Shr, n, constant_int(f.bits, 1));
  const UOp scaled = mul(horner(fraction, series), power_of_two(half, f));
  return mul(scaled, power_of_two(sub(n, half), f));
}

UOp magnitude_of(const UOp& x) { return where(lt(x, like(x, 0)), neg(x), x); }

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

// 2/ln2 (1/(2 first + 1) + s^2/(2 first + 3) + ...), as many terms as the precision needs.
UOp log2_series(const UOp& s2, int first) {
  std::vector<double> series;
  for (int k = first; k < format_of(s2.dtype()).log_terms; ++k)
    series.push_back(2 * std::numbers::log2e / (2 * k + 1));
  return horner(s2, series);
}

// log2(m 2^e) = e + log2(m); log2(m) = 2/ln2 (s + s^3/3 + s^5/5 ...) with s = (m - 1) / (m + 1).
UOp log2_of(const UOp& x) {
  const auto [m, e] = parts_of(x);
  const UOp s = fdiv(add(m, like(x, -1)), add(m, like(x, 1)));
  const UOp finite = add(e, mul(log2_series(mul(s, s), 0), s));
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

// log2 of a positive finite float64 to about 60 bits.
Pair log2_pair(const UOp& x) {
  constexpr double c = 2 * std::numbers::log2e, c_rest = 0x1.777d0ffda0d24p-55;  // 2/ln2
  const auto [m, e] = parts_of(x);
  const UOp above = add(m, like(x, -1)), below = add(m, like(x, 1));  // the first is exact
  const UOp below_rest = sub(m, add(below, like(x, -1)));
  const UOp s = fdiv(above, below);
  const Pair back = product_pair(s, below);
  const UOp s_rest = fdiv(sub(sub(sub(above, back.high), back.low), mul(s, below_rest)), below);
  const Pair first = product_pair(s, like(x, c));
  const UOp s2 = mul(s, s);
  const UOp others = add(add(first.low, add(mul(s, like(x, c_rest)), mul(s_rest, like(x, c)))),
                         mul(mul(s, s2), log2_series(s2, 1)));
  const Pair sum = exact_sum(e, first.high);
  return exact_sum(sum.high, add(sum.low, others));
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

// sin(quadrant pi/2 + r), |r| <= pi/4, by the Taylor series of sin or cos.
UOp sin_in_quadrant(const UOp& r, const UOp& quadrant) {
  const UOp r2 = mul(r, r);
  std::vector<double> sine{1}, cosine{1};
  for (int k = 1; k < 9; ++k) {
    sine.push_back(-sine.back() / ((2 * k) * (2 * k + 1)));
    cosine.push_back(-cosine.back() / ((2 * k - 1) * (2 * k)));
  }
  const UOp s = mul(horner(r2, sine), r), c = horner(r2, cosine);
  auto bit = [&](int64_t mask) {
    return ne(bit_and(quadrant, constant_int(DType::Int64, mask)), constant_int(DType::Int64, 0));
  };
  const UOp value = where(bit(1), c, s);
  return where(bit(2), neg(value), value);
}

UOp nan_like(const UOp& x) { return like(x, std::numeric_limits<double>::quiet_NaN()); }

// x = q pi/2 + r, |r| <= pi/4; the low bits of q.
struct Reduced {
  UOp r, quadrant;
};

// For |x| < 2^20, in three parts (Cody and Waite). The parts of pi/2 have 33 bits, so that q times
// a part is exact.
Reduced reduce_small(const UOp& x) {
  constexpr double part1 = 0x1.921fb544p+0, part2 = 0x1.0b4611a6p-34, part3 = 0x1.3198a2e037073p-69;
  const Nearest q = nearest(mul(x, like(x, 2 / std::numbers::pi)));
  UOp r = sub(x, mul(q.value, like(x, part1)));
  r = sub(r, mul(q.value, like(x, part2)));
  r = sub(r, mul(q.value, like(x, part3)));
  return {r, q.bits};
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
  return {add(mul(turn.high, like(x, half_pi)),
              add(mul(turn.high, like(x, half_pi_rest)), mul(turn.low, like(x, half_pi)))),
          bitcast(quadrant, DType::Int64)};
}

// sin(x + turns pi/2) from the reduced |x|.
UOp sine_of(const UOp& x, const UOp& size, const Reduced& reduced, int64_t turns) {
  UOp value = sin_in_quadrant(
      reduced.r,
      turns == 0 ? reduced.quadrant : add(reduced.quadrant, constant_int(DType::Int64, turns)));
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
  return sine_of(
      x, size, {where(is_small, small.r, large.r), where(is_small, small.quadrant, large.quadrant)},
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
  return sine_of(x, size, {r, add(q.bits, add(q1.bits, q2.bits))}, turns);
}

// a^b of a positive a: 2^(b log2 a). A rounded product would lose as many bits as its whole part
// has, so a result that stays float64 takes it in two parts.
UOp pow_of_positive(const UOp& a, const UOp& b, bool to_last_place) {
  if (!to_last_place) return exp2_of(mul(log2_of(a), b));
  const UOp zero = like(a, 0), most = like(a, 0x1p64);
  const UOp infinity = like(a, std::numeric_limits<double>::infinity());
  const UOp ordinary = bit_and(lt(zero, a), lt(a, infinity));
  const Pair log = log2_pair(where(ordinary, a, like(a, 1)));
  // Beyond 2^64 every power but that of 1 has left the range.
  const UOp exponent = where(lt(most, b), most, where(lt(b, neg(most)), neg(most), b));
  const Pair product = product_pair(exponent, log.high);
  const UOp rest = add(product.low, mul(exponent, log.low));
  const UOp in_range = bit_and(lt(product.high, like(a, 2048)), lt(like(a, -2048), product.high));
  const UOp power = exp2_of(product.high, where(in_range, rest, zero));
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
                                       : decompose(op, wide);
    return result ? cast(result, dtype) : UOp();
  }
  switch (op) {
    case Op::Exp2:
      return exp2_of(x);
    case Op::Log2:
      return log2_of(x);
    case Op::Sin:
      return sin_of_double(x, quarter_turns_of(arg));
    case Op::Pow:
      return pow_of_double(x, operands[1], true);
    default:
      return {};
  }
}

const RuleSet<DecomposeContext>& transcendental_rules() {
  static const RuleSet<DecomposeContext> rules = {
      rule<DecomposeContext>("float-remainder", node(Op::Mod).of(DTypeClass::Float),
                             [](const Match& m, DecomposeContext&) {
                               return float_remainder(m.root().src(0), m.root().src(1));
                             }),
      rule<DecomposeContext>("transcendental",
                             node(ops({Op::Exp2, Op::Log2, Op::Sin, Op::Pow, Op::Threefry})),
                             [](const Match& m, DecomposeContext& target) -> UOp {
                               if (target.native[static_cast<size_t>(m.root().op())]) return {};
                               return decompose(m.root().op(), m.root().src(), m.root().arg());
                             }),
  };
  return rules;
}

const RuleSet<DecomposeContext>& fallback_rules() {
  using Context = DecomposeContext;
  auto lacks = [](const Context& target, Op op) { return !target.native[static_cast<size_t>(op)]; };
  static const RuleSet<Context> rules = {
      rule<Context>("recip", node(Op::Recip, {any(0)}),
                    [lacks](const Match& m, Context& t) {
                      return lacks(t, Op::Recip) && !lacks(t, Op::Fdiv) ? fdiv(like(m[0], 1), m[0])
                                                                        : UOp();
                    }),
      rule<Context>("fdiv", node(Op::Fdiv, {any(0), any(1)}),
                    [lacks](const Match& m, Context& t) {
                      return lacks(t, Op::Fdiv) ? mul(m[0], unary(Op::Recip, m[1])) : UOp();
                    }),
      rule<Context>("sqrt", node(Op::Sqrt, {any(0)}),
                    [lacks](const Match& m, Context& t) {
                      return lacks(t, Op::Sqrt)
                                 ? unary(Op::Exp2, mul(unary(Op::Log2, m[0]), like(m[0], 0.5)))
                                 : UOp();
                    }),
      rule<Context>("mulacc", node(Op::Mulacc, {any(0), any(1), any(2)}),
                    [lacks](const Match& m, Context& t) {
                      return lacks(t, Op::Mulacc) ? add(mul(m[0], m[1]), m[2]) : UOp();
                    }),
  };
  return rules;
}

}  // namespace koine

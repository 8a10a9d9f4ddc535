#include <cmath>
#include <numbers>

#include "koine/ir/build.hpp"
#include "koine/rules/decompose.hpp"

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
// there. The scale is applied in two halves, so results in the subnormal range round once.
UOp exp2_of(const UOp& x) {
  const Format f = format_of(x.dtype());
  const UOp low = like(x, f.exp_low), high = like(x, f.exp_high);
  const UOp clamped = where(lt(x, low), low, where(lt(high, x), high, x));
  const UOp magic = like(x, f.round_magic);
  const UOp shifted = add(clamped, magic);
  const UOp n =
      sub(bitcast(shifted, f.bits), constant_bits(f.bits, double_to_bits(f.dtype, f.round_magic)));
  const UOp fraction = sub(clamped, sub(shifted, magic));
  std::vector<double> series{1.0};
  for (int k = 1; k < f.exp_terms; ++k) series.push_back(series.back() * std::numbers::ln2 / k);
  const UOp half = binary(Op::Shr, n, constant_int(f.bits, 1));
  const UOp scaled = mul(horner(fraction, series), power_of_two(half, f));
  return mul(scaled, power_of_two(sub(n, half), f));
}

// log2(m 2^e) = e + log2(m), m in [1/sqrt 2, sqrt 2); log2(m) = 2/ln2 (s + s^3/3 + s^5/5 ...) with
// s = (m - 1) / (m + 1).
UOp log2_of(const UOp& x) {
  const Format f = format_of(x.dtype());
  const double smallest = std::ldexp(1.0, static_cast<int>(1 - f.bias));
  const UOp subnormal = lt(x, like(x, smallest));
  const UOp scaled = where(subnormal, mul(x, like(x, std::ldexp(1.0, f.mantissa))), x);
  const UOp raw = bitcast(scaled, f.bits);
  const UOp pivot = constant_bits(f.bits, double_to_bits(f.dtype, std::numbers::sqrt2 / 2));
  const UOp shift = constant_int(f.bits, f.mantissa);
  const UOp exponent = binary(Op::Shr, sub(raw, pivot), shift);
  const UOp m = bitcast(sub(raw, binary(Op::Shl, exponent, shift)), f.dtype);
  const UOp s = fdiv(add(m, like(x, -1)), add(m, like(x, 1)));
  std::vector<double> series;
  for (int k = 0; k < f.log_terms; ++k) series.push_back(2 * std::numbers::log2e / (2 * k + 1));
  const UOp fraction = mul(horner(mul(s, s), series), s);
  const UOp e = add(cast(exponent, f.dtype), where(subnormal, like(x, -f.mantissa), like(x, 0)));
  const UOp finite = add(e, fraction);
  const double inf = std::numeric_limits<double>::infinity();
  const UOp zero = like(x, 0);
  // +inf and NaN pass through; negative gives NaN; both zeros give -inf.
  const UOp positive = where(lt(x, like(x, inf)), finite, x);
  return where(
      lt(zero, x), positive,
      where(eq(x, zero), like(x, -inf), like(x, std::numeric_limits<double>::quiet_NaN())));
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

// sin of a float64: r = x - q pi/2 in three parts (Cody and Waite). The parts of pi/2 have 33 bits,
// so that q times a part is exact below 2^20; beyond, the result would have no right digit in the
// end, and is NaN.
UOp sin_of_double(const UOp& x) {
  constexpr double part1 = 0x1.921fb544p+0, part2 = 0x1.0b4611a6p-34, part3 = 0x1.3198a2e037073p-69;
  const Nearest q = nearest(mul(x, like(x, 2 / std::numbers::pi)));
  UOp r = sub(x, mul(q.value, like(x, part1)));
  r = sub(r, mul(q.value, like(x, part2)));
  r = sub(r, mul(q.value, like(x, part3)));
  const UOp limit = like(x, 0x1p20);
  const UOp reachable = bit_and(lt(x, limit), lt(neg(limit), x));
  const UOp result = where(reachable, sin_in_quadrant(r, q.bits), nan_like(x));
  return where(eq(x, like(x, 0)), x, result);  // keeps -0.0
}

// sin of a float32, given as a float64: any size. |x| = u 2^(32 j) with u below 2^32, and 2^(32 j)
// 2/pi modulo 4 is a constant in three parts; u has 24 bits, so its products with the first two
// parts (29 bits each) are exact.
UOp sin_of_single(const UOp& x) {
  struct Row {
    double scale, part1, part2, part3;
  };
  constexpr Row rows[4] = {{0x1p0, 0x1.45f306cp-1, 0x1.c9c882ap-29, 0x1.4fe13abe8fa9ap-59},
                           {0x1p-32, -0x1.b1bbeaep+0, 0x1.3f84ebp-29, -0x1.70565911f924fp-59},
                           {0x1p-64, 0x1.fc2757ep+0, -0x1.c159644p-29, -0x1.f924eb53361dep-59},
                           {0x1p-96, 0x1.f534ddcp+0, 0x1.b6c52cp-33, -0x1.9b0ef1bef806cp-58}};
  const UOp zero = like(x, 0), negative = lt(x, zero);
  const UOp size = where(negative, neg(x), x);
  const UOp big = logical_not(lt(size, like(x, 0x1p32)));
  const UOp bigger = logical_not(lt(size, like(x, 0x1p64)));
  const UOp biggest = logical_not(lt(size, like(x, 0x1p96)));
  auto choose = [&](double Row::* column) {
    return where(biggest, like(x, rows[3].*column),
                 where(bigger, like(x, rows[2].*column),
                       where(big, like(x, rows[1].*column), like(x, rows[0].*column))));
  };
  const UOp u = mul(size, choose(&Row::scale));
  const UOp t1 = mul(u, choose(&Row::part1)), t2 = mul(u, choose(&Row::part2));
  const UOp t3 = mul(u, choose(&Row::part3));
  const UOp t1_mod_4 = sub(t1, mul(nearest(mul(t1, like(x, 0.25))).value, like(x, 4)));
  const Nearest q2 = nearest(t2);
  const UOp sum = add(t1_mod_4, sub(t2, q2.value));  // exact
  const Nearest q = nearest(sum);
  const UOp r = mul(add(sub(sum, q.value), t3), like(x, std::numbers::pi / 2));
  const UOp value = sin_in_quadrant(r, add(q.bits, q2.bits));
  const UOp finite = lt(size, like(x, std::numeric_limits<double>::infinity()));
  const UOp result = where(finite, where(negative, neg(value), value), nan_like(x));
  return where(eq(x, zero), x, result);  // keeps -0.0
}

// |a|^b by log2 and exp2 in float64, then the sign and the corners of IEEE pow.
UOp pow_of_double(const UOp& a, const UOp& b) {
  const UOp zero = like(a, 0), one = like(a, 1);
  const double inf = std::numeric_limits<double>::infinity();
  const UOp magnitude = where(lt(a, zero), neg(a), a);
  const UOp power = exp2_of(mul(log2_of(magnitude), b));
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

UOp decompose(Op op, std::span<const UOp> operands) {
  const UOp& x = operands[0];
  const DType dtype = x.dtype();
  if (op == Op::Threefry) return threefry_of(x, operands[1]);
  const bool in_double = op == Op::Sin || op == Op::Pow;
  if (is_small_float(dtype) || (in_double && dtype == DType::Float32)) {
    std::vector<UOp> wide;
    for (const UOp& o : operands)
      wide.push_back(cast(o, in_double ? DType::Float64 : DType::Float32));
    const UOp result = op == Op::Sin ? sin_of_single(wide[0]) : decompose(op, wide);
    return result ? cast(result, dtype) : UOp();
  }
  switch (op) {
    case Op::Exp2:
      return exp2_of(x);
    case Op::Log2:
      return log2_of(x);
    case Op::Sin:
      return sin_of_double(x);
    case Op::Pow:
      return pow_of_double(x, operands[1]);
    default:
      return {};
  }
}

const RuleSet<DecomposeContext>& transcendental_rules() {
  static const RuleSet<DecomposeContext> rules = {
      rule<DecomposeContext>("transcendental",
                             node(ops({Op::Exp2, Op::Log2, Op::Sin, Op::Pow, Op::Threefry})),
                             [](const Match& m, DecomposeContext& target) -> UOp {
                               if (target.native[static_cast<size_t>(m.root().op())]) return {};
                               return decompose(m.root().op(), m.root().src());
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

// Every dtype into every other, against exact arithmetic that knows nothing of the library's.
#include <bit>
#include <cmath>
#include <cstring>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/eval.hpp"
#include "koine/ir/graph.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/decompose.hpp"

namespace koine::test {
namespace {

using Wide = long double;  // holds every value of every dtype

struct Narrow {
  int mantissa, bias, bits;
  bool has_infinity;
};
Narrow narrow_of(DType d) {
  switch (d) {
    case DType::Float8E4M3:
      return {3, 7, 8, false};
    case DType::Float8E5M2:
      return {2, 15, 8, true};
    case DType::Float16:
      return {10, 15, 16, true};
    default:
      return {7, 127, 16, true};
  }
}
bool is_narrow(DType d) { return is_float(d) && item_size(d) < 4; }

// The value of a pattern without sign, with no regard to what the topmost exponent means.
Wide unsigned_value(const Narrow& f, uint64_t pattern) {
  const auto exponent = static_cast<int>(pattern >> f.mantissa);
  const uint64_t digits = pattern & ((uint64_t{1} << f.mantissa) - 1);
  if (exponent == 0) return std::ldexp(static_cast<Wide>(digits), 1 - f.bias - f.mantissa);
  return std::ldexp(static_cast<Wide>(digits + (uint64_t{1} << f.mantissa)),
                    exponent - f.bias - f.mantissa);
}
// The first pattern beyond the finite ones: infinity, or the NaN of a format without.
uint64_t beyond(const Narrow& f) {
  const uint64_t top = uint64_t{1} << (f.bits - 1);
  return f.has_infinity ? top - (uint64_t{1} << f.mantissa) : top - 1;
}

Wide value_of(DType d, uint64_t bits) {
  if (d == DType::Float64) return std::bit_cast<double>(bits);
  if (d == DType::Float32) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  if (is_narrow(d)) {
    const Narrow f = narrow_of(d);
    const uint64_t top = uint64_t{1} << (f.bits - 1), pattern = bits & (top - 1);
    Wide v = unsigned_value(f, pattern);
    if (pattern >= beyond(f)) v = pattern == beyond(f) && f.has_infinity ? INFINITY : NAN;
    return (bits & top) != 0 ? -v : v;
  }
  if (!is_signed(d)) return bits;
  const auto shift = static_cast<int>(64 - 8 * item_size(d));
  return static_cast<int64_t>(bits << shift) >> shift;
}

// To the nearest, ties to even; what lies half a step or more beyond the largest overflows.
uint64_t nearest_narrow(const Narrow& f, Wide v) {
  const uint64_t sign = std::signbit(v) ? uint64_t{1} << (f.bits - 1) : 0, end = beyond(f);
  const Wide size = std::fabs(v);
  uint64_t low = 0, high = end;  // value(low) <= size
  if (size >= unsigned_value(f, end)) return sign | end;
  while (high - low > 1) {
    const uint64_t middle = (low + high) / 2;
    (unsigned_value(f, middle) <= size ? low : high) = middle;
  }
  const Wide down = size - unsigned_value(f, low), up = unsigned_value(f, low + 1) - size;
  return sign | (down < up || (down == up && low % 2 == 0) ? low : low + 1);
}

// The pattern that `v`, not NaN, becomes. Integers become narrow floats by way of float32.
uint64_t converted(DType from, DType to, Wide v) {
  if (to == DType::Bool) return v != 0;
  if (to == DType::Float64) return std::bit_cast<uint64_t>(static_cast<double>(v));
  if (to == DType::Float32) return std::bit_cast<uint32_t>(static_cast<float>(v));
  if (is_narrow(to))
    return nearest_narrow(narrow_of(to), is_float(from) ? v : static_cast<float>(v));
  const auto bits = static_cast<int>(8 * item_size(to));
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  if (!is_float(from))  // wraps
    return (v < 0 ? static_cast<uint64_t>(static_cast<int64_t>(v)) : static_cast<uint64_t>(v)) &
           mask;
  const Wide limit = std::ldexp(Wide(1), is_signed(to) ? bits - 1 : bits);
  const Wide least = is_signed(to) ? -limit : 0, cut = std::trunc(v);
  const Wide inside = cut < least ? least : cut > limit - 1 ? limit - 1 : cut;
  return (inside < 0 ? static_cast<uint64_t>(static_cast<int64_t>(inside))
                     : static_cast<uint64_t>(inside)) &
         mask;
}

// Every pattern of up to 16 bits; else random ones, the ends of all ranges and what lies next to
// them, and what lies next to the middle between two neighbours of a narrow float.
std::vector<uint64_t> patterns_of(DType d) {
  std::vector<uint64_t> out;
  const auto bits = static_cast<int>(8 * item_size(d));
  if (d == DType::Bool) return {0, 1};
  if (bits <= 16) {
    for (uint64_t i = 0; i < uint64_t{1} << bits; ++i) out.push_back(i);
    return out;
  }
  std::mt19937_64 random(test_seed());
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : 0xffffffff;
  for (int i = 0; i < 3000; ++i) out.push_back((random() >> (random() % 64)) & mask);
  auto put = [&](Wide v) {
    if (d == DType::Float64)
      for (int k = -1; k <= 1; ++k)
        out.push_back(std::bit_cast<uint64_t>(static_cast<double>(v)) + static_cast<uint64_t>(k));
    else if (d == DType::Float32)
      for (int k = -1; k <= 1; ++k)
        out.push_back(std::bit_cast<uint32_t>(static_cast<float>(v)) + static_cast<uint32_t>(k));
    else
      for (int k = -1; k <= 1; ++k)
        out.push_back((static_cast<uint64_t>(static_cast<int64_t>(std::fmod(v, 0x1p63L))) +
                       static_cast<uint64_t>(k)) &
                      mask);
  };
  for (int e = 0; e <= 64; ++e)
    for (const int side : {-1, 1}) {
      put(side * std::ldexp(1.0L, e));
      put(side * (std::ldexp(1.0L, e) + std::ldexp(1.0L, e - 24)));
      put(side * (std::ldexp(1.0L, e) + std::ldexp(1.0L, e - 53)));
    }
  if (is_float(d))
    for (const DType n : {DType::Float16, DType::BFloat16, DType::Float8E4M3, DType::Float8E5M2}) {
      const Narrow f = narrow_of(n);
      for (int i = 0; i < 400; ++i) {
        const uint64_t p = i == 0 ? beyond(f) - 1 : i == 1 ? 0 : random() % beyond(f);
        const Wide middle = (unsigned_value(f, p) + unsigned_value(f, p + 1)) / 2;
        put(random() % 2 ? middle : -middle);
      }
    }
  if (d == DType::Float64)  // float32 would round these to such a middle first
    for (int i = 0; i < 400; ++i) {
      const Narrow f = narrow_of(i % 2 ? DType::Float16 : DType::BFloat16);
      const uint64_t p = random() % beyond(f);
      const Wide middle = (unsigned_value(f, p) + unsigned_value(f, p + 1)) / 2;
      put(middle * (1 + (random() % 2 ? 0x1p-30L : -0x1p-30L)));
    }
  return out;
}

Tensor of_patterns(DType d, const std::vector<uint64_t>& patterns) {
  std::vector<std::byte> bytes(patterns.size() * static_cast<size_t>(item_size(d)));
  for (size_t i = 0; i < patterns.size(); ++i)
    std::memcpy(bytes.data() + i * static_cast<size_t>(item_size(d)), &patterns[i],
                static_cast<size_t>(item_size(d)));
  return Tensor::from_bytes(bytes.data(), {static_cast<int64_t>(patterns.size())}, d);
}

}  // namespace

TEST(conversion, spec_D1_spec_amend_30_every_dtype_into_every_other) {
  for (const DType from : stored_dtypes()) {
    const std::vector<uint64_t> patterns = patterns_of(from);
    const Tensor x = of_patterns(from, patterns);
    for (const DType to : stored_dtypes()) {
      const UOp graph = koine::cast(x.uop(), to);
      const std::vector<std::byte> bytes = Tensor(graph).bytes();
      const Array interpreted = interpret(graph, bindings_of(graph));
      int bad = 0;
      for (size_t i = 0; i < patterns.size() && bad < 5; ++i) {
        uint64_t got = 0;
        const auto size = static_cast<size_t>(item_size(to));
        std::memcpy(&got, bytes.data() + i * size, size);
        const Wide v = value_of(from, patterns[i]);
        bool right;
        if (std::isnan(v))
          right = is_float(to) ? std::isnan(value_of(to, got)) &&
                                     std::isnan(value_of(to, interpreted.data[i]))
                               : got == (to == DType::Bool ? 1 : 0) && interpreted.data[i] == got;
        else
          right = got == converted(from, to, v) && interpreted.data[i] == got;
        // Without an infinity, what overflows is a NaN of either sign.
        if (!right && is_float(to) && !std::isnan(v))
          right = std::isnan(value_of(to, converted(from, to, v))) &&
                  std::isnan(value_of(to, got)) && std::isnan(value_of(to, interpreted.data[i]));
        bad += right ? 0 : 1;
        EXPECT_TRUE(right) << dtype_name(from) << " " << static_cast<double>(v) << " to "
                           << dtype_name(to) << ": " << got << ", interpreted "
                           << interpreted.data[i];
      }
    }
  }
}

TEST(conversion, spec_D1_scalars_at_the_ends_of_the_range) {
  for (const double v : {0x1p63, 0x1p64, 1e300, double(INFINITY)}) {
    EXPECT_EQ(double_to_bits(DType::Int64, v), static_cast<Bits>(INT64_MAX));
    EXPECT_EQ(double_to_bits(DType::Int64, -v), static_cast<Bits>(INT64_MIN));
    EXPECT_EQ(double_to_bits(DType::UInt64, -v), 0u);
  }
  EXPECT_EQ(double_to_bits(DType::UInt64, 0x1p64), ~Bits{0});
  EXPECT_EQ(double_to_bits(DType::UInt64, 0x1p63), Bits{1} << 63);
  EXPECT_EQ(double_to_bits(DType::Int64, 0x1.fffffffffffffp62), Bits{0x7ffffffffffffc00});
  // By way of float32: 2^63 + 2^55 + 1 is above the middle of two bfloat16, its float32 is on it.
  const Bits over = (Bits{1} << 63) + (Bits{1} << 55) + 1;
  EXPECT_EQ(evaluate_cast(DType::BFloat16, DType::UInt64, over), 0x5f00u);
  EXPECT_EQ(evaluate_cast(DType::Float32, DType::UInt64, over), 0x5f008000u);
}

// The smallest integer has no negative: the quotient wraps to itself, the remainder is 0 (C30).
TEST(conversion, spec_D3_spec_amend_30_division_by_minus_1) {
  for (const DType d : {DType::Int8, DType::Int16, DType::Int32, DType::Int64}) {
    const auto least = static_cast<int64_t>(integer_range(d).low),
               most = static_cast<int64_t>(integer_range(d).high);
    const std::vector<int64_t> a{least, least + 1, -7, -1, 0, 1, 7, most};
    std::vector<int64_t> quotients{least};
    for (size_t i = 1; i < a.size(); ++i) quotients.push_back(-a[i]);
    const std::vector<int64_t> zeros(a.size(), 0);
    for (const bool strict : {false, true}) {
      const OptionScope scope(strict ? strict_options() : options());
      // Short and long for lanes; a divisor that only memory knows, a constant, one from -1 on.
      for (const int64_t copies : {1, 9}) {
        const Tensor x = Tensor::from(a, {8}).cast(d).repeat({copies}).realize();
        const Tensor y = x.full_like(-1).contiguous().realize();
        for (const Tensor& divisor : {y, y.full_like(-1), y.maximum(-1)}) {
          const auto q = x.idiv(divisor).tolist<int64_t>(), r = x.mod(divisor).tolist<int64_t>();
          for (size_t i = 0; i < q.size(); ++i) {
            EXPECT_EQ(q[i], quotients[i % 8]) << dtype_name(d);
            EXPECT_EQ(r[i], 0) << dtype_name(d);
          }
        }
      }
    }
  }
}

// By 0, which only LLVM sees, and late.
TEST(conversion, spec_D5_bytes_shifted_by_what_turns_out_to_be_0) {
  for (const DType d : {DType::Int8, DType::UInt8, DType::Int16, DType::Int32})
    for (const int64_t n : {1, 6, 16, 64, 200}) {
      const UOp x = leaf({n}, d), eight = constant_int(d, 8 * item_size(d));
      const UOp none = binary(Op::Shl, x, bit_or(x, eight));  // all of it is shifted out
      for (const UOp& shifted : {binary(Op::Shr, x, none), binary(Op::Shl, x, none),
                                 binary(Op::Shr, x, binary(Op::Shl, x, constant_int(d, -1)))}) {
        EXPECT_EQ(difference(array_of(x), run_on(shifted, "CPU")), "")
            << dtype_name(d);  // this host's instructions
        expect_same_everywhere(shifted);
      }
    }
}

// Bounds that end at 0 do not prove that a divisor is none (C30: 0 divides to 0).
TEST(conversion, spec_D3_spec_amend_30_a_divisor_of_one_sign_may_be_0) {
  for (const DType d : {DType::Int8, DType::Int32, DType::Int64, DType::UInt32}) {
    const Tensor x = Tensor::from<int>({7, 7, 8, 9, 0}).cast(d).repeat({9}).realize();
    const Tensor y = Tensor::from<int>({0, 3, 0, 2, 0}).cast(d).repeat({9}).realize();
    for (const Tensor& divisor : {y.minimum(0), y.maximum(0), -(y.maximum(0))}) {
      if (!is_signed(d) && !(divisor.uop() == y.maximum(0).uop())) continue;
      expect_same_everywhere(x.idiv(divisor));
      expect_same_everywhere(x.mod(divisor));
      const auto q = x.idiv(divisor).tolist<int64_t>(), r = x.mod(divisor).tolist<int64_t>();
      EXPECT_EQ(q[0], 0);
      EXPECT_EQ(r[0], 0);
    }
    if (is_signed(d)) expect_same_everywhere(x.idiv((-y).minimum(0)));
  }
}

// A target that has an op keeps it; one that has not gets the decomposition, which the interpreter
// evaluates to the same bits.
TEST(conversion, spec_D9_native_and_decomposed) {
  const UOp x = leaf({500}), y = leaf({500}, DType::Float32, 1);
  const std::vector<UOp> graphs{exponential(x, Base::Two),
                                exponential(x, Base::E),
                                logarithm(x, Base::Two),
                                logarithm(x, Base::E),
                                sine(x),
                                sine(x, 1),
                                binary(Op::Pow, x, y)};
  const OpSet natives = ops({Op::Exp2, Op::Log2, Op::Sin, Op::Pow});
  for (const UOp& graph : graphs) {
    Target with, without;
    with.float_ops = natives;
    DecomposeContext native{with}, bare{without};
    EXPECT_EQ(rewrite(graph, transcendental_rules(), native), graph);
    const UOp plain = rewrite(graph, transcendental_rules(), bare);
    for (const UOp& u : toposort(plain)) EXPECT_FALSE(natives[static_cast<size_t>(u.op())]);
    EXPECT_EQ(
        difference(interpret(graph, bindings_of(graph)), interpret(plain, bindings_of(plain))), "");
    expect_same_everywhere(graph);
  }
}

}  // namespace koine::test

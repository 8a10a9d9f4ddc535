// P5: the interval of a value holds every value that it takes, with wrap, NaN and saturation, on
// all pairs of operands.
#include <array>
#include <cmath>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/llvm.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/runtime/device.hpp"

namespace koine::test {
namespace {

UOp bounded(DType d, int64_t low, int64_t high, int64_t slot = 0) {
  return UOp::make(
      Op::Param, {shape_of({}), constant_int(d, low), constant_int(d, high)},
      BufferArg{slot, d, {}, AddrSpace::Global, std::string(1, static_cast<char>('a' + slot))});
}

// Ends of int8 intervals where something happens.
std::vector<std::pair<int64_t, int64_t>> int8_intervals() {
  const std::vector<int64_t> ends{-128, -127, -65, -9, -8, -2, -1, 0, 1, 2, 7, 8, 64, 126, 127};
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const int64_t low : ends)
    for (const int64_t high : ends)
      if (low <= high) out.emplace_back(low, high);
  return out;
}

// A float that is one of these constants, by a bool that nobody knows.
UOp one_of(DType d, double a, double b, int64_t slot) {
  return where(bounded(DType::Bool, 0, 1, slot), constant(d, a), constant(d, b));
}

const std::vector<double> corners{-inf, -3e38, -2.5, -1,   -0.0, 0.0,         1e-40,
                                  0.75, 1,     300,  3e38, inf,  std::nan("")};

bool holds(const Interval& bounds, DType d, Bits bits) {
  if (!is_float(d)) {
    const __int128 v = d == DType::UInt64 ? static_cast<__int128>(bits) : bits_to_int(d, bits);
    return v >= bounds.low && v <= bounds.high;
  }
  const double v = bits_to_double(d, bits);
  if (std::isnan(v)) return bounds.may_be_nan;
  return v >= bounds.float_low && v <= bounds.float_high;
}

std::string text_of(const Interval& b) {
  return fmt::format("[{}, {}] [{}, {}]{}", static_cast<double>(b.low), static_cast<double>(b.high),
                     b.float_low, b.float_high, b.may_be_nan ? " or NaN" : "");
}

// What a folded constant says must be the value too.
void expect_folded(const UOp& e, Bits bits) {
  const UOp s = simplify(e);
  if (s.is(Op::Const)) {
    ASSERT_EQ(difference({e.dtype(), {}, {bits}, {}}, {s.dtype(), {}, {s.as<ConstArg>().bits}, {}}),
              "")
        << to_text(e);
  }
}

}  // namespace

TEST(bounds, spec_P5_spec_amend_25_int8_exhaustively) {
  const DType d = DType::Int8;
  for (const Op op : {Op::Add, Op::Mul, Op::Max, Op::Idiv, Op::Mod, Op::And, Op::Or, Op::Xor,
                      Op::Shl, Op::Shr, Op::CmpLt, Op::CmpNe}) {
    std::array<std::array<int64_t, 256>, 256> table;
    const DType out = op == Op::CmpLt || op == Op::CmpNe ? DType::Bool : d;
    for (int64_t x = -128; x < 128; ++x)
      for (int64_t y = -128; y < 128; ++y) {
        const Bits in[] = {int_to_bits(d, x), int_to_bits(d, y)};
        table[static_cast<size_t>(x + 128)][static_cast<size_t>(y + 128)] =
            bits_to_int(out, interpret_scalar(op, out, d, in));
      }
    for (const auto& [a0, a1] : int8_intervals())
      for (const auto& [b0, b1] : int8_intervals()) {
        const UOp e = binary(op, bounded(d, a0, a1, 0), bounded(d, b0, b1, 1));
        int64_t low = INT64_MAX, high = INT64_MIN;
        for (int64_t x = a0; x <= a1; ++x)
          for (int64_t y = b0; y <= b1; ++y) {
            const int64_t v = table[static_cast<size_t>(x + 128)][static_cast<size_t>(y + 128)];
            low = std::min(low, v);
            high = std::max(high, v);
          }
        ASSERT_TRUE(low >= e.bounds().low && high <= e.bounds().high)
            << op_name(op) << " of [" << a0 << ", " << a1 << "] and [" << b0 << ", " << b1
            << "] takes " << low << " to " << high << ", not " << text_of(e.bounds());
        const UOp s = simplify(e);
        if (s.is(Op::Const)) {
          ASSERT_EQ(low, high);
          ASSERT_EQ(const_int(s), low);
        }
        // And known where nothing wraps: the interval is of use.
        if ((op == Op::Add || op == Op::Mul || op == Op::Max) && e.bounds().high < 127) {
          ASSERT_EQ(static_cast<int64_t>(e.bounds().low), low);
          ASSERT_EQ(static_cast<int64_t>(e.bounds().high), high);
        }
      }
  }
}

TEST(bounds, spec_P5_casts_of_integers) {
  for (const DType from : {DType::Int8, DType::UInt8, DType::Int16, DType::Bool})
    for (const DType to : stored_dtypes()) {
      const IntegerRange range = integer_range(from);
      const auto least = static_cast<int64_t>(range.low), most = static_cast<int64_t>(range.high);
      std::vector<int64_t> ends;
      for (const int64_t v : {least, int64_t{-300}, int64_t{-129}, int64_t{-128}, int64_t{-1},
                              int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, int64_t{255},
                              int64_t{256}, int64_t{448}, int64_t{465}, most})
        if (v >= least && v <= most) ends.push_back(v);
      for (const int64_t low : ends)
        for (const int64_t high : ends) {
          if (low > high) continue;
          const UOp e = cast(bounded(from, low, high), to);
          for (int64_t v = low; v <= high; v += high - low > 600 ? 37 : 1) {
            const Bits in[] = {int_to_bits(from, v)},
                       out = interpret_scalar(Op::Cast, to, from, in);
            ASSERT_TRUE(holds(e.bounds(), to, out))
                << dtype_name(from) << " " << v << " of [" << low << ", " << high << "] as "
                << dtype_name(to) << " in " << text_of(e.bounds());
            if (low == high) expect_folded(e, out);
          }
        }
    }
}

// Floats become integers by saturation, NaN 0, and bool by being unequal 0: NaN is.
TEST(bounds, spec_P5_casts_of_floats) {
  for (const DType from : {DType::Float16, DType::Float32, DType::Float64, DType::Float8E4M3})
    for (const DType to : stored_dtypes())
      for (const double a : corners)
        for (const double b : corners) {
          const UOp x = one_of(from, a, b, 0), e = cast(x, to);
          for (const double v : {a, b}) {
            const Bits in[] = {double_to_bits(from, v)};
            const Bits out = interpret_scalar(Op::Cast, to, from, in);
            ASSERT_TRUE(holds(e.bounds(), to, out))
                << dtype_name(from) << " " << v << " of {" << a << ", " << b << "} as "
                << dtype_name(to) << " in " << text_of(e.bounds());
          }
          if (a == b)
            expect_folded(
                e, interpret_scalar(Op::Cast, to, from, std::array{double_to_bits(from, a)}));
        }
  // A half that may be anything, NaN included: 0 is a value of each.
  const UOp any = param(0, shape_of({}), DType::Float16);
  EXPECT_TRUE(cast(any, DType::Int8).bounds().low <= -128);
  const UOp high = maximum(any, constant(DType::Float16, 5));
  EXPECT_TRUE(cast(high, DType::Int8).bounds().low <= 0) << "max(NaN, 5) is NaN, and NaN gives 0";
  EXPECT_TRUE(cast(neg(high), DType::Int8).bounds().high >= 0) << "and so is -max(NaN, 5)";
  EXPECT_EQ(static_cast<int>(cast(high, DType::Bool).bounds().low), 1)
      << "NaN is true like all above 5";
}

TEST(bounds, spec_P5_arithmetic_of_floats) {
  for (const DType d : {DType::Float32, DType::Float16, DType::Float8E4M3})
    for (const Op op : {Op::Add, Op::Mul, Op::Max, Op::CmpLt, Op::CmpNe})
      for (const double a : corners)
        for (const double b : corners)
          for (const double x : corners)
            for (const double y :
                 std::vector<double>{-inf, -1.0, -0.0, 0.0, 2.0, inf, std::nan("")}) {
              const UOp e = binary(op, one_of(d, a, b, 0), one_of(d, x, y, 1));
              for (const double p : {a, b})
                for (const double q : {x, y}) {
                  const Bits in[] = {double_to_bits(d, p), double_to_bits(d, q)};
                  const Bits out = interpret_scalar(op, e.dtype(), d, in);
                  ASSERT_TRUE(holds(e.bounds(), e.dtype(), out))
                      << op_name(op) << " of " << p << " in {" << a << ", " << b << "} and " << q
                      << " in {" << x << ", " << y << "}: " << bits_to_double(e.dtype(), out)
                      << " in " << text_of(e.bounds());
                }
            }
}

TEST(bounds, spec_P5_where_and_loads) {
  const DType d = DType::Int8;
  const UOp low = bounded(d, -5, -2, 1), high = bounded(d, 9, 12, 2),
            p = bounded(DType::Bool, 0, 1);
  auto ends = [](const UOp& u) {
    return std::pair(static_cast<int>(u.bounds().low), static_cast<int>(u.bounds().high));
  };
  EXPECT_EQ(ends(where(p, low, high)), std::pair(-5, 12));
  EXPECT_EQ(ends(where(bounded(DType::Bool, 1, 1), low, high)), std::pair(-5, -2));
  EXPECT_EQ(ends(where(bounded(DType::Bool, 0, 0), low, high)), std::pair(9, 12));
  // A gated load gives its alternative where the gate is closed.
  const UOp address =
      index(maximum(param(0, shape_of({4}), d), constant_int(d, 100)), {index_const(1)});
  EXPECT_EQ(ends(load(address)), std::pair(100, 127));
  EXPECT_EQ(ends(load(address, low, p)), std::pair(-5, 127));
  EXPECT_EQ(ends(load(address, high, p)), std::pair(9, 127));
  EXPECT_EQ(ends(stack(std::vector<UOp>{low, high})), std::pair(-5, 12));
  EXPECT_EQ(ends(pad(stack(std::vector<UOp>{high, high}), shape_of({0}), shape_of({3}),
                     constant_int(d, 1))),
            std::pair(1, 12));
  EXPECT_EQ(ends(pad(stack(std::vector<UOp>{high, high}), shape_of({0}), shape_of({3}))),
            std::pair(-128, 127))
      << "what is invalid may be anything";
}

// Two levels: each operand of an op is itself bounded by derivation.
TEST(bounds, spec_P5_random_int8_expressions_on_all_pairs) {
  const int64_t cases = test_cases(300);
  for (int64_t c = 0; c < cases; ++c) {
    std::mt19937_64 random(test_seed() + static_cast<uint64_t>(c));
    auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    const auto intervals = int8_intervals();
    const auto [a0, a1] =
        intervals[static_cast<size_t>(below(static_cast<int64_t>(intervals.size())))];
    const auto [b0, b1] =
        intervals[static_cast<size_t>(below(static_cast<int64_t>(intervals.size())))];
    const DType d = DType::Int8;
    const UOp a = bounded(d, a0, a1, 0), b = bounded(d, b0, b1, 1);
    std::function<UOp(int)> make = [&](int depth) -> UOp {
      if (depth == 0) return below(3) == 0 ? constant_int(d, below(256) - 128) : below(2) ? a : b;
      const UOp x = make(depth - 1), y = make(depth - 1);
      switch (below(14)) {
        case 0:
          return where(lt(x, y), x, make(depth - 1));
        case 1:
          return where(ne(x, y), y, x);
        case 2:
          return cast(cast(x, below(2) ? DType::UInt8 : DType::Bool), d);
        case 3:
          return cast(cast(x, DType::Float16), d);
        case 4:
          return binary(Op::Shl, x, bit_and(y, constant_int(d, 7)));
        case 5:
          return binary(Op::Shr, x, y);
        default: {
          const Op all[] = {Op::Add, Op::Mul, Op::Max, Op::Idiv, Op::Mod, Op::And, Op::Or, Op::Xor};
          return binary(all[below(8)], x, y);
        }
      }
    };
    const UOp e = make(2), s = simplify(e);
    const Interval bounds = e.bounds(), tight = s.bounds();
    // All pairs at once: the interpreter takes the Params as arrays.
    Array x{d, {}, {0}, {}}, y = x;
    for (int64_t i = a0; i <= a1; i += 1 + (a1 - a0) / 24)
      for (int64_t j = b0; j <= b1; j += 1 + (b1 - b0) / 24) {
        x.data[0] = int_to_bits(d, i);
        y.data[0] = int_to_bits(d, j);
        const Bindings at{{a, x}, {b, y}};
        const Bits v = interpret(e, at).data[0], w = interpret(s, at).data[0];
        ASSERT_EQ(v, w) << to_text(e) << "became\n" << to_text(s) << " at " << i << " " << j;
        ASSERT_TRUE(holds(bounds, e.dtype(), v)) << to_text(e) << " at " << i << " " << j;
        ASSERT_TRUE(holds(tight, e.dtype(), v)) << to_text(s) << " at " << i << " " << j;
      }
  }
}

// --- what they decide ----------------------------------------------------------------------------

// A kernel of one value for each of sixteen indices, twice eight lanes.
LoweredKernel eight_lanes(const std::function<UOp(const UOp& at)>& value, const Target& target) {
  const UOp at = range(0, index_const(16), AxisType::Loop);
  const UOp made = value(at);
  const UOp out = index(param(0, shape_of({16}), made.dtype()), {at});
  const std::vector<Opt> lanes{{OptOp::Split, 0, 8, AxisType::Upcast, false}};
  return lower_kernel(sink(std::vector<UOp>{end(store(out, made), std::vector<UOp>{at})}), target,
                      {}, &lanes);
}

template <class T>
void run_into(std::vector<T>& out, Program& program, const std::vector<int64_t>& variables) {
  const std::vector<std::byte*> buffers{reinterpret_cast<std::byte*>(out.data())};
  const std::vector<int64_t> bytes{static_cast<int64_t>(out.size() * sizeof(T))};
  program.run({buffers, bytes, variables});
}

// Lanes of indices, and divisions of them, are computed in 32 bits where their bounds prove that
// they fit, and in 64 elsewhere.
TEST(bounds, spec_P5_picks_the_bits_of_index_arithmetic) {
  const int64_t largest = INT32_MAX, smallest = INT32_MIN;
  struct Case {
    int64_t first;
    bool narrow;
  };
  DeviceRuntime& device = device_runtime("CPU");
  for (const auto& [first, narrow] :
       {Case{0, true}, Case{1000, true}, Case{largest - 15, true}, Case{largest - 14, false},
        Case{largest + 1, false}, Case{int64_t{1} << 40, false}, Case{smallest, true},
        Case{smallest - 1, false}, Case{-(int64_t{1} << 40), false}}) {
    auto numbers = [from = first](const UOp& at) {
      return cast(add(at, index_const(from)), DType::Float64);
    };
    const LoweredKernel k = eight_lanes(numbers, device.target());
    const std::string text = render_llvm_text(k.linear, "k", device.target());
    EXPECT_EQ(text.find("sitofp <8 x i32>") != std::string::npos, narrow) << first << "\n" << text;
    EXPECT_EQ(text.find("sitofp <8 x i64>") != std::string::npos, !narrow) << first << "\n" << text;
    std::vector<double> got(16);
    run_into(got, *device.compile(k), {});
    for (int64_t i = 0; i < 16; ++i)
      EXPECT_EQ(got[static_cast<size_t>(i)], static_cast<double>(first + i));
  }
}

// By a size that is known at run time alone.
TEST(bounds, spec_P5_picks_the_bits_of_index_divisions) {
  DeviceRuntime& device = device_runtime("CPU");
  for (const int64_t most : {int64_t{1000}, int64_t{1} << 40})
    for (const int64_t size : {int64_t{1}, int64_t{7}, most}) {
      const UOp by = variable("by", 1, most);
      auto both = [&](const UOp& at) {
        const UOp from = add(at, sub(by, index_const(4)));  // of either sign
        return cast(add(mul(idiv(from, by), index_const(10)), mod(from, by)), DType::Int64);
      };
      const UOp at = range(0, index_const(8), AxisType::Loop);
      const UOp out = index(param(0, shape_of({8}), DType::Int64), {at});
      const UOp kernel = sink(std::vector<UOp>{end(store(out, both(at)), std::vector<UOp>{at})});
      const std::vector<Opt> none;
      const LoweredKernel k = lower_kernel(kernel, device.target(), {}, &none);
      const std::string text = render_llvm_text(k.linear, "k", device.target());
      EXPECT_EQ(text.find("div i32") != std::string::npos, most == 1000) << text;
      EXPECT_EQ(text.find("div i64") != std::string::npos, most != 1000) << text;
      std::vector<int64_t> got(8);
      run_into(got, *device.compile(k), {size});
      for (int64_t i = 0; i < 8; ++i) {
        const int64_t from = i + size - 4, rest = (from % size + size) % size;
        EXPECT_EQ(got[static_cast<size_t>(i)], (from - rest) / size * 10 + rest) << size;
      }
    }
}

}  // namespace koine::test

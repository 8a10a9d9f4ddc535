// Rows D2 to D8: every op on every dtype, on all pairs of telling values, on every backend; against
// C++ where C++ says the same, in a wider type.
#include <cmath>
#include <optional>

#include "c_text.hpp"
#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {
namespace {

// Values at which something happens, in a dtype.
std::vector<Bits> telling(DType d) {
  std::vector<Bits> out;
  if (d == DType::Bool) return {0, 1};
  if (is_float(d)) {
    for (const double v : std::vector<double>{0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -7.0, 5.5, 448.0,
                                              -57344.0, 1e-3, 2.1, inf, -inf, std::nan("")})
      out.push_back(double_to_bits(d, v));
    out.push_back(1);  // the smallest subnormal
    return out;
  }
  const IntegerRange r = integer_range(d);
  for (const int64_t v : {0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 100}) out.push_back(int_to_bits(d, v));
  for (const int64_t v : {-1, -2, -7, -8})
    if (is_signed(d)) out.push_back(int_to_bits(d, v));
  for (const __int128 v : {r.low, r.low + 1, r.high, r.high - 1})
    out.push_back(int_to_bits(d, static_cast<int64_t>(v)));
  return out;
}

UOp column(DType d, const std::vector<Bits>& bits, bool row) {
  std::vector<std::byte> data(bits.size() * 8 + 8);
  for (size_t i = 0; i < bits.size(); ++i)
    write_element(data.data(), d, static_cast<int64_t>(i), bits[i]);
  const auto n = static_cast<int64_t>(bits.size());
  return buffer_from_host(row ? shape_of({1, n}) : shape_of({n, 1}), d, "CPU", data.data());
}

// All pairs, on every backend, and each result as `rule` says, where it says something.
struct Pairs {
  EveryBackend everywhere;

  template <class Rule>
  void check(DType d, const UOp& value, const std::vector<Bits>& a, const std::vector<Bits>& b,
             const Rule& rule) {
    everywhere(value);
    const Array got = run_on(value, "CPU");
    size_t at = 0;
    for (const Bits x : a)
      for (const Bits y : b) {
        const Bits result = got.data[at++];
        const std::optional<Bits> want = rule(x, y);
        if (!want) continue;
        const DType out = value.dtype();
        ASSERT_EQ(difference({out, {}, {*want}, {}}, {out, {}, {result}, {}}), "")
            << dtype_name(d) << " " << bits_to_double(d, x) << " and " << bits_to_double(d, y)
            << "\n"
            << to_text(value);
      }
  }
};

using Wide = __int128;
Wide integer(DType d, Bits b) {
  return d == DType::UInt64 ? static_cast<Wide>(b) : static_cast<Wide>(bits_to_int(d, b));
}
Bits wrapped(DType d, Wide v) {
  return int_to_bits(d, static_cast<int64_t>(static_cast<uint64_t>(v)));
}
Bits boolean(bool b) { return b ? 1 : 0; }

Wide floor_of(Wide a, Wide b) {
  const Wide q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

}  // namespace

TEST(elementwise_rows, spec_D2_add_mul_max_of_all_pairs) {
  Pairs pairs;
  for (const DType d : stored_dtypes()) {
    const std::vector<Bits> v = telling(d);
    const UOp a = column(d, v, false), b = column(d, v, true);
    for (const Op op : {Op::Add, Op::Mul, Op::Max})
      pairs.check(d, binary(op, a, b), v, v, [&](Bits x, Bits y) -> std::optional<Bits> {
        if (d == DType::Bool) {  // or, and, or
          return op == Op::Mul ? x & y : x | y;
        }
        if (is_float(d)) {
          const double p = bits_to_double(d, x), q = bits_to_double(d, y);
          if (op == Op::Max) return std::isnan(p) ? x : std::isnan(q) || q > p ? y : x;
          if (d == DType::Float32) {
            const auto f = static_cast<float>(p), g = static_cast<float>(q);
            return double_to_bits(d, static_cast<double>(op == Op::Add ? f + g : f * g));
          }
          return double_to_bits(d, op == Op::Add ? p + q : p * q);
        }
        const Wide p = integer(d, x), q = integer(d, y);
        if (op == Op::Max) return p >= q ? x : y;
        return wrapped(d, op == Op::Add ? p + q : p * q);
      });
  }
}

TEST(elementwise_rows, spec_D3_division_of_all_pairs) {
  Pairs pairs;
  for (const DType d : stored_dtypes()) {
    if (!is_integer(d)) continue;
    const std::vector<Bits> v = telling(d);
    const UOp a = column(d, v, false), b = column(d, v, true);
    for (const Op op : {Op::Idiv, Op::Mod}) {
      auto rule = [&](Bits x, Bits y) -> std::optional<Bits> {
        const Wide p = integer(d, x), q = integer(d, y);
        if (q == 0) return Bits{0};
        return wrapped(d, op == Op::Idiv ? floor_of(p, q) : p - q * floor_of(p, q));
      };
      pairs.check(d, binary(op, a, b), v, v, rule);
      // By constants, 0 among them, and of constants.
      for (const Bits c : v) {
        const std::vector<Bits> one{c};
        pairs.check(d, binary(op, a, constant_bits(d, c)), v, one, rule);
        if (c < 9) pairs.check(d, binary(op, constant_bits(d, c), b), one, v, rule);
      }
    }
  }
}

TEST(elementwise_rows, spec_D4_spec_D7d_spec_D7e_spec_D8_spec_amend_1_comparisons_of_all_pairs) {
  Pairs pairs;
  for (const DType d : stored_dtypes()) {
    const std::vector<Bits> v = telling(d);
    const UOp a = column(d, v, false), b = column(d, v, true);
    struct Case {
      UOp value;
      bool (*real)(double, double);
      bool (*whole)(Wide, Wide);
    };
    const Case cases[] = {
        {lt(a, b), +[](double x, double y) { return x < y; },
         +[](Wide x, Wide y) { return x < y; }},
        {ne(a, b), +[](double x, double y) { return x != y; },
         +[](Wide x, Wide y) { return x != y; }},
        {eq(a, b), +[](double x, double y) { return x == y; },
         +[](Wide x, Wide y) { return x == y; }},
        {lt(b, a), +[](double x, double y) { return x > y; },
         +[](Wide x, Wide y) { return x > y; }},
        {ge(a, b), +[](double x, double y) { return x >= y; },
         +[](Wide x, Wide y) { return x >= y; }},
        {le(a, b), +[](double x, double y) { return x <= y; },
         +[](Wide x, Wide y) { return x <= y; }},
    };
    for (const Case& c : cases)
      pairs.check(d, c.value, v, v, [&](Bits x, Bits y) -> std::optional<Bits> {
        if (is_float(d)) return boolean(c.real(bits_to_double(d, x), bits_to_double(d, y)));
        if (d == DType::Bool) return boolean(c.whole(x, y));
        return boolean(c.whole(integer(d, x), integer(d, y)));
      });
  }
}

TEST(elementwise_rows, spec_D5_bits_and_shifts_of_all_pairs) {
  Pairs pairs;
  for (const DType d : stored_dtypes()) {
    if (is_float(d)) continue;
    const std::vector<Bits> v = telling(d);
    const UOp a = column(d, v, false), b = column(d, v, true);
    for (const Op op : {Op::Xor, Op::Or, Op::And})
      pairs.check(d, binary(op, a, b), v, v, [&](Bits x, Bits y) -> std::optional<Bits> {
        const Bits mask = d == DType::Bool           ? 1
                          : dtype_info(d).bits == 64 ? ~Bits{0}
                                                     : (Bits{1} << dtype_info(d).bits) - 1;
        return (op == Op::Xor ? x ^ y : op == Op::Or ? x | y : x & y) & mask;
      });
    if (d == DType::Bool) continue;
    const int width = dtype_info(d).bits;
    for (const Op op : {Op::Shl, Op::Shr})
      pairs.check(d, binary(op, a, b), v, v, [&](Bits x, Bits y) -> std::optional<Bits> {
        const Wide p = integer(d, x), n = integer(d, y);
        if (n < 0) return std::nullopt;  // the backends agree
        if (op == Op::Shl) return n >= width ? Bits{0} : wrapped(d, p << static_cast<int>(n));
        return n >= width ? wrapped(d, p < 0 ? -1 : 0) : wrapped(d, p >> static_cast<int>(n));
      });
  }
  for (const DType d : {DType::Float32, DType::Float16}) {
    const UOp f = leaf({2}, d);
    for (const Op op : {Op::Xor, Op::Or, Op::And, Op::Shl, Op::Shr})
      expect_error([&] { (void)binary(op, f, f); },
                   {std::string(op_name(op)), std::string(dtype_name(d))});
  }
}

TEST(elementwise_rows, spec_D6_where_takes_one_side_alone) {
  Pairs pairs;
  for (const DType d : stored_dtypes()) {
    const std::vector<Bits> v = telling(d);
    const UOp a = column(d, v, false), b = column(d, v, true);
    pairs.check(d, where(lt(a, b), a, b), v, v, [&](Bits x, Bits y) -> std::optional<Bits> {
      const bool less = is_float(d)        ? bits_to_double(d, x) < bits_to_double(d, y)
                        : d == DType::Bool ? x < y
                                           : integer(d, x) < integer(d, y);
      return less ? x : y;
    });
    // A constant condition, and one that is no vector.
    for (const bool p : {true, false})
      pairs.check(d, where(constant_bool(p), a, b), v, v,
                  [&](Bits x, Bits y) -> std::optional<Bits> { return p ? x : y; });
    const UOp lone = Tensor::from<bool>({true}).reshape({1, 1}).uop();
    pairs.check(d, where(lone, a, b), v, v, [&](Bits x, Bits) -> std::optional<Bits> { return x; });
  }
  // What is not taken may be anything: a division by 0, a NaN, an infinity.
  const UOp x = Tensor::from<float>({0, 2, -1}).uop(), zero = constant(DType::Float32, 0);
  const UOp safe = where(ne(x, zero), fdiv(constant(DType::Float32, 1), x), zero);
  EXPECT_EQ(Tensor(safe).tolist<float>(), (std::vector<float>{0, 0.5F, -1}));
  pairs.everywhere(safe);
  pairs.everywhere(where(lt(x, zero), unary(Op::Log2, x), x));
}

TEST(elementwise_rows, spec_D7_spec_D7b_spec_D7c_spec_D7f_neg_sub_div_not_of_all_pairs) {
  Pairs pairs;
  for (const DType d : stored_dtypes()) {
    const std::vector<Bits> v = telling(d), one{v[0]};
    const UOp a = column(d, v, false), b = column(d, v, true);
    if (d == DType::Bool) {
      expect_error([&] { (void)neg(a); }, {"Neg", "bool"});
      pairs.check(d, logical_not(a), v, one,
                  [](Bits x, Bits) -> std::optional<Bits> { return x ^ 1; });
      continue;
    }
    expect_error([&] { (void)logical_not(a); }, {"Not", std::string(dtype_name(d))});
    pairs.check(d, neg(a), v, one, [&](Bits x, Bits) -> std::optional<Bits> {
      return is_float(d) ? double_to_bits(d, -bits_to_double(d, x)) : wrapped(d, -integer(d, x));
    });
    pairs.check(d, sub(a, b), v, v, [&](Bits x, Bits y) -> std::optional<Bits> {
      if (!is_float(d)) return wrapped(d, integer(d, x) - integer(d, y));
      const double p = bits_to_double(d, x), q = bits_to_double(d, y);
      if (d == DType::Float32)
        return double_to_bits(d,
                              static_cast<double>(static_cast<float>(p) - static_cast<float>(q)));
      return double_to_bits(d, p - q);
    });
    if (!is_float(d)) continue;
    pairs.check(d, fdiv(a, b), v, v, [&](Bits x, Bits y) -> std::optional<Bits> {
      const double p = bits_to_double(d, x), q = bits_to_double(d, y);
      if (d == DType::Float32)
        return double_to_bits(d,
                              static_cast<double>(static_cast<float>(p) / static_cast<float>(q)));
      if (d == DType::Float64) return double_to_bits(d, p / q);
      // A quotient of small floats, rounded to float32 and then again: 24 bits hold twice 11 and 2
      // more, so nothing is lost.
      return double_to_bits(d, static_cast<double>(static_cast<float>(p) / static_cast<float>(q)));
    });
  }
}

}  // namespace koine::test

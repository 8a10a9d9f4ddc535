// Closed forms of reduces, each against plain loops at the places where it ends to hold.
#include <algorithm>
#include <cmath>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/rules/simplify.hpp"

namespace koine::test {
namespace {

int reduces_of(const UOp& value) {
  int n = 0;
  for (const Kernel& k : schedule({value}))
    for (const UOp& u : toposort(k.ast)) n += u.is(Op::Reduce);
  return n;
}

double at_size(const UOp& value, const UOp& n, int64_t size, const std::string& device) {
  Options o = options();
  o.device = device;
  const OptionScope scope(o);
  const Array got = array_of(realize({value}, {{n.as<BufferArg>().name, size}})[0]);
  Bindings bindings = bindings_of(value);
  bindings.emplace(n, Array{DType::Index, {}, {static_cast<Bits>(size)}, {}});
  const Array meant = interpret(value, bindings);
  EXPECT_EQ(difference(meant, got), "") << device << " n=" << size << "\n" << to_text(value);
  return bits_to_double(value.dtype(), got.data[0]);
}

}  // namespace

TEST(reduce_rules, folds_of_a_constant_over_symbolic_and_empty_ranges) {
  for (const DType d : {DType::Float32, DType::Int32, DType::Float64})
    for (const int64_t least : {0, 1}) {
      const UOp n = variable("n", least, 6);
      const UOp threes =
          expand(reshape(constant_int(d, 3), shape_of({1})), stack(std::vector<UOp>{n}));
      auto fold = [&](Op op) { return reshape(reduce(op, threes, {0}), shape_of({})); };
      EXPECT_EQ(reduces_of(fold(Op::Add)), 0) << "3 n";
      EXPECT_EQ(reduces_of(fold(Op::Max)), least == 0 ? 1 : 0) << "3, where there is one";
      for (const char* device : {"CPU", "INTERP"})
        for (int64_t size = least; size <= 6; ++size) {
          const double none = is_float(d) ? -inf : static_cast<double>(INT32_MIN);
          EXPECT_EQ(at_size(fold(Op::Add), n, size, device), 3 * static_cast<double>(size));
          EXPECT_EQ(at_size(fold(Op::Max), n, size, device), size == 0 ? none : 3);
          EXPECT_EQ(at_size(fold(Op::Mul), n, size, device), std::pow(3, size));
        }
    }
}

// n times a number is near to the sum of n copies of it, whatever it is, where there is one.
TEST(reduce_rules, a_number_that_is_repeated_is_multiplied_where_there_is_one) {
  const OptionScope scope(options());
  for (const int64_t least : {0, 1, 2}) {
    const UOp n = variable("n", least, 6);
    const UOp same = expand(leaf({1}, DType::Float32, 1), stack(std::vector<UOp>{n}));
    EXPECT_EQ(reduces_of(reshape(reduce(Op::Add, same, {0}), shape_of({}))), least == 0 ? 1 : 0);
  }
}

// The sum of one element has its sign, also where only the Variable knows that there is one.
TEST(reduce_rules, a_sum_over_a_symbolic_range_keeps_the_sign_of_one_zero) {
  const OptionScope scope(strict_options());
  const UOp x = Tensor::full({6}, -0.0).clone().realize().uop();
  for (const int64_t least : {0, 1, 2}) {
    const UOp n = variable("n", least, 6);
    const UOp sum = reshape(
        reduce(Op::Add, shrink(x, shape_of({0}), stack(std::vector<UOp>{n})), {0}), shape_of({}));
    for (const char* device : {"CPU", "INTERP"})
      for (int64_t size = least; size <= 3; ++size)
        EXPECT_EQ(std::signbit(at_size(sum, n, size, device)), size == 1) << size;
  }
}

// sum over j of (condition on i and j), as tril, triu and arange have it: each diagonal, each side.
TEST(reduce_rules, counts_of_triangles) {
  const int64_t rows = 5, columns = 7;
  for (const DType d : {DType::Float32, DType::Int32, DType::UInt8, DType::Float16}) {
    const UOp one = constant_int(d, 1), zero = constant_int(d, 0);
    const UOp i = Tensor::arange(rows).reshape({rows, 1}).uop(),
              j = Tensor::arange(columns).reshape({1, columns}).uop();
    for (int64_t diagonal = -9; diagonal <= 9; ++diagonal) {
      const UOp edge = add(i, constant_int(i.dtype(), diagonal));
      struct Case {
        UOp condition;
        bool (*holds)(int64_t j, int64_t edge);
      };
      for (const Case& c : {Case{lt(j, edge), +[](int64_t a, int64_t b) { return a < b; }},
                            Case{lt(edge, j), +[](int64_t a, int64_t b) { return a > b; }},
                            Case{ge(j, edge), +[](int64_t a, int64_t b) { return a >= b; }},
                            Case{le(j, edge), +[](int64_t a, int64_t b) { return a <= b; }}})
        for (const bool otherwise : {false, true})
          for (const int64_t axis : {0, 1}) {
            const UOp value = reduce(
                Op::Add, otherwise ? where(c.condition, zero, one) : where(c.condition, one, zero),
                {axis});
            std::vector<double> want(static_cast<size_t>(axis == 0 ? columns : rows), 0);
            for (int64_t a = 0; a < rows; ++a)
              for (int64_t b = 0; b < columns; ++b)
                if (c.holds(b, a + diagonal) != otherwise)
                  want[static_cast<size_t>(axis == 0 ? b : a)] += 1;
            EXPECT_EQ(reduces_of(value), 0) << to_text(value);
            EXPECT_EQ(Tensor(value).reshape({-1}).tolist<double>(), want)
                << dtype_name(d) << " diagonal " << diagonal << " axis " << axis;
          }
    }
  }
}

// A condition whose coefficient is no unit keeps its loop, or counts right.
TEST(reduce_rules, counts_of_steps) {
  for (const int64_t step : {-3, -2, 2, 3})
    for (const int64_t limit : {-4, 0, 1, 5, 9}) {
      const UOp j = Tensor::arange(8).uop();
      const UOp value =
          reduce(Op::Add,
                 cast(lt(mul(j, constant_int(j.dtype(), step)), constant_int(j.dtype(), limit)),
                      DType::Float32),
                 {0});
      double want = 0;
      for (int64_t k = 0; k < 8; ++k) want += step * k < limit;
      EXPECT_EQ(Tensor(value).item(), want) << step << " " << limit;
      expect_same_everywhere(value);
    }
}

// One-hot sums: selected by j = e wherever e lies, with further conditions that look at j.
// sum over j of x(j) where offset <= p - step j < offset + width: of j there are few.
TEST(reduce_rules, sums_over_windows_at_every_place) {
  static constexpr int64_t places = 17, terms = 9;
  in_both_modes([] {
    std::vector<float> values;
    for (int64_t j = 0; j < terms; ++j) values.push_back(j % 4 == 0 ? -0.0F : 1.5F * float(j) - 4);
    const Tensor x = Tensor::from(values, {1, terms}).realize();
    const Tensor p = Tensor::arange(places).reshape({places, 1}), j = Tensor::arange(terms);
    for (const int64_t step : {1, 2, 3, -2})
      for (const int64_t width : {1, 2, 3, 5})
        for (const int64_t offset : {0, -3, 4}) {
          SCOPED_TRACE(fmt::format("step {}, width {}, offset {}", step, width, offset));
          const Tensor at = p - j * Tensor(step);
          const Tensor inside = (at >= Tensor(offset)).bitwise_and(at < Tensor(offset + width));
          const Tensor sum = Tensor::where(inside, x, Tensor(0.0)).sum(1);
          std::vector<double> wanted;
          for (int64_t place = 0; place < places; ++place) {
            double total = 0;
            for (int64_t k = 0; k < terms; ++k) {
              const int64_t here = place - k * step;
              if (here >= offset && here < offset + width) total += values[size_t(k)];
            }
            wanted.push_back(total);
          }
          int64_t most = 1;
          for (const UOp& u : toposort(schedule({sum.uop()}).at(0).ast))
            if (u.is(Op::Range) && u.as<RangeArg>().type == AxisType::Reduce)
              most = std::max(most, const_int(u.src(0)));
          // What holds everywhere is no bound: p + 2 j >= 0.
          EXPECT_LE(most, step > 0 ? (width + step - 1) / step : terms);
          expect_same_everywhere(sum);
          EXPECT_EQ(sum.tolist<double>(), wanted);
        }
  });
}

TEST(reduce_rules, one_hot_sums_at_every_place) {
  const UOp x = Tensor::from<float>({10, 20, 30, 40}).uop();
  const UOp j = Tensor::arange(4).uop();
  for (const bool strict : {true, false}) {
    Options o = options();
    o.strict = strict;
    const OptionScope scope(o);
    for (int32_t e = -2; e <= 6; ++e) {
      const UOp at = Tensor::from<int32_t>({e}).uop();
      const UOp zero = constant(DType::Float32, 0);
      auto here = [&](const UOp& position) { return eq(position, expand(at, shape_of({4}))); };
      const double want = e >= 0 && e < 4 ? 10.0 * (e + 1) : 0;
      EXPECT_EQ(Tensor(reduce(Op::Add, where(here(j), x, zero), {0})).item(), want);
      EXPECT_EQ(Tensor(reduce(Op::Add, where(logical_not(here(j)), zero, x), {0})).item(), want);
      // Backwards, shifted, and twice the position, which hits every second.
      const UOp back = flip(j, {1});
      EXPECT_EQ(Tensor(reduce(Op::Add, where(here(back), x, zero), {0})).item(),
                e >= 0 && e < 4 ? 10.0 * (4 - e) : 0);
      const UOp shifted = add(j, constant_int(j.dtype(), 2));
      EXPECT_EQ(Tensor(reduce(Op::Add, where(here(shifted), x, zero), {0})).item(),
                e >= 2 && e < 6 ? 10.0 * (e - 1) : 0);
      const UOp twice = mul(j, constant_int(j.dtype(), 2));
      EXPECT_EQ(Tensor(reduce(Op::Add, where(here(twice), x, zero), {0})).item(),
                e >= 0 && e <= 6 && e % 2 == 0 ? 10.0 * (e / 2 + 1) : 0);
      const UOp both = bit_and(here(j), lt(j, constant_int(j.dtype(), 2)));
      EXPECT_EQ(Tensor(reduce(Op::Add, where(both, x, zero), {0})).item(),
                e >= 0 && e < 2 ? want : 0);
      // Not a selection: the other side is no 0, or the fold no sum.
      EXPECT_EQ(Tensor(reduce(Op::Add, where(here(j), x, constant(DType::Float32, 1)), {0})).item(),
                e >= 0 && e < 4 ? want + 3 : 4);
      EXPECT_EQ(Tensor(reduce(Op::Max, where(here(j), x, zero), {0})).item(), want);
      EXPECT_EQ(Tensor(reduce(Op::Mul, where(here(j), x, zero), {0})).item(), 0);
    }
  }
}

// A fold by index starts from the miss, and misses that are not neutral count.
// The element that is picked stands under a condition on a fold of its own loops: that fold is made
// once, not under its own condition.
TEST(reduce_rules, a_picked_element_under_a_condition_on_its_own_fold) {
  for (const bool strict : {true, false}) {
    Options o = options();
    o.strict = strict;
    const OptionScope scope(o);
    for (const DType d : {DType::Float64, DType::Int32}) {
      const UOp zero = constant(d, 0), x = contiguous(leaf({3}, d));
      const UOp most = reduce(Op::Max, x, {0});
      const UOp kept = where(ne(most, zero), most, zero);
      const UOp padded =
          UOp::make(Op::Pad, {reshape(kept, shape_of({1})), shape_of({2}), shape_of({4})});
      expect_same_everywhere(UOp::make(Op::Reduce, {padded}, ReduceArg{Op::Add, {0}}));
    }
  }
}

TEST(reduce_rules, folds_by_index_count_their_misses) {
  const std::vector<int32_t> places{0, 2, 2, 5, 1, -1}, values{-7, -3, -9, 8, -2, 4};
  const int64_t k = 4;
  const auto d = static_cast<int64_t>(places.size());
  const UOp at = Tensor::from(places, {1, d}).uop(), row = Tensor::arange(k).reshape({k, 1}).uop();
  const UOp hit = eq(expand(row, shape_of({k, d})), expand(at, shape_of({k, d})));
  for (const DType dtype : {DType::Int32, DType::Int8, DType::Float32})
    for (const Op op : {Op::Add, Op::Max})
      for (const int64_t miss : {-100, -9, -8, -1, 0, 1, 100}) {
        const UOp v = koine::cast(Tensor::from(values, {1, d}).uop(), dtype);
        const UOp folded = reduce(op, where(hit, v, constant_int(dtype, miss)), {1});
        std::vector<double> want;
        for (int64_t r = 0; r < k; ++r) {
          double fold = op == Op::Add ? 0 : -inf;
          for (size_t i = 0; i < values.size(); ++i) {
            const double e = places[i] == r ? values[i] : static_cast<double>(miss);
            fold = op == Op::Add ? fold + e : std::max(fold, e);
          }
          want.push_back(dtype == DType::Int8 ? static_cast<int8_t>(static_cast<int64_t>(fold))
                                              : fold);
        }
        EXPECT_EQ(Tensor(folded).reshape({-1}).tolist<double>(), want)
            << op_name(op) << " miss " << miss << " " << dtype_name(dtype);
        expect_same_everywhere(folded);
      }
}

// Where each index hits one row, that row sees no miss: a miss above the values must not reach it.
TEST(reduce_rules, a_maximum_by_index_keeps_values_below_its_miss) {
  const int64_t k = 2;
  const UOp row = expand(Tensor::arange(k).reshape({k, 1}).uop(), shape_of({k, 2}));
  const UOp hit = eq(row, expand(Tensor::from<int32_t>({1, 1}, {1, 2}).uop(), shape_of({k, 2})));
  for (const DType d : {DType::Int32, DType::Int8, DType::UInt8, DType::UInt64})
    for (const bool most : {false, true})  // of values that are known to be 0 or 1
      for (const Bits miss : {Bits{0}, Bits{1}, Bits{2}, (Bits{1} << 63) + 5}) {
        if (miss > 2 && d != DType::UInt64) continue;
        const UOp v = koine::cast(Tensor::from<bool>({most, false}).reshape({1, 2}).uop(), d);
        const UOp top = reduce(Op::Max, where(hit, v, constant_bits(d, miss)), {1});
        const std::vector<Bits> want{miss, Bits{most}};
        EXPECT_EQ(run_on(top, "CPU").data, want) << dtype_name(d) << " " << most << " " << miss;
        EXPECT_EQ(run_on(top, "INTERP").data, want);
      }
}

// A maximum by no index at all is the least value of its dtype, not the miss.
TEST(reduce_rules, a_maximum_by_symbolically_many_indices) {
  const int64_t k = 3;
  const UOp n = variable("n", 0, 4), one = index_const(1);
  const UOp size = stack(std::vector<UOp>{one, n}),
            both = stack(std::vector<UOp>{index_const(k), n});
  const UOp origin = shape_of({0, 0});
  const UOp at = shrink(Tensor::from<int32_t>({1, 0, 1, 7}, {1, 4}).uop(), origin, size),
            v = shrink(Tensor::from<uint8_t>({9, 3, 4, 5}, {1, 4}).uop(), origin, size);
  const UOp row = expand(Tensor::arange(k).reshape({k, 1}).uop(), both);
  const UOp value = cast(expand(v, both), DType::Int32);
  const UOp top =
      reduce(Op::Max, where(eq(row, expand(at, both)), value, constant_int(DType::Int32, 0)), {1});
  for (const char* device : {"CPU", "INTERP"})
    for (int64_t size_now = 0; size_now <= 4; ++size_now) {
      Options o = options();
      o.device = device;
      const OptionScope scope(o);
      const Array got = array_of(realize({top}, {{"n", size_now}})[0]);
      const int64_t none = size_now == 0 ? INT32_MIN : 0;
      const std::vector<int64_t> want{size_now >= 2 ? 3 : none, size_now >= 1 ? 9 : none, none};
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(bits_to_int(DType::Int32, got.data[i]), want[i]) << device << " n=" << size_now;
    }
}

}  // namespace koine::test

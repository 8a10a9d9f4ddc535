// Rows B on every backend, and what they cost by the engine's count.
#include <algorithm>
#include <cmath>

#include "c_text.hpp"
#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/runtime/device.hpp"
#include "koine/transform/function.hpp"

namespace koine::test {
namespace {

// Bytes that the device holds more at the end of `action` than before it, and the arena of its
// temporaries.
struct Memories {
  int64_t kept, temporary;
};
Memories memory_of_running(const std::function<UOp()>& action) {
  DeviceRuntime& device = device_runtime("CPU");
  reset_counters();
  const int64_t before = device.allocator().bytes_in_use();
  const UOp held = action();
  return {device.allocator().bytes_in_use() - before, counters().temporary_bytes};
}

}  // namespace

TEST(movement_rows, spec_B4_expand_allocates_nothing) {
  // 16 MiB if it were there, in a sum and in an elementwise kernel; the results are 4 KiB.
  const UOp column = leaf({1024, 1}), row = leaf({1, 4096}, DType::Float32, 1);
  const UOp wide = expand(column, shape_of({1024, 4096}));
  const UOp sums = reduce(Op::Max, mul(wide, expand(row, shape_of({1024, 4096}))), {1});
  const Memories m = memory_of_running([&] { return realize({sums})[0]; });
  EXPECT_EQ(m.temporary, 0);
  EXPECT_LE(m.kept, 2 * 4096) << "the result alone, in its size class";
  EXPECT_EQ(schedule({reduce(Op::Max, mul(wide, wide), {0})}).size(), 1u);
  for (const Kernel& k : schedule({reduce(Op::Max, mul(wide, wide), {0})}))
    for (const UOp& b : k.buffers) EXPECT_LE(b.numel(), 4096) << to_text(k.ast);
  // A view that nobody looks at costs nothing at all.
  const Memories view = memory_of_running([&] { return wide; });
  EXPECT_EQ(view.kept, 0);
  EveryBackend everywhere;
  for (const DType d : stored_dtypes()) {
    everywhere(expand(leaf({3, 1}, d), shape_of({3, 5})));
    everywhere(expand(leaf({1, 1, 2}, d), shape_of({4, 3, 2})));
    everywhere(expand(reshape(leaf({}, d), shape_of({1})), shape_of({6})));
    everywhere(expand(leaf({1, 2}, d), shape_of({0, 2})));
  }
}

TEST(movement_rows, spec_B5_pad_in_every_dtype) {
  EveryBackend everywhere;
  for (const DType d : stored_dtypes()) {
    const UOp x = leaf({3, 2}, d), padded = pad(x, shape_of({1, 0}), shape_of({5, 4}));
    everywhere(padded);
    everywhere(pad(x, shape_of({1, 0}), shape_of({5, 4}), constant_int(d, 1)));
    everywhere(pad(leaf({0, 2}, d), shape_of({1, 0}), shape_of({2, 2}), constant_int(d, 1)));
    everywhere(pad(leaf({}, d), shape_of({}), shape_of({})));
    if (is_small_float(d)) continue;
    // A reduce sees none of the padding, wherever it is.
    for (const Op op : {Op::Max, Op::Add, Op::Mul})
      for (const Ints& axes : {Ints{0}, Ints{1}, Ints{0, 1}}) everywhere(reduce(op, padded, axes));
  }
  const UOp low = Tensor::from<float>({-3, -7, -5}).uop();
  for (int64_t at = 0; at <= 3; ++at)
    EXPECT_EQ(Tensor(reduce(Op::Max, pad(low, shape_of({at}), shape_of({6})), {0})).item(), -3);
}

TEST(movement_rows, spec_B6_one_kernel_for_all_offsets) {
  const UOp at = variable("at", 0, 8);
  std::vector<float> data(12);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i * i);
  const UOp x = Tensor::from(data, {12}).uop();
  const UOp part = shrink(x, stack(std::vector<UOp>{at}), shape_of({4}));
  const UOp value = add(part, constant(DType::Float32, 1));
  EXPECT_EQ(schedule({value}).size(), 1u);
  for (const char* device : {"CPU", "INTERP"}) {
    Options o = options();
    o.device = device;
    const OptionScope scope(o);
    clear_compile_cache();
    reset_counters();
    for (int64_t offset = 0; offset <= 8; ++offset) {
      const Array got = array_of(realize({value}, {{"at", offset}})[0]);
      for (size_t i = 0; i < 4; ++i)
        EXPECT_EQ(bits_to_double(DType::Float32, got.data[i]),
                  static_cast<double>(data[static_cast<size_t>(offset) + i] + 1))
            << device << " at " << offset;
      Bindings bindings = bindings_of(value);
      bindings.emplace(at, Array{DType::Index, {}, {static_cast<Bits>(offset)}, {}});
      EXPECT_EQ(difference(interpret(value, bindings), got), "") << offset;
    }
    EXPECT_EQ(counters().compiled, 1) << "nine offsets, one program, on " << device;
    EXPECT_EQ(counters().kernels, 9);
  }
  // The offset must fit whatever it is bound to.
  expect_error([&] { (void)shrink(x, stack(std::vector<UOp>{at}), shape_of({5})); },
               {"Shrink", "axis 0"});
}

// int, range and tensor indices in every mix of axes, against plain loops.
TEST(movement_rows, spec_B7_every_mix_of_indices) {
  const Shape sizes{4, 3, 5};
  std::vector<int32_t> data(60);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int32_t>(i) + 100;
  const UOp x = Tensor::from(data, sizes).uop();
  EveryBackend everywhere;
  const std::vector<std::vector<int64_t>> listed{{2, 0, 2, -1, 4}, {1, 2}, {0, 4, 7, 3}};
  for (int mix = 0; mix < 4 * 4 * 4; ++mix) {
    const int kinds[] = {mix % 4, mix / 4 % 4, mix / 16};
    std::vector<UOp> indices;
    std::vector<std::vector<int64_t>> places;
    std::vector<int64_t> shape;
    bool ended = false, skip = false;
    for (size_t k = 0; k < 3; ++k) {
      skip = skip || (ended && kinds[k] != 0);  // indices stand from the left
      if (kinds[k] == 0) {
        ended = true;
        places.emplace_back();
        for (int64_t i = 0; i < sizes[k]; ++i) places.back().push_back(i);
        shape.push_back(sizes[k]);
      } else if (kinds[k] == 1) {
        indices.push_back(constant_int(DType::Int32, static_cast<int64_t>(k)));
        places.push_back({static_cast<int64_t>(k)});
      } else if (kinds[k] == 2) {  // a range, counted down
        indices.push_back(Tensor::arange(sizes[k] - 1, -1, -1).uop());
        places.emplace_back();
        for (int64_t i = sizes[k]; i-- > 0;) places.back().push_back(i);
        shape.push_back(sizes[k]);
      } else {
        indices.push_back(Tensor::from(listed[k], {static_cast<int64_t>(listed[k].size())}).uop());
        places.push_back(listed[k]);
        shape.push_back(static_cast<int64_t>(listed[k].size()));
      }
    }
    if (skip || indices.empty()) continue;
    const UOp read = index(x, indices);
    ASSERT_EQ(read.sizes(), shape);
    std::vector<int32_t> want;
    for (const int64_t a : places[0])
      for (const int64_t b : places[1])
        for (const int64_t c : places[2]) {
          const bool inside = a >= 0 && a < 4 && b >= 0 && b < 3 && c >= 0 && c < 5;
          want.push_back(inside ? data[static_cast<size_t>((a * 3 + b) * 5 + c)] : 0);
        }
    EXPECT_EQ(Tensor(read).tolist<int32_t>(), want) << "mix " << mix;
    everywhere(read);
  }
}

TEST(movement_rows, spec_B11_every_subset_of_axes_in_every_dtype) {
  EveryBackend everywhere;
  for (const DType d : stored_dtypes()) {
    const UOp x = leaf({2, 3, 2, 3}, d);
    for (int mask = 1; mask < 16; ++mask) {
      Ints axes;
      for (int k = 0; k < 4; ++k)
        if (mask >> k & 1) axes.push_back(k);
      for (const Op op : {Op::Add, Op::Max, Op::Mul}) everywhere(reduce(op, x, axes));
    }
  }
}

TEST(movement_rows, spec_B11_nothing_to_reduce) {
  EveryBackend everywhere;
  for (const DType d : stored_dtypes()) {
    const UOp x = leaf({2, 0, 3}, d);
    for (const Op op : {Op::Add, Op::Max, Op::Mul}) {
      const UOp r = reduce(op, x, {1});
      EXPECT_EQ(r.sizes(), (std::vector<int64_t>{2, 1, 3}));
      everywhere(r);
      const Array got = run_on(r, "CPU");
      const Bits none = identity_of(op, d).as<ConstArg>().bits;
      for (const Bits b : got.data) EXPECT_EQ(b, none) << dtype_name(d) << " " << op_name(op);
      everywhere(reduce(op, x, {0, 1, 2}));
      EXPECT_EQ(reduce(op, x, {0}).numel(), 0);
    }
    if (is_float(d) && d != DType::Float8E4M3) {
      EXPECT_EQ(Tensor(reduce(Op::Max, leaf({0}, d), {0})).item(), -inf);
    }
    EXPECT_EQ(Tensor(reduce(Op::Add, leaf({0}, d), {0})).item(), 0);
    EXPECT_EQ(Tensor(reduce(Op::Mul, leaf({0}, d), {0})).item(), 1);
  }
}

TEST(movement_rows, spec_B11_max_gives_nan_from_any_position) {
  for (const DType d : stored_dtypes()) {
    if (!is_float(d)) continue;
    for (int64_t n : {1, 2, 7, 16, 33})
      for (int64_t at = 0; at < n; at += std::max<int64_t>(1, n / 5)) {
        std::vector<double> v(static_cast<size_t>(n), 1.0);
        v[static_cast<size_t>(at)] = std::nan("");
        const UOp x = Tensor::from(v, {n}).cast(d).realize().uop();
        for (const char* device : {"CPU", "INTERP"})
          EXPECT_TRUE(
              std::isnan(bits_to_double(d, run_on(reduce(Op::Max, x, {0}), device).data[0])))
              << dtype_name(d) << " " << at << " of " << n;
      }
  }
}

TEST(movement_rows, spec_B12_one_function_called_twice_compiles_once) {
  for (const Resolve how : {Resolve::Substitute, Resolve::Precompile}) {
    const auto f = [&](const UOp& x) {
      return get_tuple(
          make_function(
              [](const std::vector<UOp>& in) {
                return std::vector<UOp>{reduce(Op::Add, unary(Op::Exp2, mul(in[0], in[0])), {1})};
              },
              {x}, how),
          0);
    };
    const UOp a = leaf({5, 7}, DType::Float32, 1), b = leaf({5, 7}, DType::Float32, 2);
    EXPECT_EQ(f(a).src(0).src(0), f(b).src(0).src(0)) << "one body";
    clear_compile_cache();
    reset_counters();
    (void)realize({f(a)});
    const int64_t first = counters().compiled;
    EXPECT_GE(first, 1);
    (void)realize({f(b)});
    EXPECT_EQ(counters().compiled, first) << "called again, nothing is compiled";
    clear_compile_cache();
    reset_counters();
    const std::vector<UOp> both{f(leaf({5, 7}, DType::Float32, 3)),
                                f(leaf({5, 7}, DType::Float32, 4))};
    (void)realize(both);
    EXPECT_EQ(counters().compiled, first) << "nor when both are asked for at once";
    EXPECT_EQ(counters().kernels, 2 * first);
  }
}

// --- rules -------------------------------------------------------------------------------------

TEST(movement_rows, a_clone_of_a_clone_is_another_buffer) {
  const UOp x = leaf({3});
  const UOp once = UOp::make(Op::Contiguous, {x}, MarkArg{Mark::Copies}),
            twice = UOp::make(Op::Contiguous, {once}, MarkArg{Mark::Copies});
  EXPECT_EQ(rewrite(twice, movement_rules()), twice);
  EXPECT_EQ(rewrite(contiguous(contiguous(add(x, x))), movement_rules()), contiguous(add(x, x)));
  const Tensor a = Tensor::from<float>({1, 2, 3}).clone();
  Tensor b = a.clone();
  b.assign(Tensor::from<float>({7, 8, 9}));
  EXPECT_EQ(b.tolist<float>(), (std::vector<float>{7, 8, 9}));
  EXPECT_EQ(a.tolist<float>(), (std::vector<float>{1, 2, 3}));
  Tensor c = Tensor::ones({2}).clone().clone().realize(), d = c.clone().clone();
  d.assign(d * Tensor(5.0));
  EXPECT_EQ(c.tolist<float>(), (std::vector<float>{1, 1}));
  EXPECT_EQ(d.tolist<float>(), (std::vector<float>{5, 5}));
}

// Max takes the left of two zeros: operands keep their places, constants too.
TEST(movement_rows, spec_D2_max_of_two_zeros_is_the_left_one) {
  for (const DType d : stored_dtypes()) {
    if (!is_float(d)) continue;
    const double zeros[] = {0.0, -0.0};
    for (const double a : zeros)
      for (const double b : zeros) {
        const UOp x = Tensor::from<double>({a, a}).cast(d).realize().uop(),
                  y = Tensor::from<double>({b, b}).cast(d).realize().uop();
        const UOp p = constant(d, a), q = constant(d, b);
        for (const UOp& m : {maximum(x, y), maximum(x, q), maximum(p, y),
                             expand(reshape(maximum(p, q), shape_of({1})), shape_of({2}))}) {
          expect_same_everywhere(m);
          for (const char* device : {"CPU", "INTERP"})
            EXPECT_EQ(std::signbit(bits_to_double(d, run_on(m, device).data[1])), std::signbit(a))
                << dtype_name(d) << ": max(" << a << ", " << b << ")";
        }
      }
  }
}

// Positions in narrow integers wrap where the dtype ends, whatever is done with them then.
TEST(movement_rows, spec_amend_35_positions_leave_their_dtype_by_wrapping) {
  for (const DType d : {DType::Int8, DType::UInt8, DType::Int16}) {
    const UOp at = Tensor::arange(300).cast(d).uop();
    const UOp at100 = Tensor::arange(100).cast(d).uop();
    auto wrapped = [&](int64_t v) { return bits_to_int(d, int_to_bits(d, v)); };
    auto expect = [&](const UOp& value, const std::function<int64_t(int64_t)>& f) {
      const Array got = run_on(value, "CPU");
      for (size_t i = 0; i < got.data.size(); ++i)
        ASSERT_EQ(bits_to_int(got.dtype, got.data[i]), f(static_cast<int64_t>(i)))
            << dtype_name(d) << " " << i << "\n"
            << to_text(value);
      expect_same_everywhere(value);
    };
    auto c = [&](int64_t v) { return constant_int(d, v); };
    expect(at, wrapped);
    expect(add(at100, c(100)), [&](int64_t i) { return wrapped(i + 100); });
    expect(add(at100, c(-30)), [&](int64_t i) { return wrapped(i - 30); });
    expect(mul(at100, c(3)), [&](int64_t i) { return wrapped(3 * i); });
    expect(mul(at100, at100), [&](int64_t i) { return wrapped(i * i); });
    expect(add(at, at), [&](int64_t i) { return wrapped(2 * i); });
    expect(cast(at, DType::Int64), wrapped);
    expect(cast(add(at100, c(100)), DType::Int32), [&](int64_t i) { return wrapped(i + 100); });
    expect(lt(at, c(50)), [&](int64_t i) { return wrapped(i) < 50 ? 1 : 0; });
    expect(lt(c(50), at), [&](int64_t i) { return 50 < wrapped(i) ? 1 : 0; });
    expect(ne(at, c(5)), [&](int64_t i) { return wrapped(i) != 5 ? 1 : 0; });
    expect(lt(at100, c(-1)), [&](int64_t i) { return i < wrapped(-1) ? 1 : 0; });
  }
}

}  // namespace koine::test

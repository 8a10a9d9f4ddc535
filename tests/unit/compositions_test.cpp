// Compositions of tensor operations: rows C of the specification, in linear work.
#include <array>
#include <cmath>

#include "c_text.hpp"
#include "check.hpp"
#include "graphs.hpp"
#include "kernels.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/transform/gradient.hpp"

namespace koine::test {

TEST(compositions, spec_C_gemm) {
  const int64_t m = 24, n = 32, k = 40;
  const Tensor a = small({m, k}), b = small({k, n}, 1);
  const Tensor c = (a.reshape({m, k, 1}) * b.reshape({1, k, n})).sum({1});
  EXPECT_EQ(kernel_count({c}), 1);
  EXPECT_EQ(kernel_count({a.matmul(b).relu()}), 1) << "the epilogue is fused";
  expect_same_everywhere(c);
  const auto x = a.tolist<double>(), y = b.tolist<double>(), z = a.matmul(b).tolist<double>();
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t r = 0; r < k; ++r)
        sum += x[static_cast<size_t>(i * k + r)] * y[static_cast<size_t>(r * n + j)];
      ASSERT_NEAR(z[static_cast<size_t>(i * n + j)], sum, 1e-4);
    }
}

TEST(compositions, spec_C_arange) {
  for (const int64_t n : {1, 2, 7, 10, 100}) {
    const Tensor a = Tensor::arange(n);
    const auto kernels = schedule({a.uop()});
    ASSERT_EQ(kernels.size(), 1u);
    EXPECT_EQ(count_ops(kernels[0].ast, Op::Reduce), 0) << "the sum folds to an index expression";
    EXPECT_EQ(count_ops(kernels[0].ast, Op::Load), 0);
    std::vector<int> want(static_cast<size_t>(n));
    for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<int>(i);
    EXPECT_EQ(a.tolist<int>(), want);
  }
  EXPECT_TRUE(Tensor::arange(0).tolist<int>().empty());
  EXPECT_EQ(Tensor::arange(2, 11, 3).tolist<int>(), (std::vector<int>{2, 5, 8}));
  EXPECT_EQ(Tensor::arange(5, 0, -2).tolist<int>(), (std::vector<int>{5, 3, 1}));
}

namespace {
Options options_with(IndexMode mode) {
  Options o = options();
  o.index = mode;
  return o;
}
}  // namespace

TEST(compositions, spec_C_gather_spec_amend_31) {
  const int64_t k = 50;
  std::vector<float> table(static_cast<size_t>(k), 1.5f);
  table[7] = static_cast<float>(inf);
  const Tensor t = Tensor::from(table, {k}), idx = Tensor::from<int32_t>({3, 0, 49, 50, -1, 3});
  // As the specification writes it: a one-hot mask, a product, a sum.
  const Tensor mask =
      (Tensor::arange(k).reshape({k, 1}) == idx.reshape({1, -1})).cast(DType::Float32);
  const Tensor out = (t.reshape({k, 1}) * mask).sum({0});
  const auto kernels = schedule({out.uop()});
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(count_ops(kernels[0].ast, Op::Reduce), 0) << "no loop over the table is left";
  EXPECT_EQ(count_ops(kernels[0].ast, Op::Load), 2);
  EXPECT_EQ(out.tolist<float>(), (std::vector<float>{1.5f, 1.5f, 1.5f, 0, 0, 1.5f}))
      << "inf at an unselected row is not read; out of range reads 0";
  // Tensor.gather selects, so it holds in strict mode too.
  const OptionScope scope(options_with(IndexMode::Fill));
  expect_same_everywhere(t.gather(0, idx));
}

// Scalar operations that computing a value costs, by the engine's own count while it runs. (At
// least one: the value was not there before.)
double operations_of(const Tensor& value) {
  reset_counters();
  (void)realize({UOp::make(Op::Contiguous, {value.uop()}, MarkArg{Mark::Copies})});
  EXPECT_GE(counters().operations, 1);
  return counters().operations;
}

TEST(compositions, spec_C_scat) {
  const int64_t k = 300, d = 500;
  std::mt19937_64 random(test_seed());
  std::vector<int32_t> where_to;
  for (int64_t i = 0; i < d; ++i) where_to.push_back(static_cast<int32_t>(random() % 310) - 5);
  const Tensor t = small({k}), v = small({d}, 1), idx = Tensor::from(where_to, {d});
  // As the specification writes it.
  const Tensor mask =
      (Tensor::arange(k).reshape({k, 1}) == idx.reshape({1, d})).cast(DType::Float32);
  const Tensor out = t + (mask * v.reshape({1, d})).sum({1});
  EXPECT_LE(operations_of(out), 8.0 * (k + d)) << "work is linear, not k * d";
  std::vector<float> sums(static_cast<size_t>(k), 0.0f);
  const auto values = v.tolist<float>(), base = t.tolist<float>();
  for (size_t i = 0; i < values.size(); ++i)
    if (where_to[i] >= 0 && where_to[i] < k) sums[static_cast<size_t>(where_to[i])] += values[i];
  const auto got = out.tolist<float>();
  for (size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(got[i], base[i] + sums[i]) << i;
  // The library's form, in rows, and the gradient of an embedding, which is one.
  const OptionScope scope(options_with(IndexMode::Fill));
  expect_same_everywhere(t.scatter_add(0, idx, v));
  Tensor table = small({40, 6}, 2);
  const Tensor rows = Tensor::from<int32_t>({3, 3, 39, 0, 7});
  const Tensor grad = (table.index_select(0, rows) * small({5, 6}, 3)).sum().gradient({table})[0];
  EXPECT_LE(operations_of(grad), 12.0 * (40 + 5) * 6);
  expect_same_everywhere(grad);
}

TEST(compositions, spec_C_scat_the_last_write_wins_in_linear_work) {
  const int64_t k = 300, d = 500;
  std::mt19937_64 random(test_seed());
  std::vector<int32_t> where_to;
  for (int64_t i = 0; i < d; ++i) where_to.push_back(static_cast<int32_t>(random() % 310));
  const Tensor t = small({k}), v = small({d}, 1), idx = Tensor::from(where_to, {d});
  const OptionScope scope(options_with(IndexMode::Fill));
  const Tensor out = t.scatter(0, idx, v);
  EXPECT_LE(operations_of(out), 8.0 * (k + d));
  auto expected = t.tolist<float>();
  const auto values = v.tolist<float>();
  for (size_t i = 0; i < values.size(); ++i)
    if (where_to[i] < k) expected[static_cast<size_t>(where_to[i])] = values[i];
  EXPECT_EQ(out.tolist<float>(), expected);
  expect_same_everywhere(out);
  Tensor set = t.clone();
  set.setitem({idx.clip(0, k - 1)}, v);
  EXPECT_LE(operations_of(set), 17.0 * (k + d)) << "with the clip of its positions";
  // Along each of three axes, with fewer indices than there are elements along any.
  std::vector<int32_t> few;
  for (int64_t i = 0; i < 60; ++i) few.push_back(static_cast<int32_t>(random() % 6));
  const Tensor m = small({6, 7, 8}), source = small({4, 5, 3}, 2),
               at = Tensor::from(few, {4, 5, 3});
  const auto from = source.tolist<float>();
  for (size_t axis = 0; axis < 3; ++axis) {
    auto want = m.tolist<float>();
    for (size_t i = 0; i < from.size(); ++i) {
      std::array<size_t, 3> to{i / 15, i / 3 % 5, i % 3};
      to[axis] = static_cast<size_t>(few[i]);
      want[(to[0] * 7 + to[1]) * 8 + to[2]] = from[i];
    }
    const Tensor written = m.scatter(static_cast<int64_t>(axis), at, source);
    EXPECT_EQ(written.tolist<float>(), want) << axis;
    expect_same_everywhere(written);
  }
}

// Each element folds once more, whether its place and value depend on all of the fold's ranges or
// not: strict sums of equal floats stay loops.
TEST(compositions, spec_C_scat_equal_values_fold_as_often_as_they_stand) {
  const Tensor values = Tensor::from<float>({1, 2, 4, 8}), at = Tensor::from<int32_t>({2, 0, 2, 1});
  const Tensor hits =
      (Tensor::arange(3).reshape({3, 1, 1}) == at.reshape({1, 4, 1})).expand({3, 4, 5});
  const Tensor sums = Tensor::where(hits, values.reshape({1, 4, 1}), Tensor::zeros({})).sum({1, 2});
  const std::vector<float> expected{10, 40, 25};
  EXPECT_EQ(sums.tolist<float>(), expected);
  {
    const OptionScope scope(strict_options());
    EXPECT_EQ(Tensor::where(hits, values.reshape({1, 4, 1}), Tensor::zeros({}))
                  .sum({1, 2})
                  .tolist<float>(),
              expected);
  }
  expect_same_everywhere(sums);
}

// Folds by index of every kind: those that misses change keep their loops.
TEST(compositions, spec_C_scat_random_folds_by_index) {
  std::mt19937_64 random(test_seed());
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const DType dtypes[] = {DType::Int8,   DType::UInt8,   DType::Int32,   DType::Int64,
                          DType::UInt64, DType::Float16, DType::Float32, DType::Bool};
  const int64_t cases = test_cases(150);
  for (int64_t i = 0; i < cases; ++i) {
    const int64_t k = 1 + below(9), d = below(12), rows = 1 + below(3);
    const DType dtype = dtypes[below(8)];
    const bool add = below(2) == 0 && dtype != DType::Bool;
    std::vector<int32_t> at;
    for (int64_t j = 0; j < d; ++j) at.push_back(static_cast<int32_t>(below(k + 4)) - 2);
    const Tensor places = Tensor::from(at, {1, 1, d}).cast(below(2) ? DType::Int32 : DType::Int64),
                 value = below(3) == 0 ? Tensor::arange(1, d + 1).reshape({1, 1, d}).cast(dtype)
                                       : Tensor(random_leaf(random, {rows, 1, d}, dtype)),
                 miss = Tensor(constant_int(dtype, below(2) == 0 ? 0 : below(4) - 2));
    Tensor hit = places == Tensor::arange(0, k, 1, places.dtype()).reshape({1, k, 1});
    if (below(3) == 0)
      hit = hit.bitwise_and(Tensor(random_leaf(random, {rows, 1, d}, DType::Bool)));
    const Tensor picked = below(2) == 0 ? Tensor::where(hit, value, miss)
                                        : Tensor::where(hit.logical_not(), miss, value);
    if (d == 0 && !add) continue;  // a maximum of nothing is refused
    Tensor folded = add ? picked.sum({2}) : picked.max({2});
    if (below(2) == 0) folded = folded + folded;
    SCOPED_TRACE(fmt::format("KOINE_TEST_SEED={} case {}", test_seed(), i));
    expect_same_everywhere(folded);
    if (HasFailure()) break;
  }
}

// Where the order changes no bit, threads of groups add at once, and anywhere where it was asked
// for; strict mode keeps the order of floats.
TEST(compositions, spec_C_scat_threads_add_at_once_when_asked_for) {
  std::mt19937_64 random(test_seed());
  const int64_t k = 37, d = 900, columns = 3;
  std::vector<int32_t> at;
  for (int64_t i = 0; i < d; ++i) at.push_back(static_cast<int32_t>(random() % (k + 2)));
  std::vector<int32_t> add;
  for (int64_t i = 0; i < d * columns; ++i) add.push_back(static_cast<int32_t>(random() % 9));
  const OptionScope fills(options_with(IndexMode::Fill));
  for (const std::string device : {"CPU", "INTERP", "SIMT"})
    for (const bool asked : {false, true})
      for (const bool strict : {false, true})
        for (const DType dtype : {DType::Float32, DType::Float64, DType::Int32, DType::UInt64,
                                  DType::Float16, DType::Int8}) {
          Options o = options();
          o.device = device;
          o.atomic_scatter = asked;
          o.strict = strict;
          const OptionScope scope(o);
          SCOPED_TRACE(fmt::format("KOINE_TEST_SEED={} {} {} {} {}", test_seed(), device,
                                   asked ? "asked" : "ordered", strict ? "strict" : "default",
                                   dtype_name(dtype)));
          const Tensor places = Tensor::from(at, {d, 1}).expand({d, columns}).contiguous(),
                       values = Tensor::from(add, {d, columns}).cast(dtype).contiguous(),
                       sum = Tensor::zeros({k, columns}, dtype).scatter_add(0, places, values);
          bool at_once = false;
          const std::vector<Kernel> kernels = schedule({sum.uop()});
          for (const Kernel& kernel : kernels)
            for (const UOp& u : toposort(kernel.ast)) at_once = at_once || u.is(Op::AtomicAdd);
          const bool wide = item_size(dtype) >= 4;
          EXPECT_EQ(at_once,
                    wide && (is_float(dtype) ? asked && !strict : asked || device == "SIMT"));
          reset_counters();
          (void)sum.realize();
          EXPECT_EQ(static_cast<size_t>(counters().kernels), kernels.size());  // and no others
          const auto from = values.to("CPU").cast(DType::Float64).tolist<double>(),
                     got = sum.to("CPU").cast(DType::Float64).tolist<double>();
          if (!wide) continue;
          std::vector<double> want(static_cast<size_t>(k * columns));
          for (int64_t i = 0; i < d; ++i)
            for (int64_t c = 0; c < columns; ++c)
              if (const int64_t p = at[static_cast<size_t>(i)]; p < k)
                want[static_cast<size_t>(p * columns + c)] +=
                    from[static_cast<size_t>(i * columns + c)];
          EXPECT_EQ(got, want);  // small numbers: no sum rounds
        }
}

// What is added may be made of folds and of rows, whose partial results are not in what it is added
// to.
TEST(compositions, spec_C_scat_what_is_added_at_once_may_fold) {
  Options atomic = options();
  atomic.atomic_scatter = true;
  const Tensor at = Tensor::from<int32_t>({0, 1, 0, 0, 2});
  for (const std::string device : {"CPU", "INTERP", "SIMT"}) {
    atomic.device = device;
    const OptionScope scope(atomic);
    const Tensor x = Tensor::from<double>({3, 5, 1}), places = at.to(device);
    const Tensor slope = x.index_select(0, places).max().gradient({x})[0];
    EXPECT_EQ(slope.to("CPU").tolist<double>(), (std::vector<double>{0, 1, 0})) << device;
    const Tensor sums = small({3, 4}).index_select(0, places).sum({1}),
                 folded = Tensor::zeros({3}).scatter_add(0, places, sums);
    atomic.atomic_scatter = false;
    const OptionScope ordered(atomic);
    const Tensor expected = Tensor::zeros({3}).scatter_add(0, places, sums + Tensor(0.0));
    for (int64_t i = 0; i < 3; ++i)
      EXPECT_NEAR(folded.to("CPU").tolist<float>()[static_cast<size_t>(i)],
                  expected.to("CPU").tolist<float>()[static_cast<size_t>(i)], 1e-5)
          << device;
    atomic.atomic_scatter = true;
  }
}

// What is added at once adds in each turn of its loops, also of those that neither the place nor
// the value depends on, and no lane and no padding changes how often that is.
TEST(compositions, spec_C_scat_what_is_added_at_once_is_added_in_each_turn) {
  Options atomic = options();
  atomic.atomic_scatter = true;
  for (const std::string device : {"CPU", "INTERP", "SIMT"})
    for (const bool optimised : {true, false}) {
      atomic.device = device;
      atomic.noopt = !optimised;
      const OptionScope scope(atomic);
      // Which of 6 rows a column hits says a sum of numbers that the program knows; each column
      // counts four times.
      const Tensor row = Tensor::arange(0, 6, 1).cast(DType::Int32).reshape({6, 1, 1}),
                   hit = (row != Tensor::from<int32_t>({0, 0, 1, 0}).reshape({1, 1, 4})),
                   count = hit.expand({6, 4, 4}).cast(DType::Int32).sum({1, 2});
      EXPECT_EQ(count.to("CPU").tolist<int>(), (std::vector<int>{4, 12, 16, 16, 16, 16})) << device;
      const Tensor x = Tensor::zeros({3, 1, 2}).contiguous().requires_grad();
      const UOp at = Tensor::from<int64_t>({0, 1, 0, 0, 0}).uop(),
                beside = Tensor::zeros({2}, DType::Int32).uop();
      const Tensor slope =
          Tensor(UOp::make(Op::Index, {x.uop(), at, beside})).sum().gradient({x})[0];
      EXPECT_EQ(slope.to("CPU").tolist<float>(), (std::vector<float>{8, 8, 2, 2, 0, 0})) << device;
    }
}

// Of a fold by index along one axis the others share nothing: their turns are lanes and threads,
// and each place still takes its values in order. Columns fewer than lanes, no multiple of them,
// many.
TEST(compositions, spec_C_scat_rows_and_columns_beside_the_places) {
  std::mt19937_64 random(test_seed());
  auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  const OptionScope scope(options_with(IndexMode::Fill));
  for (const bool strict : {false, true})
    for (const int64_t rows : {1, 3, 32})
      for (const int64_t columns : {1, 5, 8, 9, 20, 64, 100}) {
        Options o = options();
        o.strict = strict;
        const OptionScope mode(o);
        SCOPED_TRACE(
            fmt::format("KOINE_TEST_SEED={} {} {} {}", test_seed(), rows, columns, strict));
        const int64_t k = 1 + below(40), d = 1 + below(120);
        std::vector<int32_t> at;
        for (int64_t j = 0; j < rows * d; ++j) at.push_back(static_cast<int32_t>(below(k + 2)));
        const Tensor places =
                         Tensor::from(at, {rows, d, 1}).expand({rows, d, columns}).contiguous(),
                     values = small({rows, d, columns}, 1).contiguous();
        const auto add = values.tolist<float>();
        std::vector<float> want(static_cast<size_t>(rows * k * columns), 0);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t j = 0; j < d; ++j)
            for (int64_t c = 0; c < columns; ++c)
              if (const int64_t p = at[static_cast<size_t>(r * d + j)]; p < k)
                want[static_cast<size_t>((r * k + p) * columns + c)] +=
                    add[static_cast<size_t>((r * d + j) * columns + c)];
        const Tensor got = Tensor::zeros({rows, k, columns}).scatter_add(1, places, values);
        EXPECT_EQ(got.tolist<float>(), want);
        if (columns < 10) expect_same_everywhere(got);
        // Each row its own positions, along the last axis.
        const Tensor along = places.transpose(1, 2).contiguous();
        EXPECT_EQ(Tensor::zeros({rows, columns, k})
                      .scatter_add(2, along, values.transpose(1, 2))
                      .transpose(1, 2)
                      .tolist<float>(),
                  want);
      }
}

TEST(compositions, scatter_add_and_scatter) {
  const OptionScope scope(options_with(IndexMode::Fill));
  const Tensor t = Tensor::zeros({5}), idx = Tensor::from<int32_t>({1, 1, 4, 9, 0}),
               v = Tensor::from<float>({1, 2, 3, 4, 5});
  EXPECT_EQ(t.scatter_add(0, idx, v).tolist<float>(), (std::vector<float>{5, 3, 0, 0, 3}));
  EXPECT_EQ(Tensor::ones({5}).scatter(0, idx, v).tolist<float>(),
            (std::vector<float>{5, 2, 1, 1, 3}));
}

// A sum starts from 0, so in strict mode a sum of -0 is 0; a gathered -0 stays -0 by default.
TEST(compositions, sums_of_minus_zero) {
  const Tensor x = Tensor::from<float>({-0.0F, 1}), idx = Tensor::from<int32_t>({0, 1, 0});
  for (const DType d : {DType::Float16, DType::Float32, DType::Float64}) {
    const Tensor zeros = Tensor(constant(d, -0.0)).expand({4, 3});
    expect_same_everywhere(zeros.sum({1}));
    expect_same_everywhere(zeros.tril().sum({1}));
    expect_same_everywhere((x.cast(d).pad({{0, 3}}) * Tensor(-2.0)).reshape({5, 1}).sum({1}));
    expect_same_everywhere(x.cast(d).gather(0, idx));
    expect_same_everywhere(x.cast(d).scatter_add(0, idx, zeros[0]));
    EXPECT_TRUE(std::signbit(x.cast(d).gather(0, idx).tolist<double>()[0]));
  }
}

}  // namespace koine::test

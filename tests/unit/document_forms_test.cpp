// The common compositions in the words of the specification: arange, gather, scatter_add and gemm
// as primitives, in every dtype that they are written in.
#include <algorithm>
#include <cmath>

#include "c_text.hpp"
#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/dialect.hpp"
#include "koine/render/llvm.hpp"

namespace koine::test {
namespace {

UOp shape_with(const std::vector<UOp>& dims) { return stack(dims); }

// prefix_sum of S0, on UOps: n may be symbolic.
UOp document_prefix_sum(const UOp& t) {
  const UOp n = t.dim(0), one = index_const(1), zero = index_const(0);
  const UOp wide = simplify_index(sub(add(n, n), one)), rows = simplify_index(add(n, one));
  UOp x = pad(t, shape_with({simplify_index(sub(n, one))}), shape_with({wide}),
              constant_int(t.dtype(), 0));
  x = expand(reshape(x, shape_with({one, wide})), shape_with({rows, wide}));
  x = reshape(x, shape_with({simplify_index(mul(rows, wide))}));
  const UOp twice = simplify_index(add(n, n));
  x = shrink(x, shape_with({zero}), shape_with({simplify_index(mul(twice, n))}));
  x = shrink(reshape(x, shape_with({n, twice})), shape_with({zero, zero}), shape_with({n, n}));
  return reshape(reduce(Op::Add, x, {1}), shape_with({n}));
}

UOp document_arange(const UOp& n, DType dtype) {
  const UOp ones = expand(reshape(constant_int(dtype, 1), shape_of({1})), shape_with({n}));
  return add(document_prefix_sum(ones), constant_int(dtype, -1));
}

// The same on Tensors, whose sum widens narrow dtypes.
Tensor document_arange(int64_t n, DType dtype) {
  Tensor x = Tensor(constant_int(dtype, 1)).reshape({1}).expand({n}).pad({{n - 1, 0}});
  x = x.reshape({1, 2 * n - 1}).expand({n + 1, 2 * n - 1}).reshape({(n + 1) * (2 * n - 1)});
  x = x.shrink({{0, 2 * n * n}}).reshape({n, 2 * n}).shrink({{0, n}, {0, n}});
  return x.sum({-1}) - Tensor(1);
}

int count_ops(const std::vector<Kernel>& kernels, Op op) {
  int n = 0;
  for (const Kernel& k : kernels)
    for (const UOp& u : toposort(k.ast)) n += u.is(op);
  return n;
}

std::vector<double> counting(int64_t n) {
  std::vector<double> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(static_cast<double>(i));
  return out;
}

}  // namespace

Array bound(int64_t n) { return {DType::Index, {}, {static_cast<Bits>(n)}, {}}; }

TEST(document_forms, spec_C_arange_folds_in_every_dtype) {
  in_both_modes([] {
    for (const DType d : stored_dtypes()) {
      if (d == DType::Bool) continue;
      for (const int64_t n : {1, 2, 7, 15, 100}) {
        // What is counted has to be exact in the dtype.
        if (is_float(d) && n >= int64_t{1} << significant_bits(d)) continue;
        SCOPED_TRACE(fmt::format("{} n={}", dtype_name(d), n));
        for (const UOp& a : {document_arange(index_const(n), d), document_arange(n, d).uop()}) {
          const auto kernels = schedule({a});
          EXPECT_EQ(kernels.size(), 1u);
          EXPECT_EQ(count_ops(kernels, Op::Reduce), 0);
          EXPECT_EQ(count_ops(kernels, Op::Load), 0);
          EXPECT_EQ(Tensor(a).tolist<double>(), counting(n));
        }
      }
    }
  });
}

TEST(document_forms, spec_C_arange_folds_with_symbolic_sizes) {
  in_both_modes([] {
    const UOp n = variable("n", 1, 100);
    for (const DType d :
         {DType::Int8, DType::UInt8, DType::Int32, DType::Int64, DType::Float16, DType::Float32}) {
      const UOp a = document_arange(n, d);
      const auto kernels = schedule({a});
      EXPECT_EQ(kernels.size(), 1u);
      EXPECT_EQ(count_ops(kernels, Op::Reduce), 0) << dtype_name(d) << to_text(kernels[0].ast);
      // Read at positions from 0 to beyond the end, where an Index reads 0.
      const UOp at = variable("at", 0, 120), element = index(a, {at});
      for (const int64_t size : {1, 2, 9, 100})
        for (const int64_t k : {0, 1, 5, 8, 99, 120}) {
          const double want = k < size ? static_cast<double>(k) : 0;
          const Array meant = interpret(element, {{n, bound(size)}, {at, bound(k)}});
          ASSERT_EQ(bits_to_double(d, meant.data[0]), want);
          for (const char* device : {"CPU", "INTERP"}) {
            Options o = options();
            o.device = device;
            const OptionScope scope(o);
            const Array got = array_of(realize({element}, {{"n", size}, {"at", k}})[0]);
            ASSERT_EQ(bits_to_double(d, got.data[0]), want) << device << " n=" << size << " " << k;
          }
        }
    }
  });
}

// A left fold of float16 ones stays at 2048, where 2049 is no float16: no product may replace it.
TEST(document_forms, counts_stop_where_the_dtype_does) {
  const OptionScope scope(strict_options());
  auto fold = [](double value, int64_t n, DType d) {
    return reduce(Op::Add, expand(reshape(constant(d, value), shape_of({1})), shape_of({n})), {0});
  };
  struct Case {
    DType dtype;
    double value;
    int64_t count;
    double sum;
  };
  for (const Case& c : std::vector<Case>{{DType::Float16, 1, 2047, 2047},
                                         {DType::Float16, 1, 2048, 2048},
                                         {DType::Float16, 1, 2050, 2048},
                                         {DType::Float16, -2, 1100, -2200},
                                         {DType::BFloat16, 1, 300, 256},
                                         {DType::Float8E4M3, 1, 20, 16},
                                         {DType::Float8E5M2, 1, 20, 8},
                                         {DType::Float8E4M3, 0, 500, 0},
                                         {DType::Int8, 1, 300, 44}}) {
    SCOPED_TRACE(fmt::format("{} times {} in {}", c.count, c.value, dtype_name(c.dtype)));
    const UOp sum = fold(c.value, c.count, c.dtype);
    expect_same_everywhere(sum);
    EXPECT_EQ(Tensor(sum).item(), c.sum);
  }
  // And of float32, at 2^24; 0.1 is never counted.
  const UOp large = fold(1, (1 << 24) + 2, DType::Float32);
  EXPECT_EQ(Tensor(large).item(), 0x1p24);
  EXPECT_NE(Tensor(fold(0.1, 10, DType::Float32)).item(), static_cast<double>(0.1F * 10));
}

// gather of S0: a one-hot mask along the gathered axis, a product, a sum.
Tensor document_gather(const Tensor& t, const Tensor& idx) {
  const int64_t k = t.size(0);
  const Tensor pos = document_arange(k, DType::Int32).reshape({k, 1});
  const Tensor mask = (pos == idx.reshape({1, -1})).cast(t.dtype());
  return (t.reshape({k, 1}) * mask).sum({0});
}

// scatter_add of S0.
Tensor document_scatter_add(const Tensor& t, const Tensor& idx, const Tensor& val) {
  const int64_t k = t.size(0), d = idx.size(0);
  const Tensor pos = document_arange(k, DType::Int32).reshape({k, 1});
  const Tensor mask = (pos == idx.reshape({1, d})).cast(t.dtype());
  return t + (mask * val.reshape({1, d})).sum({1});
}

// Scalar operations and bytes that a value costs, by the engine's own count while it runs.
Counters cost_of(const Tensor& value, const std::string& device = "CPU") {
  Options o = options();
  o.device = device;
  const OptionScope scope(o);
  reset_counters();
  (void)realize({UOp::make(Op::Contiguous, {value.uop()}, MarkArg{Mark::Copies})});
  return counters();
}

const std::vector<DType> float_dtypes{DType::Float8E4M3, DType::Float8E5M2, DType::Float16,
                                      DType::BFloat16,   DType::Float32,    DType::Float64};

TEST(document_forms, spec_C_gather_spec_amend_31_in_every_float_dtype) {
  const int64_t k = 512, d = 700;
  std::mt19937_64 random(test_seed());
  std::vector<int32_t> at;
  for (int64_t i = 0; i < d; ++i) at.push_back(static_cast<int32_t>(random() % 520) - 4);
  for (const DType dtype : float_dtypes) {
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    std::vector<double> table;
    for (int64_t i = 0; i < k; ++i) table.push_back(static_cast<double>(random() % 15) - 7);
    table[7] = dtype == DType::Float8E4M3 ? std::nan("") : inf;  // it has no infinity
    table[9] = std::nan("");
    for (int32_t& i : at)
      if (i == 7 || i == 9) i = 8;
    const Tensor t = Tensor::from(table, {k}).cast(dtype).realize(), idx = Tensor::from(at, {d});
    const Tensor out = document_gather(t, idx);
    const auto kernels = schedule({out.uop()});
    ASSERT_EQ(kernels.size(), 1u);
    EXPECT_EQ(count_ops(kernels, Op::Reduce), 0);
    EXPECT_EQ(count_ops(kernels, Op::Load), 2);
    const Counters cost = cost_of(out);
    EXPECT_LE(cost.operations, 8.0 * static_cast<double>(d));
    EXPECT_GE(cost.operations, static_cast<double>(d)) << "the kernel ran";
    EXPECT_LE(cost.bytes, static_cast<double>(d * 4 + (k + d) * item_size(dtype)));
    std::vector<double> want;
    for (const int32_t i : at) want.push_back(i < 0 || i >= k ? 0 : table[static_cast<size_t>(i)]);
    EXPECT_EQ(out.tolist<double>(), want) << "finite, and 0 out of range";
    const Array meant = interpret(out.uop(), bindings_of(out.uop()));
    EXPECT_EQ(difference(meant, run_on(out.uop(), "CPU")), "");
    EXPECT_EQ(difference(meant, run_on(out.uop(), "INTERP")), "");
  }
}

TEST(document_forms, spec_C_scat_spec_amend_31_in_every_float_dtype) {
  const int64_t k = 300, d = 500;
  std::mt19937_64 random(test_seed());
  std::vector<int32_t> at;
  for (int64_t i = 0; i < d; ++i) at.push_back(static_cast<int32_t>(random() % 310) - 5);
  at[3] = 11;
  for (const DType dtype : float_dtypes) {
    SCOPED_TRACE(std::string(dtype_name(dtype)));
    std::vector<double> base(static_cast<size_t>(k), 0), value;
    for (int64_t i = 0; i < d; ++i) value.push_back(static_cast<double>(random() % 3) - 1);
    value[3] = dtype == DType::Float8E4M3 ? std::nan("") : inf;
    const Tensor t = Tensor::from(base, {k}).cast(dtype).realize(),
                 v = Tensor::from(value, {d}).cast(dtype).realize(), idx = Tensor::from(at, {d});
    const Tensor out = document_scatter_add(t, idx, v);
    const double operations = cost_of(out).operations;
    EXPECT_LE(operations, 8.0 * static_cast<double>(k + d)) << "work is linear, not k * d";
    EXPECT_GE(operations, static_cast<double>(d)) << "the kernels ran";
    std::vector<double> want = base;
    for (size_t i = 0; i < value.size(); ++i)
      if (at[i] >= 0 && at[i] < k) want[static_cast<size_t>(at[i])] += value[i];
    const auto got = out.tolist<double>();
    for (size_t i = 0; i < want.size(); ++i)
      if (i != 11) {
        ASSERT_EQ(got[i], want[i]) << i;
      }
    EXPECT_FALSE(std::isfinite(got[11]));
    const Array meant = interpret(out.uop(), bindings_of(out.uop()));
    EXPECT_EQ(difference(meant, run_on(out.uop(), "CPU")), "");
    EXPECT_EQ(difference(meant, run_on(out.uop(), "INTERP")), "");
  }
}

// Twice the table and twice the indices cost twice the work and twice the bytes.
TEST(document_forms, spec_C_scat_spec_C_gather_grow_in_line) {
  auto cost = [](int64_t n, bool scatter) {
    std::vector<int32_t> at;
    for (int64_t i = 0; i < n; ++i) at.push_back(static_cast<int32_t>((i * 37) % n));
    const Tensor x(leaf({n}, DType::Float32, static_cast<uint64_t>(n))),
        idx = Tensor::from(at, {n});
    return cost_of(scatter ? document_scatter_add(x, idx, x * Tensor(0.5))
                           : document_gather(x, idx));
  };
  for (const bool scatter : {false, true}) {
    const Counters one = cost(1000, scatter), two = cost(2000, scatter);
    EXPECT_GE(one.operations, 1000);
    EXPECT_NEAR(two.operations / one.operations, 2, 0.1) << scatter;
    EXPECT_NEAR(two.bytes / one.bytes, 2, 0.1) << scatter;
  }
}

// A count of indices, and a sum of one of two constants, is a fold by index too.
TEST(document_forms, spec_C_scat_sums_of_constants_are_linear) {
  constexpr int64_t k = 90, d = 700;
  std::vector<int32_t> at;
  for (int64_t i = 0; i < d; ++i) at.push_back(static_cast<int32_t>(i * i % 97) - 3);
  std::vector<int> hits(k);
  for (const int32_t i : at)
    if (i >= 0 && i < k) ++hits[static_cast<size_t>(i)];
  const Tensor idx = Tensor::from(at, {1, d}), x(leaf({1, d}, DType::Int32));
  const Tensor same = Tensor::arange(k).reshape({k, 1}) == idx;
  auto check = [&](const char* what, const Tensor& out, auto&& want) {
    SCOPED_TRACE(what);
    EXPECT_LE(cost_of(out).operations, 12.0 * (k + d)) << "work is linear, not k * d";
    const auto got = out.tolist<double>();
    for (size_t i = 0; i < hits.size(); ++i) ASSERT_EQ(got[i], want(hits[i])) << i;
    expect_same_everywhere(out);
  };
  auto choice = [&](DType t, double hit, double miss) {
    return Tensor::where(same, Tensor::full({k, d}, hit, t), Tensor::full({k, d}, miss, t));
  };
  for (const DType t : {DType::Float32, DType::Int32, DType::Float64})
    check("count", same.cast(t).sum({1}), [](int n) { return n; });
  for (const DType t : {DType::Int32, DType::Float32}) {
    check("3 or 5", choice(t, 3, 5).sum({1}), [](int n) { return 3 * n + 5 * (d - n); });
    check("-4 or 4", choice(t, -4, 4).sum({1}), [](int n) { return 4 * (d - 2 * n); });
  }
  check("any", same.max({1}).cast(DType::Int32), [](int n) { return n > 0; });
  // A sum of bools has no differences to add.
  expect_same_everywhere(Tensor(reduce(Op::Add, choice(DType::Bool, 0, 1).uop(), {1})));
  // Sums that round are no such thing: each order of them has another result.
  EXPECT_GE(cost_of(choice(DType::Float32, 0.1, 0.3).sum({1})).operations, 1.0 * k * d);
  // Integers wrap.
  const Tensor mixed = Tensor::where(same, x, Tensor::full({k, d}, 7, DType::Int32)).sum({1});
  EXPECT_LE(cost_of(mixed).operations, 12.0 * (k + d));
  expect_same_everywhere(mixed);
}

// Everywhere else, and everywhere in strict mode, a product with a mask is a product.
TEST(document_forms, spec_amend_2_spec_amend_31_other_products_keep_ieee) {
  const Tensor x = Tensor::from<float>({1, static_cast<float>(inf), 3, 4}),
               at = Tensor::from<int32_t>({2, 0});
  auto has_nan = [](const Tensor& t) {
    const auto v = t.tolist<double>();
    const bool compiled = std::any_of(v.begin(), v.end(), [](double d) { return std::isnan(d); });
    const Array a = interpret(t.uop(), bindings_of(t.uop()));
    bool meant = false;
    for (const Bits b : a.data) meant = meant || std::isnan(bits_to_double(a.dtype, b));
    EXPECT_EQ(compiled, meant);
    return compiled;
  };
  EXPECT_FALSE(has_nan(document_gather(x, at)));
  EXPECT_FALSE(has_nan(document_scatter_add(Tensor::zeros({5}), at, x.shrink({{0, 2}}))));
  // A table of rows, a lone index, a mask that was moved, and one of positions among themselves.
  const Tensor rows = x.reshape({4, 1}).expand({4, 3});
  const Tensor hot = at.one_hot(4);
  EXPECT_FALSE(has_nan(hot.matmul(rows)));
  EXPECT_FALSE(has_nan(hot.cast(DType::Float16).matmul(rows.cast(DType::Float16))));
  EXPECT_FALSE(has_nan(
      document_scatter_add(Tensor::zeros({3}), Tensor::from<int32_t>({1}), x.shrink({{1, 2}}))));
  // Masks that are not one-hot, and sums along no axis of theirs.
  const Tensor below = (Tensor::arange(4) < Tensor(1)).cast(DType::Float32);
  EXPECT_TRUE(has_nan((below * x).sum()));
  EXPECT_TRUE(has_nan(((Tensor::arange(4) != Tensor(1)).cast(DType::Float32) * x).sum()));
  EXPECT_TRUE(has_nan(((x == x).logical_not().cast(DType::Float32) * x).sum()));
  EXPECT_TRUE(has_nan((hot.reshape({2, 4, 1}) * rows.reshape({1, 4, 3})).sum({2})))
      << "the sum runs along an axis that the mask does not have";
  for (const Tensor& t : {document_gather(x, at), hot.matmul(rows), (below * x).sum()})
    expect_same_everywhere(t);
  const OptionScope scope(strict_options());
  EXPECT_TRUE(has_nan(document_gather(x, at)));
  EXPECT_TRUE(has_nan(document_scatter_add(Tensor::zeros({5}), at, x.shrink({{0, 2}}))));
  expect_same_everywhere(document_gather(x, at));
  expect_same_everywhere(hot.matmul(rows));
}

// In the body of a Function, inlined or compiled for itself, and in a gradient.
TEST(document_forms, spec_amend_31_spec_F4_inside_of_functions_and_gradients) {
  const Tensor x = Tensor::from<float>({1, static_cast<float>(inf), 3, 4}),
               at = Tensor::from<int32_t>({2, 0, 2});
  for (const Resolve how : {Resolve::Substitute, Resolve::Precompile}) {
    const auto gather = koine::function(
        [](const Tensor& t, const Tensor& i) { return document_gather(t, i) * Tensor(2.0); }, how);
    const Tensor y = gather(x, at);
    EXPECT_EQ(y.tolist<float>(), (std::vector<float>{6, 2, 6}));
    expect_same_everywhere(y);
    Tensor w = Tensor::from<float>({1, 2, 3, 4}).requires_grad();
    const Tensor seeds = Tensor::from<float>({1, static_cast<float>(inf), 5});
    const Tensor grad = (gather(w, at) * seeds).sum().gradient({w})[0];
    EXPECT_EQ(grad.tolist<float>(), (std::vector<float>{static_cast<float>(inf), 0, 12, 0}));
    expect_same_everywhere(grad);
  }
}

// A Stack of constants is one vector literal in every text, whatever it is an operand of.
TEST(document_forms, spec_A6_a_stack_of_constants_is_one_literal) {
  const UOp x = leaf({4});
  auto with = [](double a, double b, double c, double d) {
    return stack(std::vector<UOp>{constant(DType::Float32, a), constant(DType::Float32, b),
                                  constant(DType::Float32, c), constant(DType::Float32, d)});
  };
  const UOp v = with(1.5, -0.0, 3, 4);
  const std::vector<UOp> values{add(x, v), mul(v, x), where(lt(x, v), v, x), fdiv(v, x)};
  CText cuda("cuda");
  for (const UOp& value : values) {
    expect_same_everywhere(value);
    const LoweredKernel k = lower_kernel(schedule({value})[0].ast, generic_target(false));
    EXPECT_EQ(k.name, "e_u4");
    const std::string c = render("c", "k", k.linear, false),
                      llvm = render_llvm_text(k.linear, "k", generic_target(false));
    EXPECT_NE(c.find("[4] = {0x1.8p+0f, -0x0p+0f, 3.0f, 4.0f};"), std::string::npos) << c;
    EXPECT_NE(llvm.find("<float 1.500000e+00, float -0.000000e+00, "
                        "float 3.000000e+00, float 4.000000e+00>"),
              std::string::npos)
        << llvm;
    const std::vector<Opt> lanes{{OptOp::Split, 0, 4, AxisType::Upcast, false}};
    for (const char* language : {"opencl", "cuda"}) {
      const Target target = text_target(language, false);
      const UOp linear = lower_kernel(schedule({value})[0].ast, target, {}, &lanes).linear;
      const std::string text = render(language, "k", linear, false);
      EXPECT_NE(text.find(" = {0x1.8p+0f, -0x0p+0f, 3.0f, 4.0f};"), std::string::npos) << text;
    }
    cuda.add(value, interpret_bounded(value, bindings_of(value)), KernelEdits{0, lanes});
    const size_t selects = value.is(Op::Where) ? 1 : 0;
    size_t found = 0, choices = 0;
    for (size_t at = 0; (at = llvm.find("select ", at)) != std::string::npos; ++at) ++found;
    for (size_t at = 0; (at = c.find(" ? ", at)) != std::string::npos; ++at) ++choices;
    EXPECT_EQ(found, selects) << llvm;
    EXPECT_EQ(choices, selects) << c;
  }
  cuda.check();
  // Constants among themselves are computed at once; four times the same is no vector.
  const UOp sums = add(x, mul(v, add(v, constant(DType::Float32, 1))));
  const std::string c =
      render("c", "k", lower_kernel(schedule({sums})[0].ast, generic_target(false)).linear, false);
  EXPECT_NE(c.find("[4] = {0x1.ep+1f, -0x0p+0f, 12.0f, 20.0f};"), std::string::npos) << c;
  expect_same_everywhere(sums);
  expect_same_everywhere(add(x, mul(v, with(0, 1, 0, 0))));
  expect_same_everywhere(add(leaf({3, 4}), v));
  expect_same_everywhere(add(leaf({4, 5}), reshape(v, shape_of({4, 1}))));
}

}  // namespace koine::test

// The common compositions in the words of the specification: arange, gather, scatter_add and gemm
// as primitives, in every dtype that they are written in.
#include <cmath>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine::test {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

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

// Both modes, one after the other.
template <class Body>
void in_both_modes(const Body& body) {
  for (const bool strict : {true, false}) {
    Options o = options();
    o.strict = strict;
    const OptionScope scope(o);
    SCOPED_TRACE(strict ? "strict" : "default");
    body();
  }
}

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

}  // namespace koine::test

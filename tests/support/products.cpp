#include "products.hpp"

#include <algorithm>
#include <cmath>

#include "check.hpp"
#include "koine/ir/build.hpp"

namespace koine::test {
namespace {

constexpr double wild[] = {INFINITY, NAN, -0.0, 65504, 6e-8};

// T folds as strict mode does, in float or integers, or in double.
template <class T>
std::vector<double> by_loops(const Gemm& g, int64_t every) {
  const std::vector<double> x = g.left(), y = g.right();
  std::vector<double> out;
  for (int64_t element = 0; element < g.m * g.n; element += every) {
    const int64_t i = element / g.n, j = element % g.n;
    T total = 0;
    for (int64_t l = 0; l < g.k; ++l) {
      double v = x[static_cast<size_t>(i * g.k + l)];
      if (g.around) v = std::max(v, 1.0);
      const int64_t at = g.transposed ? j * g.k + l : l * g.n + j;
      const auto product = static_cast<T>(v * y[static_cast<size_t>(at)]);
      total = g.k == 1 ? product : total + product;  // a sum of one element is that element
    }
    out.push_back(static_cast<double>(g.around ? std::max<T>(total - 3, 0) : total));
  }
  return out;
}

}  // namespace

UOp Gemm::ast() const {
  const UOp i = m == 1 ? index_const(0) : range(0, index_const(m), AxisType::Loop),
            j = range(1, index_const(n), AxisType::Loop),
            l = range(2, index_const(k), AxisType::Reduce);
  const UOp out = param(0, shape_of({m * n}), sum), left = param(1, shape_of({m * k}), a),
            right = param(2, shape_of({k * n}), b);
  UOp x = load(index(left, {add(mul(i, index_const(k)), l)}));
  if (around) x = maximum(x, constant_int(a, 1));
  const UOp y = load(
      index(right, {transposed ? add(mul(j, index_const(k)), l) : add(mul(l, index_const(n)), j)}));
  UOp total = reduce_ranges(Op::Add, mul(cast(x, sum), cast(y, sum)), {l});
  if (around) total = maximum(add(total, constant_int(sum, -3)), constant_int(sum, 0));
  const std::vector<UOp> loops = m == 1 ? std::vector<UOp>{j} : std::vector<UOp>{i, j};
  return sink({end(store(index(out, {add(mul(i, index_const(n)), j)}), total), loops)});
}

std::vector<double> Gemm::numbers(int64_t count, DType dtype, uint64_t salt) const {
  std::mt19937_64 random(test_seed() + salt);
  std::vector<double> out;
  for (int64_t at = 0; at < count; ++at) {
    const auto whole = static_cast<double>(random() % 7);
    double v = kind == FactorKind::Any ? whole / 3 - 0.9 : whole - 3;
    if (is_integer(dtype) && !is_signed(dtype)) v = whole;
    if (kind == FactorKind::Wild && random() % 6 == 0) v = wild[random() % std::size(wild)];
    out.push_back(is_float(dtype) ? bits_to_double(dtype, double_to_bits(dtype, v)) : v);
  }
  return out;
}

std::vector<std::byte> in_memory(const std::vector<double>& values, DType dtype) {
  std::vector<std::byte> out(values.size() * static_cast<size_t>(item_size(dtype)) + 8);
  for (size_t i = 0; i < values.size(); ++i)
    write_element(out.data(), dtype, static_cast<int64_t>(i),
                  is_float(dtype) ? double_to_bits(dtype, values[i])
                                  : int_to_bits(dtype, static_cast<int64_t>(values[i])));
  return out;
}

std::string problem_of(const Gemm& g, const std::vector<std::byte>& out, bool strict,
                       int64_t every) {
  const bool exact = strict || g.kind != FactorKind::Any || is_integer(g.sum);
  const std::vector<double> expected = is_integer(g.sum) ? by_loops<int32_t>(g, every)
                                       : exact           ? by_loops<float>(g, every)
                                                         : by_loops<double>(g, every);
  for (size_t i = 0; i < expected.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) * every;
    const Bits bits = read_element(out.data(), g.sum, at);
    const double got = is_float(g.sum) ? bits_to_double(g.sum, bits)
                                       : static_cast<double>(bits_to_int(g.sum, bits));
    const bool same = std::isnan(expected[i]) ? std::isnan(got)
                      : exact ? got == expected[i] && std::signbit(got) == std::signbit(expected[i])
                              : std::abs(got - expected[i]) <= 0x1p-22 * static_cast<double>(g.k);
    if (!same)
      return fmt::format("{}x{}x{}: element {} is {}, not {}; KOINE_TEST_SEED={}", g.m, g.n, g.k,
                         at, got, expected[i], test_seed());
  }
  return {};
}

}  // namespace koine::test

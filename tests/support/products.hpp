#pragma once
#include <string>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/lower/optimize.hpp"

// Matrix products as kernels, for tests of tensor cores.
namespace koine::test {

enum class FactorKind : uint8_t {
  Whole,  ///< small: their sums are exact
  Any,
  Wild  ///< whole ones, and NaN, infinity and the limits of float16 among them
};

/// out = a * b, a kernel as Rangeify leaves it, with what a test asks for besides.
struct Gemm {
  int64_t m, n, k;
  DType a = DType::Float16, b = DType::Float16, sum = DType::Float32;
  FactorKind kind = FactorKind::Whole;
  bool transposed = false;  ///< b lies by columns
  bool around = false;      ///< a is max(a, 1), and the result max(result - 3, 0)

  /// out in slot 0, a in slot 1, b in slot 2; axes 0 and 1 are rows and columns, 2 is summed. One
  /// row is no axis.
  UOp ast() const;
  /// Random, by the test's seed.
  std::vector<double> left() const { return numbers(m * k, a, 1); }
  std::vector<double> right() const { return numbers(k * n, b, 2); }

 private:
  std::vector<double> numbers(int64_t count, DType dtype, uint64_t salt) const;
};

std::vector<std::byte> in_memory(const std::vector<double>& values, DType dtype);

/// Empty, or what is wrong with a result, beside loops that know nothing of kernels: strict sums
/// and whole numbers have these bits, others a few roundings. Of large products each `every`-th
/// element is looked at.
std::string problem_of(const Gemm& g, const std::vector<std::byte>& out, bool strict,
                       int64_t every = 1);

/// The edit TC(axis, (core, opt, mode)).
inline Opt tc(int axis, int core = -1, int opt = 0, int mode = 1) {
  return {.op = OptOp::TC, .axis = axis, .tc = {core, opt, mode}};
}

}  // namespace koine::test

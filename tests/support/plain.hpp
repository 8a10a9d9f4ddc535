#pragma once
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "check.hpp"

// Values written from the definition of a method: loops over numbers that are wider than any dtype.
namespace koine::test {

using Real = long double;
using Place = std::vector<int64_t>;

/// A row-major array of numbers, and the dtype that a tensor of them has.
struct Plain {
  DType dtype = DType::Float32;
  Shape shape;
  std::vector<Real> at;
  Real operator()(const Place& index) const;
  int64_t size(size_t axis) const { return shape[axis]; }
};

int64_t count_of(const Shape& shape);
/// The index of an element, given its place in row-major order.
Place place_of(const Shape& shape, int64_t place);
/// The array whose elements are value(index).
Plain plain(DType dtype, const Shape& shape, const std::function<Real(const Place&)>& value);
/// The numbers as a row.
Plain row_of(DType dtype, const std::vector<Real>& values);

/// Its element in a result that it broadcasts to.
Real broadcast(const Plain& x, const Place& place);
/// Of two numbers; a NaN is larger, and smaller, than all.
Real larger(Real a, Real b);
Real smaller(Real a, Real b);
/// Every dtype but the wide integers and narrow floats.
inline constexpr DType number_dtypes[] = {DType::Float32, DType::Float64, DType::Int32,
                                          DType::UInt8, DType::Bool};

/// Multiples of 1/4 from -4 to 4 (of integers, whole numbers; of unsigned ones, from 0): sums of
/// products of some thousands of them are exact in float32.
Plain exact_numbers(std::mt19937_64& random, DType dtype, const Shape& shape);
/// The same, of which one float in `every` is NaN, an infinity or -0.
Plain special_numbers(std::mt19937_64& random, DType dtype, const Shape& shape, int every = 5);

/// On the default device.
Tensor tensor_of(const Plain& x);

/// How far a result may lie from its definition: `units` in the last place of the larger of the
/// value and `scale`. 0 units: the definition's value, rounded once.
struct Within {
  double units = 0;
  Real scale = 0;
  bool signs = false;  ///< whether -0 and 0 differ
};
/// Empty if shape, dtype and values are those of the definition, NaN for NaN; else the first
/// difference in words.
std::string difference(const Plain& want, const Tensor& got, const Within& within = {});

/// Expects these very numbers, NaN for NaN, signs of zeros included.
void expect_exactly(const Tensor& got, const std::vector<double>& wanted);

/// Runs `action` in both modes: interpreted kernels in strict mode; in default mode compiled ones
/// or, with `quick`, interpreted ones. What stages make of quick rows is not run beside their
/// input, which takes dozens of times as long.
void on_both(bool quick, const std::function<void()>& action);

}  // namespace koine::test

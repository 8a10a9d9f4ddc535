#pragma once
#include "koine/ir/build.hpp"

// Compositions that rules of transforms are made of.
namespace koine {

/// 0, 1, ..., n-1 of a dtype: the spec's prefix sum of ones, less one. The compiler folds it to an
/// index expression.
UOp iota(int64_t n, DType dtype);
/// The same for an index scalar, which may be symbolic.
UOp iota(const UOp& size, DType dtype);

/// Sums `value` to `shape`, which broadcasts to it: the cotangent of broadcasting.
UOp sum_to(const UOp& value, const UOp& shape);
/// The same elements, each as often as the shape has it.
UOp broadcast_to(const UOp& value, const UOp& shape);
/// A number in every place of a value's shape, in its dtype.
UOp filled_like(const UOp& value, double number);
/// A number of a value's dtype, which broadcasts to its shape.
inline UOp like(const UOp& value, double number) { return constant(value.dtype(), number); }
/// A scalar in every place of a shape.
UOp spread(const UOp& scalar, const UOp& shape);
/// The axis `from` moved to `to`; the others keep their order.
UOp moved_axis(const UOp& value, size_t from, size_t to);
/// All axes of a value.
Ints all_axes(const UOp& value);

/// `g x`, which is x where g is 1 in every place, as the cotangent of a sum is.
UOp times(const UOp& g, const UOp& x);
/// For each element the product of the others along `axes`: without a quotient, so that zeros are
/// no special case, in derivatives of no order.
UOp product_of_others(const UOp& x, const Ints& axes);
/// Of where(x > 0, x, max(detach(x), 0)) the condition, read from the result, so that nothing has
/// to keep x; of another Where its condition.
UOp where_condition(const UOp& node);

}  // namespace koine

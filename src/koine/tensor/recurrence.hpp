#pragma once
#include "koine/tensor/tensor.hpp"

// Linear recurrences along the last axis: what derivatives of running products are. Each is a
// kernel made by hand, of one step an element, and its derivatives are recurrences again: without
// a quotient, so that zeros are no special case, in derivatives of no order.
namespace koine::tensor {

/// r[j] = terms[j] + factors[j] r[j - 1], of floats of one dtype and shape.
Tensor recurrence(const Tensor& factors, const Tensor& terms);
/// Its transpose: r[j] = terms[j] + factors[j + 1] r[j + 1].
Tensor recurrence_back(const Tensor& factors, const Tensor& terms);

/// What stands before each element along the last axis; before the first `first`.
Tensor shifted(const Tensor& x, double first);

}  // namespace koine::tensor

#pragma once
#include <span>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// Cotangents of `targets` (any nodes below the outputs) for cotangents of the outputs; null where
/// an output does not depend on a target. Each op's rule is one row of a table (gradient.cpp); an
/// op without a rule is an Error that names it. Corners as amendment C40: ties in Max split evenly.
std::vector<UOp> gradient(std::span<const UOp> outputs, std::span<const UOp> cotangents,
                          std::span<const UOp> targets);

/// Whether an op has a row in that table.
bool has_gradient_rule(Op op);

/// 0, 1, ..., n-1 of a dtype: the spec's prefix sum of ones, less one. The compiler folds it to an
/// index expression.
UOp iota(int64_t n, DType dtype);
/// The same for an index scalar, which may be symbolic.
UOp iota(const UOp& size, DType dtype);

/// Sums `value` to `shape`, which broadcasts to it: the cotangent of broadcasting.
UOp sum_to(const UOp& value, const UOp& shape);

}  // namespace koine

#pragma once
#include <cstdint>
#include <limits>

#include "koine/ir/dtype.hpp"
#include "koine/ir/uop.hpp"

// What default mode may do to floats, in numbers: the one statement of it in code, and
// docs/switches.md in words. Bounds of whole graphs (interp/bounded) and of kernels
// (interp/deviation) follow from it.
namespace koine {

/// What a stage may do to floats in default mode. None of it: all deviations are 0.
struct Liberties {
  bool reorder = false;   ///< the elements of a Reduce, in any order
  bool contract = false;  ///< a product that is added to something stays unrounded
  bool any() const { return reorder || contract; }
  bool operator==(const Liberties&) const = default;
  Liberties operator|(const Liberties& other) const {
    return {reorder || other.reorder, contract || other.contract};
  }
};

/// A deviation of which nothing is promised.
constexpr double undetermined = std::numeric_limits<double>::infinity();

/// A float dtype's significand, its largest number and its smallest subnormal.
struct Precision {
  int digits;
  double largest, tiny;
  double unit() const;  ///< roundoff: half a unit in the last place of 1
};
Precision precision_of(DType dtype);

/// Whether a product may stay unrounded: narrow floats round after every op.
bool may_contract(DType dtype);

/// What an Add or Mul of a Reduce folds in: sums and products of narrow floats in float32, rounded
/// once at the end.
DType fold_dtype(DType dtype);

/// Units in the last place that the functions of docs/switches.md may err by; 0: no such function.
double stated_ulps(Op op, DType dtype);

/// Of an Exp2 or Log2: 2, or e where its arg says so.
double exponential_base(const UOp& function);

/// How far the default order of a reduce of n float elements may be from the real result: for Add
/// times the sum of magnitudes, for Mul times the product. A sum of products may be a matrix
/// product.
double reorder_bound(Op op, DType dtype, int64_t n, bool of_products);

}  // namespace koine

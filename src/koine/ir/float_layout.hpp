#pragma once
#include "koine/ir/dtype.hpp"

namespace koine {

/// How a float narrower than 32 bits is stored: a sign, an exponent with a bias, a mantissa.
struct FloatLayout {
  int mantissa;  ///< bits
  int bias;
  int exponent_mask;
  bool has_infinity;  ///< else only the last mantissa of the largest exponent is no number: NaN

  /// Largest exponent field of a finite value.
  int exponent_max() const { return has_infinity ? exponent_mask - 1 : exponent_mask; }
  double largest() const;  ///< finite value
};

FloatLayout layout_of(DType narrow);
/// The largest finite value of any float.
double largest_float(DType dtype);

}  // namespace koine

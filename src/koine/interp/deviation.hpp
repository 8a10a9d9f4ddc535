#pragma once
#include <span>

#include "koine/interp/liberties.hpp"
#include "koine/interp/value.hpp"

// How far the default mode's liberties (docs/switches.md) may take a value from what the
// interpreter computes: a running error analysis beside the interpretation. 0 says that every
// legal evaluation gives the same bits, infinity that nothing is promised (an integer that was
// rounded from such a float, a sum that overflows in one order and not in another).
namespace koine {

/// A scalar with its deviation, and what its rounding took from it if it is a product.
struct Deviating {
  Bits bits = 0;
  double deviation = 0;
  double residual = 0;
};

/// The deviation (and residual) of an elementwise op on operands, whose result on their bits is
/// `result`.
Deviating deviate(const UOp& node, Bits result, std::span<const Deviating> operands,
                  const Liberties& liberties);

/// An ascending left fold that keeps what it needs for the bound on any other order.
class Fold {
 public:
  Fold(Op op, DType dtype, Liberties liberties);
  /// Folds onto a value that is there already.
  void start_from(const Deviating& value);
  void add(const Deviating& value);
  /// `from_identity`: of two elements or more the first is folded onto the identity.
  Deviating result(bool from_identity) const;

 private:
  void add_float(const Deviating& value, double x);
  double sum_deviation(double result) const;
  double product_deviation(double result) const;

  Op op_;
  DType dtype_;
  ScalarOp fold_;
  Liberties liberties_;
  int64_t count_ = 0;
  Bits first_ = 0, from_first_ = 0, from_identity_ = 0;
  double first_deviation_ = 0;
  double deviations_ = 0, largest_deviation_ = 0, residuals_ = 0, relative_ = 0;
  double magnitude_ = 0;  // of the finite elements
  bool nan_ = false, positive_infinity_ = false, negative_infinity_ = false, zero_ = false;
  double grows_ = 0, shrinks_ = 0;  // logarithms of the elements above and below 1
  int lowest_bit_ = 4096;           // exponent of the last bit that any element uses
  int64_t digits_ = 0;              // of all elements together
};

}  // namespace koine

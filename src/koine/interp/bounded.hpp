#pragma once
#include <string>
#include <unordered_map>
#include <vector>

#include "koine/interp/interp.hpp"
#include "koine/interp/liberties.hpp"

// What default mode may make of a tensor graph. Beside the strict value of each element stands how
// far another execution may be from it: 0 where no liberty was taken, so that most results are
// still compared bit for bit; infinity where the liberties decide a comparison, a position or a
// class.
namespace koine {

struct BoundedArray {
  Array value;                ///< the strict one
  std::vector<double> error;  ///< one an element; empty: all 0
  /// How much further off it may be inside of a sum that takes a product before its rounding, where
  /// the value is not in memory; empty: all 0.
  std::vector<double> slack = {};
};

/// Whether a value is a product, seen through movement, masks and casts.
bool adds_products(const UOp& value);

/// Whether default mode may change any bit of a graph's value.
bool has_liberties(const UOp& root);

/// What Buffers, Params and Variables stand for, and how far that may be off.
using BoundedBindings = std::unordered_map<UOp, BoundedArray>;

/// The strict value with its bound, through Functions, stores and all that a tensor graph may hold.
BoundedArray interpret_bounded(const UOp& root, const BoundedBindings& bindings);
BoundedArray interpret_bounded(const UOp& root, const Bindings& bindings);

/// Empty when `got` lies within the bound (bit for bit where that is 0, NaNs equal as a class);
/// else the first difference in words.
std::string difference(const BoundedArray& expected, const Array& got);

}  // namespace koine

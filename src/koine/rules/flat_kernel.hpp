#pragma once
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// A kernel made by hand, as the stages after Rangeify take it.
struct FlatKernel {
  UOp ast;                  ///< over flat memory; elements are loaded, none out of bounds
  std::vector<bool> whole;  ///< of each result: whether every element of it is stored
};

/// Of a kernel whose Params have the shapes of its results and arguments: `index(p, {i, j})` is an
/// element of one, and a value where a value is wanted. What is not proven to be in bounds reads 0,
/// and is not stored (amendment C28). Loops over all elements of what they store may run in any
/// order; others, and those of types other than LOOP and REDUCE, stay as they are written. Throws
/// Error (Value) where an element of a result is read that no After says has been stored.
FlatKernel flat_kernel(const UOp& kernel);

}  // namespace koine

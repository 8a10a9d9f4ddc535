#pragma once
#include <optional>
#include <span>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/target/tensor_core.hpp"

// Kernels on tensor cores: a Reduce that names a core before Expand, a Wmma behind it.
namespace koine {

/// The two factors of what a Reduce sums, in the dtypes that they had before they were converted,
/// and which elements count (null: all).
struct Factors {
  UOp x, y, counts;
};
/// Null factors: what is summed is no such product.
Factors factors_of(const UOp& reduce);

/// The ranges of a kernel that are the axes of its tensor core: those of type WARP, the last UPCAST
/// and, of the Reduce, the last UNROLL.
struct CoreRanges {
  std::vector<UOp> threads, elements;
  UOp step;
  /// The axis of the accumulator that a range counts along; null: none.
  const CoreAxis* axis_of(const TensorCore& core, const UOp& range) const;
};

/// A Reduce on a tensor core, as the core sees it: x is A, y is B.
struct CoreSum {
  const TensorCore* core;
  CoreRanges ranges;
  Factors factors;
};
/// Nothing where the core is not known, or the kernel's ranges (outermost first) and factors are
/// not what it multiplies.
std::optional<CoreSum> sum_on_core(const UOp& reduce, std::span<const UOp> ranges);

/// Whether a Wmma is of whole vectors, as Select leaves it.
bool is_flat(const UOp& wmma);

/// A Wmma of one thread as what it means: accumulator + A * B, folded in ascending order over the
/// axes that the accumulator lacks.
UOp as_sum(const UOp& wmma);

/// A kernel with those Wmmas as sums that have no instruction.
UOp without_software_cores(const UOp& kernel);

}  // namespace koine

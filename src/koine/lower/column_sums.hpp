#pragma once
#include <optional>
#include <vector>

#include "koine/lower/loop_order.hpp"

namespace koine {

/// The sums of a kernel, taken apart: what a kernel over rows may add up of them where it goes over
/// these rows anyway, and what is left.
struct ColumnSums {
  UOp begun;                 ///< over the loops of the rows: Stores of what is added up
  UOp rest;                  ///< the kernel, with sums of partial ones in place of its own
  std::vector<UOp> partial;  ///< Params of both that stand for partial sums, by slot
  UOp loop;                  ///< of the rows: a partial sum is of some steps of it
  int64_t steps = 0;         ///< so many
  bool go_on_alike(const ColumnSums& other) const {
    return loop == other.loop && steps == other.steps;
  }
};

/// Gradients of the weights of a layernorm beside that of its input, or of a bias beside that of
/// what it was added to. Null where the sums of `columns` do not run over the outer loops of
/// `rows`, where what both go over has no more than `cached_bytes`, where partial sums take more of
/// memory than that, and where they are too long to stay in a cache from one row to the next.
std::optional<ColumnSums> column_sums(const Placed& rows, const Placed& columns,
                                      int64_t cached_bytes);

/// The kernel of the rows with `begun` in it, whose Stores into partial sums add up: of the steps
/// that one is of the first stores, and each later one adds to what lies there.
UOp add_up(const UOp& kernel, const ColumnSums& sums);

}  // namespace koine

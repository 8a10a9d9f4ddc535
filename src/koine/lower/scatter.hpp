#pragma once
#include <optional>

#include "koine/ir/uop.hpp"

namespace koine {

/// A sum over d of (k == e(d) ? v(d) : 0) that a kernel computes for every k of one of its loops.
struct ScatterSum {
  UOp reduce;  ///< the Reduce
  UOp axis;    ///< the loop k
  UOp at;      ///< e(d)
  UOp gate;    ///< further conditions on d; null: none
  UOp value;   ///< v(d)
};

/// The first such sum in a kernel; it costs (size of k) * (size of d) as it stands.
std::optional<ScatterSum> find_scatter(const UOp& ast);

/// The kernel "store the sum" with work k + d: its output is zeroed, then each d adds its value
/// where it belongs, in ascending order (row C-scat). The Store's value must be the Reduce itself.
UOp scatter_kernel(const UOp& ast, const ScatterSum& sum);

}  // namespace koine

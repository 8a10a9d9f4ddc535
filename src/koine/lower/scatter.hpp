#pragma once
#include <optional>
#include <span>
#include <vector>

#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// A fold over d of (k == e(d) ? v(d) : m) that a kernel computes for every k of one of its loops:
/// a maximum of values >= m, or a sum that misses of 0 do not change. A sum with other misses that
/// repeats exactly (integers, small whole floats) is one of v(d) - m over what the misses sum to.
struct Scatter {
  UOp reduce;  ///< the Reduce
  UOp axis;    ///< the loop k
  UOp at;      ///< e(d)
  UOp gate;    ///< further conditions on d; null: none
  UOp value;   ///< what is folded in: v(d), or v(d) - m
  UOp miss;    ///< a constant: what stands in a place before
};

/// The first such fold in a value inside of loops; it costs (size of k) * (size of d) as it stands.
std::optional<Scatter> find_scatter(const UOp& value, std::span<const UOp> loops);

/// The kernels in place of one that stores such a fold and nothing else, with work k + d (row
/// C-scat). By default one: its output is filled with the miss, then each d folds its value in
/// where it belongs, in ascending order. The loops that no place decides stand around both, as
/// GLOBAL: their turns share nothing. Two where the order of a sum may be left to the threads,
/// which add by AtomicAdd: on devices with groups of threads where it changes no bit, and where it
/// was asked for
/// (`KOINE_SCATTER=atomic`), but for floats in strict mode. Other kernels come back as they are.
std::vector<UOp> scatter_kernels(const UOp& ast, const CompileOptions& how);

}  // namespace koine

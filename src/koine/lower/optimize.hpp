#pragma once
#include <string>
#include <vector>

#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace koine {

enum class OptOp : uint8_t { Split, Padto, Swap, Nolocals };

/// One edit of a kernel's loop nest. `axis` counts the kernel's ranges in nesting order.
struct Opt {
  OptOp op;
  int axis = 0;
  int64_t amount = 0;  ///< Split: factor, 0: all of it; Padto: multiple; Swap: the other axis
  AxisType target = AxisType::Loop;  ///< Split: type of the new axis
  bool top = false;                  ///< Split: the new axis is the outer one
  bool operator==(const Opt&) const = default;
};
std::string opt_text(const Opt& opt);

/// The ranges of a kernel, outermost first.
std::vector<UOp> kernel_ranges(const UOp& ast);

/// The loops (Ends) that fill LOCAL memory: they stand inside of a kernel's loops, once for each
/// row, and each thread and each lane has rows of its own.
std::vector<UOp> row_fills(const UOp& ast);
/// Whether an axis is a loop of one of them.
bool is_listed(const std::vector<UOp>& fills, const UOp& axis);
/// Whether Ranges of this type become an axis of values: lanes, or elements side by side.
bool becomes_shape(AxisType type);

/// Whether several elements of a reduction axis may be folded at once: not where the reduce is in a
/// float narrower than 32 bits, which rounds at every step.
bool may_fold_lanes(const UOp& ast, const UOp& axis);

/// Applies one edit. Throws Error naming the axis and the reason where it is not legal: a factor
/// that does not divide, a target type that this axis type may not become (the table of the spec,
/// widened by amendment C24), an axis so long that indices might leave 64 bits, and for a machine
/// with groups of threads what these cannot do (`lower/group_limits`).
UOp apply_opt(const UOp& ast, const Opt& opt, const Groups& groups = {});
/// Whether an edit is legal, so that `apply_opt` does not throw.
bool can_apply(const UOp& ast, const Opt& opt, const Groups& groups = {});
/// `apply_opt`, or null for an edit that is not legal.
UOp apply_if_legal(const UOp& ast, const Opt& opt, const Groups& groups = {});

/// Merges neighbouring loops that are only ever used together.
UOp merge_ranges(const UOp& ast);

/// Stage 3: merge_ranges, then the heuristic's edits.
UOp optimize(const UOp& ast, const Target& target, std::vector<Opt>* applied = nullptr,
             const CompileOptions& how = compile_options());

}  // namespace koine

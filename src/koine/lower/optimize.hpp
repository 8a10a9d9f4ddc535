#pragma once
#include <span>
#include <string>
#include <vector>

#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace koine {

enum class OptOp : uint8_t { Split, Padto, Swap, Nolocals, TC, Stage };

/// What TC takes besides the reduction axis.
struct CoreChoice {
  int core = -1;  ///< by its place among the target's; -1: the first that fits
  int opt = 0;    ///< 0: both factors lie in memory; 1: they may be computed; 2: and axes padded
  int mode = 1;   ///< 1: by the tensor core; 2: the same axes, computed by other instructions
  bool operator==(const CoreChoice&) const = default;
};

/// One edit of a kernel's loop nest. `axis` counts the kernel's ranges in nesting order.
struct Opt {
  OptOp op;
  int axis = 0;
  int64_t amount = 0;  ///< Split: factor, 0: all of it; Padto: multiple; Swap: the other axis
  AxisType target = AxisType::Loop;  ///< Split: type of the new axis
  bool top = false;                  ///< Split: the new axis is the outer one
  CoreChoice tc = {};                ///< TC
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
/// widened by amendment C24), an axis so long that indices might leave 64 bits, what a machine with
/// groups of threads cannot do (`lower/group_limits`), and what no tensor core of the target
/// computes (`lower/tensor_core`).
UOp apply_opt(const UOp& ast, const Opt& opt, const Target& target = {});
/// Whether an edit is legal, so that `apply_opt` does not throw.
bool can_apply(const UOp& ast, const Opt& opt, const Target& target = {});
/// `apply_opt`, or null for an edit that is not legal.
UOp apply_if_legal(const UOp& ast, const Opt& opt, const Target& target = {});
/// All of them, from left to right; TC stands first or not at all.
UOp apply_opts(const UOp& ast, std::span<const Opt> opts, const Target& target = {});

/// Merges neighbouring loops that are only ever used together.
UOp merge_ranges(const UOp& ast);

/// Stage 3: merge_ranges, then the heuristic's edits.
UOp optimize(const UOp& ast, const Target& target, std::vector<Opt>* applied = nullptr,
             const CompileOptions& how = compile_options());

}  // namespace koine

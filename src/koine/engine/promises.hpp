#pragma once
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// What values promise about positions that the user gave (Assume), with the arguments of Functions
/// in their places. What holds by itself is not among them.
std::vector<UOp> promises_of(const std::vector<UOp>& values);

/// One UInt8: whether any of these promises is broken.
UOp any_broken(const std::vector<UOp>& promises);

/// Computes whether they are kept and throws like `report_broken` where one is not.
void check_promises(const std::vector<UOp>& values, const VariableValues& variables);
/// `any_broken` once it has been looked at: a program in which this comes first goes on where it is
/// 0 (`is_check`).
UOp checked(const UOp& flag);
/// Whether a realized `any_broken` says so; false on a device that does not compute.
bool is_set(const UOp& flag);

/// Throws an Index error that names the first position out of range.
[[noreturn]] void report_broken(const std::vector<UOp>& promises, const VariableValues& variables);

}  // namespace koine

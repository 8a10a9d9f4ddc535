#pragma once
#include <string>

#include "koine/lower/optimize.hpp"

namespace koine {

/// Why an edit that is legal as such is not on a machine with groups of threads; empty: it is.
/// `axis` is what it edits (null for Nolocals), `after` the kernel that it makes. A group has so
/// many threads and so many bytes of LOCAL memory; what its threads fold together goes through that
/// memory, behind barriers that all of them reach equally often.
std::string refusal_in_groups(const UOp& ast, const UOp& axis, const Opt& opt, const UOp& after,
                              const Groups& groups);

/// The axes whose values the threads of a group number, LOCAL and GROUP_REDUCE ones: a list for
/// each number, outermost first. Axes of one size that no value depends on together share a number:
/// the threads along a sum of a row are those along what is made of it. Threads beside each other
/// lie along memory.
std::vector<std::vector<UOp>> thread_axes(const UOp& ast);

/// Whether a row of LOCAL memory is the group's, not each thread's own: some of the numbers are of
/// parts of it, or of what else a thread does.
bool is_filled_together(const UOp& fill, const std::vector<std::vector<UOp>>& numbers);

}  // namespace koine

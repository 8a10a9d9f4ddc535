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

/// The axes whose values the threads of a group number, outermost first: LOCAL, then GROUP_REDUCE.
std::vector<UOp> thread_axes(const UOp& ast);

}  // namespace koine

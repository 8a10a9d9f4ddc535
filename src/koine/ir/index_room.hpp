#pragma once
#include <span>
#include <utility>

#include "koine/ir/uop.hpp"

namespace koine {

/// A Range, and the largest number that what takes its place holds or computes with.
using GrownRange = std::pair<UOp, double>;

/// Whether index arithmetic stays within 64 bits when something else takes the place of Ranges: the
/// normal forms (`simplify_index`) of all indices of a graph that depend on one of them. An
/// estimate from above, which takes no sum to cancel and no order of terms for granted: what it
/// allows does not overflow, what it refuses might.
bool has_index_room(const UOp& graph, std::span<const GrownRange> grown);

}  // namespace koine

#pragma once
#include <span>
#include <vector>

#include "koine/interp/bounded.hpp"

namespace koine {

/// A while loop on drawn inputs may never end: beyond so many steps it counts as undetermined.
constexpr int64_t most_interpreted_steps = 10000;

/// The results of a Call of a Scan, a While or a Switch on its arguments: step after step. With
/// liberties, how far default mode may be from them; where that decides a condition or a branch,
/// nothing is known of the results.
std::vector<BoundedArray> interpret_loop(const UOp& call, std::span<const BoundedArray> arguments,
                                         const Bindings& bindings, const Liberties& liberties);

}  // namespace koine

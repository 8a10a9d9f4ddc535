#pragma once
#include <span>
#include <vector>

#include "koine/interp/bounded.hpp"
#include "koine/interp/interp.hpp"

namespace koine {

/// The results of a Call on its arguments: a kernel runs as its graph says, a function of the host
/// as what is registered. With liberties, how far default mode may be from them; of a function
/// nothing is known where its arguments are not known to the bit. `bindings` gives Variables.
std::vector<BoundedArray> interpret_call(const UOp& call, std::span<const BoundedArray> arguments,
                                         const Bindings& bindings, const Liberties& liberties);

}  // namespace koine

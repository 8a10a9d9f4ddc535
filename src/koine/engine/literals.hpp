#pragma once
#include "koine/engine/engine.hpp"
#include "koine/lower/callify.hpp"

namespace koine {

/// A literal that comes back with another value is no constant of a program any more: numbers
/// become arguments in memory, offsets of slices become Variables, for all later values. So a
/// learning rate that changes, or a batch that moves along a tensor, compiles once.
///
/// Of a program that has the shape of an earlier one but for such literals, gives the program with
/// these taken out, adds what they are to the arguments and the Variables, and remembers which
/// changed. Of any other, the program itself.
Callified take_out_literals(const Callified& program, const std::string& device,
                            VariableValues& variables);
void forget_literals();

}  // namespace koine

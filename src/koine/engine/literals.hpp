#pragma once
#include "koine/engine/engine.hpp"
#include "koine/lower/callify.hpp"

namespace koine {

/// A literal that comes back with another value is no constant of a program any more: a number, an
/// exponent, a divisor and the fill of a pad among them, or the offset of a slice or a pad, is a
/// Variable for all later values, in loops too. So a learning rate that changes, or a batch that
/// moves along a tensor, compiles once, on one device or many.
///
/// Of a program that has the shape of an earlier one but for such literals, gives the program with
/// these taken out, adds what they are to the Variables, and remembers which changed. Of any other,
/// the program itself.
Callified take_out_literals(const Callified& program, VariableValues& variables);
/// A kernel whose literals are numbered from 0 on, in the order that it takes them as arguments in:
/// kernels that read other literals in the same way are one.
UOp with_literals_by_position(const UOp& kernel);
void forget_literals();

}  // namespace koine

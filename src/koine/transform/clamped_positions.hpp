#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// Values (a Tuple) whose positions are clamped to the ranges that are promised of them (Assume),
/// and whether one was out of its range: a bool of shape (), null where none can be.
struct ClampedPositions {
  UOp values;
  UOp broken;
};
/// A step of a loop cannot be checked before the program runs, as others are: it reads and writes
/// in bounds, whatever it is given, and says so afterwards.
ClampedPositions with_clamped_positions(const UOp& values);

}  // namespace koine

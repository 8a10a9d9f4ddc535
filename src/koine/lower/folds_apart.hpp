#pragma once
#include "koine/ir/uop.hpp"

namespace koine {

/// A kernel whose folds share loops only where these are the outer ones of both. Where sums of sums
/// became one (`rules/reduce`), the loops of a sum that is stored beside would stand inside of
/// others, and it would run again in each of their steps: the later fold gets loops of its own.
UOp folds_apart(const UOp& kernel);

}  // namespace koine

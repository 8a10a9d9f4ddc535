#pragma once
#include <random>

#include "koine/ir/uop.hpp"

namespace koine::test {

/// A random well-typed tensor graph over fresh leaves: movement, elementwise ops, casts and reduces
/// of all dtypes, shapes with empty and size-1 axes among them. Small, so that the interpreter is
/// quick.
UOp random_graph(std::mt19937_64& random);

}  // namespace koine::test

#pragma once
#include <vector>

#include "koine/lower/optimize.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// A kernel and the edits that made it.
struct Edited {
  UOp ast;
  std::vector<Opt> opts;
};

/// Applies the edits that suit a target: a register tile for matmul-like kernels, vector lanes for
/// elementwise work and reductions, threads for what is left.
Edited choose_opts(const UOp& ast, const Target& target);

}  // namespace koine

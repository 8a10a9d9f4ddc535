#pragma once
#include <vector>

#include "koine/ir/effects.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// A program with memory (`bufferize`) in which these versions are read from copies: something must
/// read each of them that cannot run before it is overwritten (`order_kernels`). What fills a copy
/// reads the version itself.
UOp with_copies_of(const UOp& program, const std::vector<UOp>& versions, const Versions& known);

}  // namespace koine

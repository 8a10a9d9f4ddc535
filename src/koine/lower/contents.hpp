#pragma once
#include <cstdint>
#include <vector>

#include "koine/ir/graph.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// Of each node in a list of sources before their consumers a hash of what it computes. Neither the
/// order of operands that commute changes it, nor numbers that follow from the order of a walk:
/// those of Params and Buffers, and of the loops inside of those of a kernel. So it may order what
/// is otherwise free.
std::vector<uint64_t> contents_of(const NodeList& order);

/// What is equal but for the order of operands becomes one node, that which a walk meets first.
UOp share_commuted(const UOp& graph);

}  // namespace koine

#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// Values to compute with their memory taken out: equal for requests that differ only in which
/// Buffers they read or write, in what was computed before, and in the numbers of copies. So what
/// was prepared for one request serves all that look like it, found in one walk.
struct Skeleton {
  std::vector<uint64_t> words;  ///< the graph, node by node; equal words are equal graphs
  uint64_t hash = 0;
  bool reusable = true;        ///< false: words name memory that a body captured
  bool reads_results = false;  ///< some of them stand for values that were computed before
  std::vector<UOp> buffers;    ///< that it names, by first visit; computed values are their Buffers
};

/// The skeleton of distinct values. Raw bytes become Buffers of `device`.
Skeleton skeleton_of(std::span<const UOp> values, const std::string& device);

/// Whether a node reads no memory: a skeleton names it by its id, which is never given twice.
inline bool is_constant(const Node* n) {
  return (n->ops_below & (mask_of(Op::Buffer) | mask_of(Op::Binary))) == 0;
}

/// The Buffer that stands for a node: its own, or that of a value that was computed before. Null
/// where it has none.
UOp buffer_for(const UOp& node, const std::string& device);

}  // namespace koine

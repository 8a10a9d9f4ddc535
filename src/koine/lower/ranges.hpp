#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

#include "koine/ir/graph.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// A number that no Range of a graph has, nor any above it.
inline int64_t next_range_of(const UOp& graph) {
  int64_t next = 0;
  for (const UOp& u : toposort(graph))
    if (u.is(Op::Range)) next = std::max(next, u.as<RangeArg>().id + 1);
  return next;
}

inline bool is_among(std::span<const UOp> list, const UOp& u) {
  return std::find(list.begin(), list.end(), u) != list.end();
}

}  // namespace koine

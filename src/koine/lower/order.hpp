#pragma once
#include <cstdint>
#include <vector>

#include "koine/ir/effects.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// What a kernel does to memory.
struct Footprint {
  std::vector<UOp> reads;       ///< Params, Buffers and Afters whose state it reads
  std::vector<UOp> overwrites;  ///< versions that it stores over
  std::vector<UOp> makes;   ///< the Buffers or Params it fills, or the After whose Stores it runs
  bool checks = false;      ///< what it does not need stands behind it
  uint64_t content = 0;     ///< of what it computes (`contents_of`)
  std::vector<UOp> memory;  ///< that it reads
  std::vector<UOp> stored;  ///< memory that it stores into
};

struct KernelOrder {
  std::vector<size_t> sequence;  ///< one legal order
  /// Versions that must be read both before and after they are overwritten, so that no order
  /// exists; with copies of them to read from one does. Then `sequence` is not complete.
  std::vector<UOp> to_copy;
};

/// A reader follows what makes the state it reads and comes before what stores over it; stores
/// into one buffer follow each other. Among what is free, producers stay near their users, and what
/// takes the fewest steps is done first; what kernels compute decides the rest, and never the order
/// that they are given in, unless they compute the same.
KernelOrder order_kernels(const std::vector<Footprint>& kernels, const Versions& versions);

}  // namespace koine

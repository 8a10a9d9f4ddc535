#pragma once
#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/transform/parts.hpp"

// The seven collectives of the specification. They are no ops: a program writes them in copies,
// movement and Reduce, and they are found here, whoever wrote them. The copies of a host program
// say which collective they are of. A backend that has its own (NCCL, MPI) takes over where one is
// found: `value` is what it has to give of `operand`.
namespace koine {

enum class CollectiveKind : uint8_t {
  Broadcast,
  Scatter,
  Gather,
  Reduce,
  AllGather,
  ReduceScatter,
  AllReduce
};
/// "all-reduce" and so on, as copies say it.
std::string_view collective_name(CollectiveKind kind);

struct Collective {
  CollectiveKind kind;
  UOp value;                ///< what it gives
  UOp operand;              ///< what it takes
  std::vector<UOp> inside;  ///< the copies that it consists of, and Reduces over the devices
  std::optional<Op> fold;   ///< of Reduce, ReduceScatter and AllReduce
};

/// Those of a program over several devices, operands first. A copy is part of one, the largest: a
/// reduce-scatter that is gathered, and read by nobody else, is an all-reduce, and a Reduce over
/// the devices of which others read one copy only is a reduce or a reduce-scatter. What moves
/// nothing (constants, copies that are there) is none.
std::vector<Collective> collectives_of(const UOp& program);

/// What the copies and the Reduces over devices of a program are for, as the host program says it:
/// the collective and its step. `found`: its collectives.
absl::flat_hash_map<const Node*, std::string> reasons_of_copies(
    const UOp& program, const std::vector<Collective>& found);

/// The folds of one partial result a device, which lie in memory, on each of them; all hold equal
/// bits. Partial results go through a reduce-scatter and an all-gather, so that no device sends
/// more than 2(n-1)/n of one, rounded up to n equal chunks; or, where that is not less (two
/// devices, fewer elements than chunks are worth, symbolic sizes), all go to all: n-1 of one.
/// `total`: the dtype of the result, in which it is gathered. `name`: what the copies are for.
Parts all_reduced(Op fold, const Parts& partials, Device devices, DType total,
                  const std::string& name, Copies& copies);

/// The i-th of n equal chunks of that fold, on the i-th of n devices, flat; null: there are no
/// equal ones. A device sends (n-1)/n of a partial result for all of them.
UOp reduced_chunk(Op fold, const Parts& partials, size_t i, Device devices, DType total,
                  const std::string& name, Copies& copies);

}  // namespace koine

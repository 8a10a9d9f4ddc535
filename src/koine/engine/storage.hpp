#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/runtime/device.hpp"

// Side tables keyed by node id: memory of Buffers, Buffers of computed values, and what became of
// their graphs.
namespace koine::storage {

/// A new Buffer node with memory behind it whose contents are arbitrary.
UOp make_buffer(const UOp& shape, DType dtype, const Placement& place);
void set_memory(const UOp& buffer, std::shared_ptr<Memory> memory);
std::shared_ptr<Memory> memory(const UOp& buffer);
/// What of it lies on one of the buffer's devices.
std::shared_ptr<Memory> memory_on(const UOp& buffer, Device device);

/// Remembers that `value` has been computed into `buffer`, for as long as the node lives. Of what
/// was computed from memory of others an equal expression is a node of its own from now on: it
/// reads what they have written since.
void set_result(const UOp& value, const UOp& buffer);
UOp result(const UOp& value);

/// What is known of a node whose graph was let go, or that stands for a tensor no more: enough to
/// refuse a gradient that would be wrong.
struct Past {
  uint64_t clock = 0;             ///< nodes with a larger id are none of its sources
  bool too_many = false;          ///< its sources are not listed: any older node may be one
  std::vector<uint64_t> sources;  ///< ids of the nodes it was computed from, sorted
  std::weak_ptr<void> keeper;     ///< a tensor that still holds the graph
  std::weak_ptr<void> successor;  ///< a tensor that had this value and has another one now
  bool computed_along = false;    ///< with what was looked at, or from such data
  bool was_leaf = false;          ///< that tensor required a gradient
};

/// A time for `clock`: nodes of before have smaller ids, those that are made later have larger
/// ones.
uint64_t now();
/// Changes the past of a node, which lives as long as the node does.
void change_past(const UOp& node, const std::function<void(Past&)>& change);
/// Null when there is nothing to tell.
std::optional<Past> past(const UOp& node);
bool has_past(const UOp& node);

}  // namespace koine::storage

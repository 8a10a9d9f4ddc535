#pragma once
#include <memory>

#include "koine/ir/uop.hpp"
#include "koine/runtime/device.hpp"

// Side tables keyed by node id: memory of Buffers, and Buffers of computed values.
namespace koine::storage {

void set_memory(const UOp& buffer, std::shared_ptr<Memory> memory);
std::shared_ptr<Memory> memory(const UOp& buffer);

/// Remembers that `value` has been computed into `buffer`, for as long as the node lives.
void set_result(const UOp& value, const UOp& buffer);
UOp result(const UOp& value);

}  // namespace koine::storage

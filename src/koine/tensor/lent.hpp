#pragma once
#include <cstddef>
#include <memory>

#include "koine/tensor/tensor.hpp"

namespace koine {

/// The memory of a tensor, of a view that of its base, for others to write to: the tensor sees what
/// they write, until something is assigned to it. Who had its value before keeps that. It is memory
/// of others then, as that of `Tensor::borrow`. Throws Error (Value) where a gradient goes through
/// the tensor, Error (Device) where the host does not see its memory.
std::shared_ptr<std::byte> lent_memory(const Tensor& tensor);

}  // namespace koine

#pragma once
#include <string_view>

#include "koine/tensor/tensor.hpp"

namespace koine::tensor {

/// What `method` takes of x along an axis, counted from 0: at positions of any shape, whose axes
/// take the place of that axis. Positions out of range are an error of `method`, or what
/// KOINE_INDEX says.
Tensor selected(std::string_view method, const Tensor& x, int64_t axis, const Tensor& index);

}  // namespace koine::tensor

#pragma once
#include <koine/tensor/transforms.hpp>

#include "bind.hpp"

namespace koine::python {

using transforms::Tensors;

/// A function of Python on lists of tensors; to be called from any thread.
transforms::Function function_of(const nb::callable& f);

}  // namespace koine::python

// Views of memory, as NumPy has them: an offset and strides.
#pragma once
#include <koine/tensor/tensor.hpp>
#include <optional>
#include <vector>

namespace koine::python {

struct StridedView {
  UOp buffer;
  int64_t offset;  // in elements
  std::vector<int64_t> shape, strides;
};

// A value as a view of the buffer that it is made of; nothing: it is computed, or lies in no such
// way.
std::optional<StridedView> strided_view(const UOp& value);

}  // namespace koine::python

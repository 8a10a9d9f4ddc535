#pragma once
#include <cstdint>
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/ir/binding.hpp"

namespace koine {

/// What a Buffer with memory holds, read to the host.
template <class Element>
std::vector<Element> elements_of(const UOp& buffer) {
  size_t count = 1;
  for (const int64_t size : present_sizes(buffer)) count *= static_cast<size_t>(size);
  std::vector<Element> out(count);
  memory_of(buffer)->copy_out(out.data(), 0, static_cast<int64_t>(count * sizeof(Element)));
  return out;
}

}  // namespace koine

#pragma once
#include <cstdint>
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/runtime/device.hpp"

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

/// The largest of uint8 flags, as one, on the first of their devices.
inline UOp largest_of(const UOp& flags) {
  Ints axes;
  for (size_t i = 0; i < flags.rank(); ++i) axes.push_back(static_cast<int64_t>(i));
  const UOp one = axes.empty() ? flags : reshape(reduce(Op::Max, flags, axes), shape_of({}));
  const Device devices = one.device();
  return devices.count() > 1 ? copy_to(one, devices.part(0)) : one;
}

/// A flag that was computed; 0 where its device has no results to read.
inline uint8_t flag_in(const UOp& buffer) {
  return device_runtime(buffer.device()).has_results() ? elements_of<uint8_t>(buffer)[0] : 0;
}

}  // namespace koine

#include "kernels.hpp"

#include <map>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/device.hpp"

namespace koine::test {

Array run_kernels(const std::vector<Kernel>& kernels, const Callified& program,
                  const KernelEdits& edits) {
  DeviceRuntime& device = device_runtime(default_device());
  std::map<int64_t, std::vector<std::byte>> temporaries;
  for (size_t k = 0; k < kernels.size(); ++k) {
    std::vector<std::byte*> pointers;
    std::vector<int64_t> sizes;
    for (const UOp& b : kernels[k].buffers) {
      const int64_t slot = b.as<BufferArg>().slot, bytes = b.numel() * item_size(b.dtype());
      if (b.is(Op::Param)) {
        pointers.push_back(memory_of(program.arguments[static_cast<size_t>(slot)])->data());
      } else {
        temporaries[slot].resize(static_cast<size_t>(bytes));
        pointers.push_back(temporaries[slot].data());
      }
      sizes.push_back(bytes);
    }
    const auto compiled = device.compile(lower_kernel(kernels[k].ast, device.target(), {},
                                                      k == edits.kernel ? &edits.opts : nullptr));
    compiled->run({pointers, sizes, {}});
  }
  const UOp& out = kernels.back().buffers[0];
  return array_of(program.arguments[static_cast<size_t>(out.as<BufferArg>().slot)]);
}

}  // namespace koine::test

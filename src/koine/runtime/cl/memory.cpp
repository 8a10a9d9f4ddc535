#include "koine/runtime/cl/memory.hpp"

namespace koine::cl {
namespace {

void copy(const Hardware& on, void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  on.require_usable();
  check(api().clEnqueueSVMMemcpy(on.service, CL_TRUE, to, from, static_cast<size_t>(bytes), 0,
                                 nullptr, nullptr),
        "copying to or from the host");
}

class SharedVirtualBlocks : public BlockSource {
 public:
  explicit SharedVirtualBlocks(const Hardware& on) : on_(on) {}
  std::byte* allocate(int64_t bytes) override {
    return static_cast<std::byte*>(
        api().clSVMAlloc(on_.context, CL_MEM_READ_WRITE, static_cast<size_t>(bytes), 0));
  }
  void release(std::byte* block) override {
    if (on_.is_usable()) api().clSVMFree(on_.context, block);
  }
  void fill(std::byte* block, int64_t bytes, uint8_t value) override {
    if (!on_.is_usable()) return;
    cl_event event = nullptr;
    if (api().clEnqueueSVMMemFill(on_.service, block, &value, 1, static_cast<size_t>(bytes), 0,
                                  nullptr, &event) != CL_SUCCESS)
      return;
    api().clWaitForEvents(1, &event);
    api().clReleaseEvent(event);
  }
  int64_t most_bytes() const override { return on_.bytes; }
  int64_t most_block_bytes() const override { return on_.block_bytes; }

 private:
  const Hardware& on_;
};

}  // namespace

void ClMemory::copy_in(const void* from, int64_t offset, int64_t bytes) {
  copy(on_, address() + offset, from, bytes);
}
void ClMemory::copy_out(void* to, int64_t offset, int64_t bytes) {
  copy(on_, to, address() + offset, bytes);
}

ClAllocator::ClAllocator(const Hardware& on, const std::string& device)
    : on_(on), blocks_(device, std::make_unique<SharedVirtualBlocks>(on)) {}

std::shared_ptr<Memory> ClAllocator::allocate(int64_t bytes) {
  on_.require_usable();
  return std::make_shared<ClMemory>(on_, blocks_.allocate(bytes));
}

}  // namespace koine::cl

// Memory of the host that somebody else owns.
#include "koine/runtime/device.hpp"

namespace koine {
namespace {

class BorrowedMemory : public Memory {
 public:
  BorrowedMemory(std::byte* data, int64_t bytes, std::shared_ptr<const void> owner)
      : Memory(data, bytes, true), owner_(std::move(owner)) {
    add_reader();  // for life: programs only read it
  }

 private:
  std::shared_ptr<const void> owner_;
};

}  // namespace

std::shared_ptr<Memory> borrowed_memory(const void* data, int64_t bytes,
                                        std::shared_ptr<const void> owner) {
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(data));
  return std::make_shared<BorrowedMemory>(begin, bytes, std::move(owner));
}

}  // namespace koine

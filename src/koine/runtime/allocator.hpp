#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "koine/runtime/device.hpp"

namespace koine {

/// Host memory in 64-byte aligned blocks, kept by size class for reuse: the first touch of fresh
/// memory costs more than most kernels. Large blocks are 2 MiB aligned and ask for huge pages.
/// Blocks may outlive the object.
class CachingAllocator : public Allocator {
 public:
  explicit CachingAllocator(std::string device);
  std::shared_ptr<Memory> allocate(int64_t bytes) override;
  int64_t bytes_in_use() const override;
  int64_t bytes_cached() const override;

  struct Pool;

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace koine

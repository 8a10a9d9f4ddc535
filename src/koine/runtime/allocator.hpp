#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "koine/runtime/device.hpp"

namespace koine {

/// Where blocks of memory come from.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// Null where there is no more.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* block) = 0;
  /// For KOINE_POISON.
  virtual void fill(std::byte* block, int64_t bytes, uint8_t value) = 0;
  /// Of all blocks together, and of one.
  virtual int64_t most_bytes() const = 0;
  virtual int64_t most_block_bytes() const = 0;
};

/// The host's memory, aligned to 64 bytes. Large blocks are 2 MiB aligned and ask for huge pages.
std::unique_ptr<BlockSource> host_blocks();

/// Memory kept by size class for reuse: the first touch of fresh memory costs more than most
/// kernels. Blocks may outlive the object.
class CachingAllocator : public Allocator {
 public:
  explicit CachingAllocator(std::string device,
                            std::unique_ptr<BlockSource> source = host_blocks());
  std::shared_ptr<Memory> allocate(int64_t bytes) override;
  int64_t bytes_in_use() const override;
  int64_t bytes_cached() const override;

  struct Pool;

 private:
  std::shared_ptr<Pool> pool_;
};

}  // namespace koine

#pragma once
#include "koine/runtime/allocator.hpp"
#include "koine/runtime/cl/hardware.hpp"

namespace koine::cl {

/// Shared virtual memory of coarse grain: kernels find it by address, the host copies.
class ClMemory : public Memory {
 public:
  ClMemory(const Hardware& on, std::shared_ptr<Memory> block)
      : Memory(block->address(), block->bytes()), on_(on), block_(std::move(block)) {}
  const Hardware& on() const { return on_; }
  std::byte* data() override { return nullptr; }
  void copy_in(const void* from, int64_t offset, int64_t bytes) override;
  void copy_out(void* to, int64_t offset, int64_t bytes) override;

 private:
  const Hardware& on_;
  std::shared_ptr<Memory> block_;
};

/// The memory of one device CL:n, cached as the CPU's.
class ClAllocator : public Allocator {
 public:
  ClAllocator(const Hardware& on, const std::string& device);
  std::shared_ptr<Memory> allocate(int64_t bytes) override;
  int64_t bytes_in_use() const override { return blocks_.bytes_in_use(); }
  int64_t bytes_cached() const override { return blocks_.bytes_cached(); }

 private:
  const Hardware& on_;
  CachingAllocator blocks_;
};

}  // namespace koine::cl

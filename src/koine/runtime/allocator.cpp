#include "koine/runtime/allocator.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/base/rounding.hpp"

namespace koine {
namespace {

constexpr int64_t huge_page = int64_t{2} << 20;
constexpr int64_t most_cached = int64_t{2} << 30;

// Classes double in four equal steps, of whole cache lines and whole huge pages.
int64_t class_of(int64_t bytes) {
  constexpr int64_t small = 320;  // up to it by lines
  if (bytes <= small) return rounded_up(std::max<int64_t>(bytes, 1), 64);
  const int doubled = std::bit_width(static_cast<uint64_t>(bytes - 1) / small) - 1;
  const int64_t size = rounded_up(bytes, (small / 4) << doubled);
  return rounded_up(size, size >= huge_page ? huge_page : 64);
}

// Asked once: it is a system call, which costs as much as a small allocation.
int64_t physical_memory() {
  static const int64_t bytes =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// Behind a block: the last lanes of a vector that is open in part may lie there. They touch
// nothing, but a page that is not present would cost the processor 300 ns.
constexpr int64_t room_of_a_vector = 256;

class HostBlocks : public BlockSource {
 public:
  std::byte* allocate(int64_t bytes) override {
    void* block = nullptr;
    const auto alignment = static_cast<size_t>(bytes >= huge_page ? huge_page : 64);
    if (posix_memalign(&block, alignment, static_cast<size_t>(bytes + room_of_a_vector)) != 0)
      return nullptr;
    if (bytes >= huge_page) madvise(block, static_cast<size_t>(bytes), MADV_HUGEPAGE);
    auto* const begin = static_cast<std::byte*>(block);
    std::memset(begin + bytes, 0, static_cast<size_t>(room_of_a_vector));
    return begin;
  }
  void release(std::byte* block) override { std::free(block); }
  void fill(std::byte* block, int64_t bytes, uint8_t value) override {
    std::memset(block, value, static_cast<size_t>(bytes));
  }
  int64_t most_bytes() const override { return physical_memory(); }
  int64_t most_block_bytes() const override { return physical_memory(); }
};

}  // namespace

std::unique_ptr<BlockSource> host_blocks() { return std::make_unique<HostBlocks>(); }

struct CachingAllocator::Pool {
  std::string device;
  std::unique_ptr<BlockSource> source;
  mutable std::mutex mutex;
  std::map<int64_t, std::vector<std::byte*>> free;  // by class
  int64_t in_use = 0, cached = 0;

  ~Pool() { trim(); }
  void trim() {
    for (auto& [size, blocks] : free)
      for (std::byte* block : blocks) source->release(block);
    free.clear();
    cached = 0;
  }
};

namespace {

class Block : public Memory {
 public:
  Block(std::shared_ptr<CachingAllocator::Pool> pool, std::byte* data, int64_t bytes,
        int64_t size_class)
      : Memory(data, bytes), pool_(std::move(pool)), class_(size_class) {
    if (options().poison) pool_->source->fill(address(), class_, 0xA5);
  }
  ~Block() override {
    if (options().poison) pool_->source->fill(address(), class_, 0x5A);
    const std::lock_guard lock(pool_->mutex);
    pool_->in_use -= class_;
    if (pool_->cached + class_ > most_cached) {
      pool_->source->release(address());
      return;
    }
    pool_->free[class_].push_back(address());
    pool_->cached += class_;
  }

 private:
  std::shared_ptr<CachingAllocator::Pool> pool_;
  int64_t class_;
};

}  // namespace

CachingAllocator::CachingAllocator(std::string device, std::unique_ptr<BlockSource> source)
    : pool_(std::make_shared<Pool>()) {
  pool_->device = std::move(device);
  pool_->source = std::move(source);
}

std::shared_ptr<Memory> CachingAllocator::allocate(int64_t bytes) {
  BlockSource& source = *pool_->source;
  const int64_t limit = options().memory_limit > 0 ? options().memory_limit : source.most_bytes();
  std::byte* block = nullptr;
  int64_t size = 0;
  {
    const std::lock_guard lock(pool_->mutex);
    KOINE_REQUIRE(
        bytes >= 0 && bytes <= limit && pool_->in_use + bytes <= limit, Memory,
        "out of memory on {}: a buffer of {} bytes was asked for, {} are in use and the limit is "
        "{}: use a smaller shape or dtype, drop tensors, or raise KOINE_MEMORY_LIMIT",
        pool_->device, bytes, pool_->in_use, limit);
    KOINE_REQUIRE(bytes <= source.most_block_bytes(), Memory,
                  "out of memory on {}: a buffer of {} bytes was asked for, and one block has at "
                  "most {} there: use a smaller shape or dtype, or several buffers",
                  pool_->device, bytes, source.most_block_bytes());
    size = std::min(class_of(bytes), std::max(source.most_block_bytes(), bytes));
    if (auto it = pool_->free.find(size); it != pool_->free.end() && !it->second.empty()) {
      block = it->second.back();
      it->second.pop_back();
      pool_->cached -= size;
    } else if (pool_->in_use + pool_->cached + size > limit) {
      pool_->trim();
    }
    pool_->in_use += size;
  }
  if (block == nullptr) block = source.allocate(size);
  if (block == nullptr) {
    const std::lock_guard lock(pool_->mutex);
    pool_->in_use -= size;
    raise(ErrorKind::Memory, "out of memory on {}: the system refused {} bytes ({} in use)",
          pool_->device, size, pool_->in_use);
  }
  return std::make_shared<Block>(pool_, block, bytes, size);
}

int64_t CachingAllocator::bytes_in_use() const {
  const std::lock_guard lock(pool_->mutex);
  return pool_->in_use;
}
int64_t CachingAllocator::bytes_cached() const {
  const std::lock_guard lock(pool_->mutex);
  return pool_->cached;
}

}  // namespace koine

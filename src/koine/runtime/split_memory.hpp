#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "koine/runtime/device.hpp"

namespace koine {

/// Memory on several devices, as one row-major array to those who copy in and out. Each device has
/// every n-th run of bytes (what an axis splits), or all of it.
class SplitMemory : public Memory {
 public:
  /// `run`: bytes that lie together on one device; 0: each part holds everything. `own`: of such
  /// parts the one that this process reads alone; none: all processes read the first.
  SplitMemory(std::vector<std::shared_ptr<Memory>> parts, int64_t bytes, int64_t run,
              std::optional<size_t> own);

  const std::shared_ptr<Memory>& part(size_t i) const { return parts_[i]; }
  std::byte* data() override { return nullptr; }
  void copy_in(const void* from, int64_t offset, int64_t bytes) override;
  void copy_out(void* to, int64_t offset, int64_t bytes) override;

 private:
  void copy_out_part(size_t k, void* to, int64_t offset, int64_t bytes);

  std::vector<std::shared_ptr<Memory>> parts_;
  int64_t run_;
  std::optional<size_t> own_;
};

}  // namespace koine

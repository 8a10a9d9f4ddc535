#include "koine/runtime/split_memory.hpp"

#include <algorithm>

namespace koine {
namespace {

// Visits (part, offset in the part, offset from `offset`, bytes) of each stretch of [offset, offset
// + bytes) that lies together.
template <class Visit>
void for_each_stretch(int64_t run, int64_t parts, int64_t offset, int64_t bytes, Visit&& visit) {
  for (int64_t done = 0; done < bytes;) {
    const int64_t at = offset + done, number = at / run, inside = at % run;
    const int64_t length = std::min(run - inside, bytes - done);
    visit(static_cast<size_t>(number % parts), number / parts * run + inside, done, length);
    done += length;
  }
}

}  // namespace

SplitMemory::SplitMemory(std::vector<std::shared_ptr<Memory>> parts, int64_t bytes, int64_t run)
    : Memory(nullptr, bytes), parts_(std::move(parts)), run_(run) {}

void SplitMemory::copy_in(const void* from, int64_t offset, int64_t bytes) {
  if (run_ == 0) {
    for (const auto& part : parts_) part->copy_in(from, offset, bytes);
    return;
  }
  for_each_stretch(run_, static_cast<int64_t>(parts_.size()), offset, bytes,
                   [&](size_t part, int64_t at, int64_t done, int64_t length) {
                     parts_[part]->copy_in(static_cast<const std::byte*>(from) + done, at, length);
                   });
}

void SplitMemory::copy_out(void* to, int64_t offset, int64_t bytes) {
  if (run_ == 0) return parts_[0]->copy_out(to, offset, bytes);
  for_each_stretch(run_, static_cast<int64_t>(parts_.size()), offset, bytes,
                   [&](size_t part, int64_t at, int64_t done, int64_t length) {
                     parts_[part]->copy_out(static_cast<std::byte*>(to) + done, at, length);
                   });
}

}  // namespace koine

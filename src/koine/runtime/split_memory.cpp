#include "koine/runtime/split_memory.hpp"

#include <algorithm>
#include <cstring>

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

SplitMemory::SplitMemory(std::vector<std::shared_ptr<Memory>> parts, int64_t bytes, int64_t run,
                         std::optional<size_t> own)
    : Memory(nullptr, bytes), parts_(std::move(parts)), run_(run), own_(own) {}

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
  if (run_ == 0) {
    Memory& all = *parts_[own_.value_or(0)];
    if (!own_ || all.data() == nullptr) return all.copy_out(to, offset, bytes);
    if (bytes > 0) std::memcpy(to, all.data() + offset, static_cast<size_t>(bytes));
    return;
  }
  for (size_t k = 0; k < parts_.size(); ++k) copy_out_part(k, to, offset, bytes);
}

// What a part has of these bytes, which it is asked for once.
void SplitMemory::copy_out_part(size_t k, void* to, int64_t offset, int64_t bytes) {
  int64_t begin = 0, end = 0;
  auto for_each_own = [&](auto&& visit) {
    for_each_stretch(run_, static_cast<int64_t>(parts_.size()), offset, bytes,
                     [&](size_t part, int64_t at, int64_t done, int64_t length) {
                       if (part == k) visit(at, static_cast<std::byte*>(to) + done, length);
                     });
  };
  for_each_own([&](int64_t at, std::byte*, int64_t length) {
    if (end == 0) begin = at;
    end = at + length;
  });
  std::vector<std::byte> own(static_cast<size_t>(end - begin));
  if (end > begin) parts_[k]->copy_out(own.data(), begin, end - begin);
  for_each_own([&](int64_t at, std::byte* place, int64_t length) {
    std::memcpy(place, own.data() + (at - begin), static_cast<size_t>(length));
  });
}

}  // namespace koine

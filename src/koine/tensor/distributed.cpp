#include "koine/tensor/distributed.hpp"

#include <functional>

#include "koine/base/error.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/build.hpp"
#include "koine/runtime/ranks/ranks.hpp"
#include "koine/tensor/impl.hpp"

namespace koine::distributed {
namespace {

std::string devices_of(size_t first, size_t end) {
  std::string out;
  for (size_t k = first; k < end; ++k)
    out += (k == first ? "RANK" : ",RANK") + (k == 0 ? "" : fmt::format(":{}", k));
  return out;
}

// Calls `move(memory of a device of this rank, where its rows begin among those of the rank)`.
void for_each_own_device(const UOp& buffer, const std::function<void(Memory&, int64_t)>& move) {
  int64_t begin = 0;
  const Device own{own_devices()};
  for (size_t k = 0; k < own.count(); ++k) {
    const auto memory = storage::memory_on(buffer, own.part(k));
    move(*memory, begin);
    begin += memory->bytes();
  }
}

}  // namespace

void init(int64_t devices_each) {
  KOINE_REQUIRE(devices_each > 0, Value, "distributed: init({}): a rank has devices", devices_each);
  Ranks::join(static_cast<size_t>(devices_each));
}
int64_t rank() { return static_cast<int64_t>(Ranks::joined().rank()); }
int64_t count() { return static_cast<int64_t>(Ranks::joined().count()); }
std::string devices() {
  const Ranks& r = Ranks::joined();
  return devices_of(0, r.count() * r.devices_each());
}
std::string own_devices() {
  const Ranks& r = Ranks::joined();
  return devices_of(r.rank() * r.devices_each(), (r.rank() + 1) * r.devices_each());
}

Tensor parts(const Tensor& own) {
  const std::string shape = tensor::text_of(own.shape());
  const auto each = static_cast<int64_t>(Ranks::joined().devices_each());
  KOINE_REQUIRE(
      own.ndim() > 0 && own.size(0).present() % each == 0, Value,
      "parts of {}: the {} devices of a rank share out the rows: pad() them to a multiple "
      "of {}",
      shape, each, each);
  const std::vector<std::byte> bytes = own.bytes();
  std::vector<int64_t> sizes = own.shape().present();
  sizes[0] *= count();
  UOp all;
  Ranks::joined().together(
      fmt::format("has parts of shape {} and dtype {}", shape, dtype_name(own.dtype())), 0, [&] {
        const std::string where = devices();
        all = buffer_from_host(shape_of(sizes), own.dtype(), where, nullptr,
                               Device(where).count() > 1 ? 0 : -1);
        for_each_own_device(all, [&](Memory& memory, int64_t begin) {
          memory.copy_in(bytes.data() + begin, 0, memory.bytes());
        });
      });
  return Tensor(all);
}

Tensor own_part(const Tensor& value) {
  const bool one = Device(devices()).count() == 1;
  KOINE_REQUIRE(value.device() == devices() && (one || value.shard_axis() == 0), Value,
                "own_part of {}: it is not in parts on {}: place it with shard()",
                tensor::text_of(value.shape()), devices());
  const Tensor computed = value.contiguous();
  computed.realize();
  std::vector<int64_t> sizes = value.shape().present();
  sizes[0] /= count();
  const UOp out = buffer_from_host(shape_of(sizes), value.dtype(), "CPU", nullptr, -1);
  for_each_own_device(realized_buffer(computed.uop()), [&](Memory& memory, int64_t begin) {
    memory_of(out)->copy_in(memory.data(), begin, memory.bytes());
  });
  return Tensor(out);
}

}  // namespace koine::distributed

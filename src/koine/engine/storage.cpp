#include "koine/engine/storage.hpp"

#include <absl/container/flat_hash_map.h>

#include <mutex>
#include <set>

#include "koine/base/error.hpp"
#include "koine/base/spin_lock.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"
#include "koine/runtime/ranks/ranks.hpp"
#include "koine/runtime/split_memory.hpp"

namespace koine::storage {
namespace {

struct Tables {
  SpinLock mutex;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Memory>> memory;  // by id of a Buffer
  absl::flat_hash_map<uint64_t, UOp> results;                     // by id of a computed value
  absl::flat_hash_map<uint64_t, Past> pasts;                      // of either
};

void on_death(uint64_t id);

Tables& tables() {
  static Tables* instance = [] {
    set_death_hook(on_death);
    return new Tables;  // outlives handles in static storage
  }();
  return *instance;
}

void on_death(uint64_t id) {
  Tables& t = tables();
  decltype(t.memory)::node_type memory;  // what goes is released outside the lock
  decltype(t.results)::node_type buffer;
  decltype(t.pasts)::node_type past;
  const std::lock_guard lock(t.mutex);
  memory = t.memory.extract(id);
  buffer = t.results.extract(id);
  past = t.pasts.extract(id);
}

}  // namespace

namespace {

// Of devices that have all of a value the one that this process reads without the others: one that
// each process has, or its own where each has one.
std::optional<size_t> own_device(Device devices) {
  std::set<size_t> ranks;
  std::optional<size_t> own;
  for (size_t i = 0; i < devices.count(); ++i) {
    const DeviceRuntime& device = device_runtime(devices.part(i));
    if (!device.rank()) return i;
    ranks.insert(*device.rank());
    if (!own && device.computes()) own = i;
  }
  return ranks.size() == Ranks::joined().count() ? own : std::nullopt;
}

// A part of it on each device.
std::shared_ptr<Memory> allocate_split(const UOp& buffer, int64_t bytes) {
  const Device devices = buffer.device();
  const auto count = static_cast<int64_t>(devices.count());
  int64_t run = 0;
  if (const auto axis = buffer.axis()) {
    const std::vector<int64_t> sizes = present_sizes(buffer);  // they lie at the front of a part
    run = item_size(buffer.dtype());
    for (size_t k = *axis; k < sizes.size(); ++k) run *= sizes[k];
    run /= count;
  }
  std::vector<std::shared_ptr<Memory>> parts;
  for (size_t i = 0; i < devices.count(); ++i)
    parts.push_back(
        device_runtime(devices.part(i)).allocate(buffer.axis() ? bytes / count : bytes));
  return std::make_shared<SplitMemory>(std::move(parts), bytes, run, own_device(devices));
}

}  // namespace

UOp make_buffer(const UOp& shape, DType dtype, const Placement& place) {
  UOp buffer = new_buffer(shape, dtype, place.device, place.axes);
  int64_t bytes = 0;
  KOINE_REQUIRE(!__builtin_mul_overflow(largest_numel(buffer), item_size(dtype), &bytes), Memory,
                "a tensor of shape {} and dtype {} does not fit into memory", shape_text(buffer),
                dtype_name(dtype));
  set_memory(buffer, place.device.count() > 1 ? allocate_split(buffer, bytes)
                                              : device_runtime(place.device).allocate(bytes));
  return buffer;
}

std::shared_ptr<Memory> memory_on(const UOp& buffer, Device device) {
  std::shared_ptr<Memory> all = memory(buffer);
  const Device devices = buffer.device();
  if (!all || devices.count() == 1) return all;
  for (size_t i = 0; i < devices.count(); ++i)
    if (devices.part(i) == device) return static_cast<const SplitMemory&>(*all).part(i);
  internal_error("a buffer of {} has no part on {}", devices.name(), device.name());
}

void set_memory(const UOp& buffer, std::shared_ptr<Memory> memory) {
  Tables& t = tables();
  if (memory && memory->is_borrowed()) mark_foreign(buffer);
  watch(buffer);
  const std::lock_guard lock(t.mutex);
  t.memory[buffer.id()] = std::move(memory);
}

std::shared_ptr<Memory> memory(const UOp& buffer) {
  if (!is_watched(buffer)) return nullptr;
  const std::lock_guard lock(tables().mutex);
  const auto it = tables().memory.find(buffer.id());
  return it == tables().memory.end() ? nullptr : it->second;
}

void set_result(const UOp& value, const UOp& buffer) {
  Tables& t = tables();
  if (value.node()->foreign) withdraw(value);
  watch(value);
  UOp previous;
  const std::lock_guard lock(t.mutex);
  UOp& slot = t.results[value.id()];
  previous = std::exchange(slot, buffer);
}

UOp result(const UOp& value) {
  if (!is_watched(value)) return {};
  const std::lock_guard lock(tables().mutex);
  const auto it = tables().results.find(value.id());
  return it == tables().results.end() ? UOp() : it->second;
}

uint64_t now() { return new_buffer(shape_of({}), DType::Float32, {}).id(); }

void change_past(const UOp& node, const std::function<void(Past&)>& change) {
  Tables& t = tables();
  watch(node);
  const std::lock_guard lock(t.mutex);
  change(t.pasts[node.id()]);
}

bool has_past(const UOp& node) {
  if (!is_watched(node)) return false;
  const std::lock_guard lock(tables().mutex);
  return tables().pasts.contains(node.id());
}

std::optional<Past> past(const UOp& node) {
  if (!is_watched(node)) return {};
  const std::lock_guard lock(tables().mutex);
  const auto it = tables().pasts.find(node.id());
  return it == tables().pasts.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace koine::storage

#include "koine/engine/storage.hpp"

#include <mutex>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"

namespace koine::storage {
namespace {

struct Tables {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<Memory>> memory;  // by id of a Buffer
  std::unordered_map<uint64_t, UOp> results;                     // by id of a computed value
  std::unordered_map<uint64_t, Past> pasts;                      // of either
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

UOp make_buffer(const UOp& shape, DType dtype, Device device) {
  UOp buffer = new_buffer(shape, dtype, device);
  int64_t bytes = 0;
  KOINE_REQUIRE(!__builtin_mul_overflow(largest_numel(buffer), item_size(dtype), &bytes), Memory,
                "a tensor of shape {} and dtype {} does not fit into memory", shape_text(buffer),
                dtype_name(dtype));
  set_memory(buffer, device_runtime(device.name()).allocate(bytes));
  return buffer;
}

void set_memory(const UOp& buffer, std::shared_ptr<Memory> memory) {
  Tables& t = tables();
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

void change_past(const UOp& node, const std::function<void(Past&)>& change) {
  Tables& t = tables();
  watch(node);
  const std::lock_guard lock(t.mutex);
  change(t.pasts[node.id()]);
}

std::optional<Past> past(const UOp& node) {
  if (!is_watched(node)) return {};
  const std::lock_guard lock(tables().mutex);
  const auto it = tables().pasts.find(node.id());
  return it == tables().pasts.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace koine::storage

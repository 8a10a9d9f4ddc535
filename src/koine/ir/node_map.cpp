#include "koine/ir/node_map.hpp"

#include "koine/base/of_thread.hpp"

namespace koine {
namespace detail {
namespace {

constexpr size_t most_pooled_slots = size_t{1} << 16;  // 1 MiB; a longer walk frees its table

struct Pool {
  std::vector<std::unique_ptr<NodeTable>> free;
};

}  // namespace

std::unique_ptr<NodeTable> borrow_table() {
  std::unique_ptr<NodeTable> table;
  if (auto* p = of_thread<Pool>(); p != nullptr && !p->free.empty()) {
    table = std::move(p->free.back());
    p->free.pop_back();
  } else {
    table = std::make_unique<NodeTable>();
  }
  if (++table->generation == 0) {  // every 2^32 walks: the old marks could be taken for new ones
    table->slots.assign(table->slots.size(), {});
    table->generation = 1;
  }
  return table;
}

void give_back(std::unique_ptr<NodeTable> table) {
  auto* p = of_thread<Pool>();
  if (p != nullptr && table->slots.size() <= most_pooled_slots) p->free.push_back(std::move(table));
}

}  // namespace detail

int64_t& walked_nodes() {
  static thread_local int64_t count = 0;
  return count;
}

void NodeNumbers::grow() {
  std::vector<detail::NodeTable::Slot> old(table_->slots.size() * 2);
  old.swap(table_->slots);
  const size_t mask = table_->slots.size() - 1;
  for (const auto& slot : old) {
    if (slot.generation != table_->generation) continue;
    size_t i = place(slot.node);
    while (table_->slots[i].generation == table_->generation) i = (i + 1) & mask;
    table_->slots[i] = slot;
  }
}

}  // namespace koine

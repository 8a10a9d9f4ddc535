#include "koine/ir/node_map.hpp"

#include "koine/base/of_thread.hpp"

namespace koine {
namespace detail {
namespace {

struct Pool {
  std::vector<std::unique_ptr<NodeTable>> free;
};

}  // namespace

void NodeTable::clear() {
  if (++generation != 0) return;
  slots.assign(slots.size(), {});  // every 2^32 times: the old marks could be taken for new ones
  generation = 1;
}

std::unique_ptr<NodeTable> borrow_table() {
  std::unique_ptr<NodeTable> table;
  if (auto* p = of_thread<Pool>(); p != nullptr && !p->free.empty()) {
    table = std::move(p->free.back());
    p->free.pop_back();
  } else {
    table = std::make_unique<NodeTable>();
  }
  table->clear();
  return table;
}

void give_back(std::unique_ptr<NodeTable> table) {
  auto* p = of_thread<Pool>();
  if (p != nullptr && table->slots.size() <= NodeTable::most_kept)
    p->free.push_back(std::move(table));
}

}  // namespace detail

int64_t& walked_nodes() {
  static thread_local int64_t count = 0;
  return count;
}

void NodeNumbers::use(size_t slots) {
  mask_ = slots - 1;
  if (table_->slots.size() < slots) table_->slots.resize(slots);
}

void NodeNumbers::grow() {
  std::vector<detail::NodeTable::Slot> held;
  held.reserve(count_);
  for (size_t i = 0; i <= mask_; ++i)
    if (table_->slots[i].generation == table_->generation) held.push_back(table_->slots[i]);
  use(4 * (mask_ + 1));  // few times, as each finds new places for all
  table_->clear();
  for (const auto& slot : held) {
    size_t i = place(slot.node);
    while (table_->slots[i].generation == table_->generation) i = (i + 1) & mask_;
    table_->slots[i] = {slot.node, table_->generation, slot.number};
  }
}

}  // namespace koine

#include "koine/lower/plan.hpp"

#include <algorithm>
#include <numeric>

#include "koine/base/error.hpp"

namespace koine {
namespace {

constexpr int64_t alignment = 64;

bool meet(const Lifetime& a, const Lifetime& b) { return a.first <= b.last && b.first <= a.last; }

}  // namespace

MemoryPlan plan_memory(const std::vector<Lifetime>& lifetimes) {
  MemoryPlan plan;
  plan.offsets.assign(lifetimes.size(), 0);
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return lifetimes[a].bytes > lifetimes[b].bytes; });
  std::vector<size_t> placed;  // by offset
  for (const size_t i : order) {
    int64_t offset = 0;
    for (const size_t p : placed) {
      if (!meet(lifetimes[i], lifetimes[p])) continue;
      if (plan.offsets[p] >= offset + lifetimes[i].bytes) break;
      const int64_t end = plan.offsets[p] + lifetimes[p].bytes;
      offset = std::max(offset, (end + alignment - 1) / alignment * alignment);
    }
    plan.offsets[i] = offset;
    plan.arena_bytes = std::max(plan.arena_bytes, offset + lifetimes[i].bytes);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), i,
                         [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; }),
        i);
  }
  check_plan(lifetimes, plan);
  return plan;
}

void check_plan(const std::vector<Lifetime>& lifetimes, const MemoryPlan& plan) {
  // Sweep by first step; only lifetimes that are still alive are compared.
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return lifetimes[a].first < lifetimes[b].first; });
  std::vector<size_t> alive;
  for (const size_t i : order) {
    std::erase_if(alive, [&](size_t a) { return lifetimes[a].last < lifetimes[i].first; });
    for (const size_t a : alive) {
      const bool apart = plan.offsets[a] + lifetimes[a].bytes <= plan.offsets[i] ||
                         plan.offsets[i] + lifetimes[i].bytes <= plan.offsets[a];
      KOINE_INVARIANT(apart || lifetimes[a].bytes == 0 || lifetimes[i].bytes == 0,
                      "memory plan: buffers {} and {} overlap in steps {}..{}", a, i,
                      lifetimes[i].first, std::min(lifetimes[a].last, lifetimes[i].last));
    }
    alive.push_back(i);
  }
}

}  // namespace koine

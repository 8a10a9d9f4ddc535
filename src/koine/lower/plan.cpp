#include "koine/lower/plan.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/base/rounding.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/lower/schedule.hpp"

namespace koine {
namespace {

constexpr int64_t alignment = 64;
constexpr int64_t most_bytes = int64_t{1} << 62;  // of all temporaries at once

// A temporary with the steps between which it must keep its bytes.
struct Lifetime {
  UOp buffer;
  int64_t bytes = 0, offset = 0;
  size_t first = 0, last = 0;  // inclusive

  bool meets(const Lifetime& other) const {
    return buffer.device() == other.buffer.device() && first <= other.last && other.first <= last;
  }
};

std::vector<Lifetime> lifetimes_of(const UOp& schedule) {
  std::vector<Lifetime> out;
  absl::flat_hash_map<const Node*, size_t> number;
  size_t k = 0;
  bool follows_copy = false;
  for (const UOp& call : schedule.src()) {
    const bool copies = is_copy(call.src(0));
    if (!copies || !follows_copy) ++k;  // copies behind each other may go at once
    follows_copy = copies;
    for (const UOp& b : call.src()) {
      if (!b.is(Op::Buffer)) continue;
      const auto [it, fresh] = number.try_emplace(b.node(), out.size());
      if (fresh) out.push_back({b, largest_bytes(b), b.as<BufferArg>().offset, k, k});
      out[it->second].last = k;
    }
  }
  return out;
}

void require_room(const Lifetime& life) {
  KOINE_REQUIRE(
      life.bytes <= most_bytes - life.offset, Memory,
      "the program needs more than {} bytes of temporary memory at once, with {} bytes for "
      "one value of {}: compute it in smaller parts",
      most_bytes, life.bytes, dtype_name(life.buffer.dtype()));
}

// Gives each its offset, the largest first.
void place(std::vector<Lifetime>& lifetimes) {
  std::vector<Lifetime*> order;
  for (Lifetime& l : lifetimes) order.push_back(&l);
  std::stable_sort(order.begin(), order.end(),
                   [](const Lifetime* a, const Lifetime* b) { return a->bytes > b->bytes; });
  std::vector<const Lifetime*> placed;  // by offset
  for (Lifetime* life : order) {
    life->offset = 0;
    require_room(*life);
    for (const Lifetime* other : placed) {
      if (!life->meets(*other)) continue;
      if (other->offset >= life->offset + life->bytes) break;
      const int64_t end = other->offset + other->bytes;
      life->offset = std::max(life->offset, rounded_up(end, alignment));
      require_room(*life);
    }
    placed.insert(std::upper_bound(
                      placed.begin(), placed.end(), life,
                      [](const Lifetime* a, const Lifetime* b) { return a->offset < b->offset; }),
                  life);
  }
}

// The host programs that loops hold have arenas of their own.
UOp with_planned_loops(const UOp& schedule) {
  std::vector<UOp> calls;
  for (const UOp& call : schedule.src()) {
    const UOp& body = call.src(0);
    std::vector<UOp> src(body.src().begin(), body.src().end());
    for (UOp& function : src)
      if (is_loop(body) && function.is(Op::Linear)) function = plan_memory(function);
    calls.push_back(with_source(call, 0, with_sources(body, src)));
  }
  return with_sources(schedule, calls);
}

}  // namespace

UOp plan_memory(const UOp& given) {
  const UOp schedule = with_planned_loops(given);
  std::vector<Lifetime> lifetimes = lifetimes_of(schedule);
  place(lifetimes);
  Substitution planned;
  for (const Lifetime& l : lifetimes) {
    BufferArg arg = l.buffer.as<BufferArg>();
    arg.offset = l.offset;
    planned.emplace(l.buffer, UOp::make(Op::Buffer, l.buffer.src(), arg));
  }
  const UOp out = substitute(schedule, planned);
  check_plan(out);
  return out;
}

void check_plan(const UOp& schedule) {
  // Sweep by the first launch, in which order they come; only what is still alive is compared.
  std::vector<Lifetime> alive;
  for (const Lifetime& life : lifetimes_of(schedule)) {
    std::erase_if(alive, [&](const Lifetime& a) { return a.last < life.first; });
    KOINE_INVARIANT(life.offset >= 0, "memory plan: the temporary of slot {} has no place",
                    life.buffer.as<BufferArg>().slot);
    for (const Lifetime& other : alive) {
      const bool apart = other.bytes <= life.offset - other.offset ||
                         life.bytes <= other.offset - life.offset || !life.meets(other);
      KOINE_INVARIANT(apart || other.bytes == 0 || life.bytes == 0,
                      "memory plan: the temporaries of slots {} and {} overlap in launches {} to "
                      "{}",
                      other.buffer.as<BufferArg>().slot, life.buffer.as<BufferArg>().slot,
                      life.first, std::min(other.last, life.last));
    }
    alive.push_back(life);
  }
}

int64_t arena_bytes(const UOp& schedule, Device device) {
  int64_t bytes = 0;
  for (const Lifetime& l : lifetimes_of(schedule))
    if (l.buffer.device() == device) bytes = std::max(bytes, l.offset + l.bytes);
  return bytes;
}

}  // namespace koine

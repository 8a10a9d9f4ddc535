// The weak, sharded table of all live nodes. A node whose last handle goes away is unlinked from
// its shard and freed; its sources are released by a worklist, so depth never matters.
#include <absl/container/inlined_vector.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"
#include "koine/base/of_thread.hpp"
#include "koine/base/spin_lock.hpp"
#include "koine/ir/carried_name.hpp"
#include "koine/ir/derive.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/uop.hpp"

namespace koine {
namespace {

std::atomic<uint64_t> next_id{1};
std::atomic<DeathHook> death_hook{nullptr};

struct Key {
  Op op;
  std::span<const UOp> src;
  const Arg& arg;
  int64_t tag;
  uint64_t hash;
  uint32_t place;
};

// Graphs grow at their newest nodes, so buckets follow the id of the newest source: what is built
// together lies together, and the table costs no cache miss per node. All else is mixed in.
uint32_t place_of(Op op, std::span<const UOp> src, uint64_t arg_hash) {
  uint64_t newest = 0, others = hash_mix(static_cast<uint64_t>(op), arg_hash);
  for (const UOp& s : src) {
    const uint64_t id = s.id();
    if (id > newest) {
      others = hash_mix(others, newest);
      newest = id;
    } else {
      others = hash_mix(others, ~id);
    }
  }
  return static_cast<uint32_t>(newest + others);
}

bool matches(const Node* node, const Key& key) {
  if (node->hash != key.hash || node->op != key.op || node->tag != key.tag ||
      node->source_count != key.src.size())
    return false;
  for (size_t i = 0; i < key.src.size(); ++i)
    if (!(node->sources()[i] == key.src[i])) return false;
  const bool no_arg = key.arg.index() == 0;
  return no_arg ? node->arg.index() == 0 : node->arg == key.arg;
}

// Takes a reference unless the node is already dying.
bool try_acquire(Node* node) {
  uint32_t count = node->references.load(std::memory_order_relaxed);
  while (count != 0)
    if (node->references.compare_exchange_weak(count, count + 1, std::memory_order_acquire))
      return true;
  return false;
}

// Small fixed-size blocks are recycled per thread; a node with up to three sources is the rule.
constexpr size_t cached_sources = 4;
constexpr size_t cached_blocks = 4096;
struct BlockCache {
  std::array<std::vector<void*>, cached_sources> free;
  ~BlockCache() {
    for (auto& list : free)
      for (void* block : list) std::free(block);
  }
};

void note_origin(const Node* node) {
  const Origin origin = detail::present_origin();
  const Origin known = node->origin.load(std::memory_order_relaxed);
  if (origin == 0 || known == origin || (known & Node::several_origins) != 0) return;
  node->origin.store(known == 0 ? origin : detail::joined(known, origin),
                     std::memory_order_relaxed);
}

void* allocate(size_t sources) {
  if (sources < cached_sources)
    if (auto* cache = of_thread<BlockCache>(); cache != nullptr && !cache->free[sources].empty()) {
      void* block = cache->free[sources].back();
      cache->free[sources].pop_back();
      return block;
    }
  void* block = std::malloc(sizeof(Node) + sources * sizeof(UOp));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void deallocate(void* block, size_t sources) {
  if (sources < cached_sources)
    if (auto* cache = of_thread<BlockCache>();
        cache != nullptr && cache->free[sources].size() < cached_blocks) {
      cache->free[sources].push_back(block);
      return;
    }
  std::free(block);
}

}  // namespace

class InternTable {
 public:
  static InternTable& instance() {
    static InternTable* table = new InternTable;  // outlives every static handle
    return *table;
  }

  UOp intern(const Key& key) {
    Shard& shard = shard_of(key.place);
    {
      const std::lock_guard hold(shard.lock);
      if (Node* found = find(shard, key)) return UOp(found);
    }
    // Derivation may intern shapes and may throw: outside the lock, before the node exists.
    Derived derived = derive(key.op, key.src, key.arg);
    const Placement placement = derive_placement(key.op, key.src, key.arg, derived);
    Node* node = create(key, std::move(derived), placement);
    {
      const std::lock_guard hold(shard.lock);
      if (Node* found = find(shard, key)) {  // another thread was faster
        destroy_unlinked(node);
        return UOp(found);
      }
      insert(shard, node);
    }
    return UOp(node);
  }

  // The count of `node` has reached zero.
  void release(Node* node) {
    using Worklist = absl::InlinedVector<Node*, 16>;
    static thread_local Worklist* pending = nullptr;
    if (pending != nullptr) {
      pending->push_back(node);
      return;
    }
    Worklist worklist{node};
    pending = &worklist;
    while (!worklist.empty()) {
      Node* dying = worklist.back();
      worklist.pop_back();
      unlink(dying);
      if (dying->watched.load(std::memory_order_relaxed))
        if (DeathHook hook = death_hook.load(std::memory_order_relaxed)) hook(dying->id);
      destroy_unlinked(dying);  // releases sources, which land in the worklist
    }
    pending = nullptr;
  }

  // Its bucket is searched no more for it, however many of its equals are held.
  void withdraw(Node* node) {
    Shard& shard = shard_of(node->place);
    const std::lock_guard hold(shard.lock);
    take_out(shard, node);
    node->chain = node;
  }

  int64_t live() const {
    int64_t total = 0;
    for (const Shard& shard : shards_) {
      const std::lock_guard hold(shard.lock);
      total += static_cast<int64_t>(shard.count);
    }
    return total;
  }

 private:
  static constexpr uint32_t shard_count = 64;
  struct alignas(64) Shard {
    mutable SpinLock lock;
    std::vector<Node*> buckets = std::vector<Node*>(256, nullptr);
    size_t count = 0;
  };

  // Eight neighbouring places are a cache line of one shard.
  Shard& shard_of(uint32_t place) { return shards_[(place >> 3) % shard_count]; }
  static Node*& bucket(std::vector<Node*>& buckets, uint32_t place) {
    return buckets[((place / (8 * shard_count) << 3) | (place & 7)) & (buckets.size() - 1)];
  }

  static Node* find(Shard& shard, const Key& key) {
    for (Node* node = bucket(shard.buckets, key.place); node != nullptr; node = node->chain)
      if (matches(node, key) && try_acquire(node)) return node;
    return nullptr;
  }

  static void insert(Shard& shard, Node* node) {
    if (shard.count * 2 >= shard.buckets.size()) grow(shard);
    Node*& head = bucket(shard.buckets, node->place);
    node->chain = head;
    head = node;
    ++shard.count;
  }

  static void grow(Shard& shard) {
    std::vector<Node*> larger(shard.buckets.size() * 2, nullptr);
    for (Node* node : shard.buckets)
      while (node != nullptr) {
        Node* next = node->chain;
        Node*& head = bucket(larger, node->place);
        node->chain = head;
        head = node;
        node = next;
      }
    shard.buckets = std::move(larger);
  }

  void unlink(Node* node) {
    Shard& shard = shard_of(node->place);
    const std::lock_guard hold(shard.lock);
    take_out(shard, node);
    --shard.count;
  }

  static void take_out(Shard& shard, Node* node) {
    if (node->chain == node) return;  // it is out already
    Node** link = &bucket(shard.buckets, node->place);
    while (*link != node) link = &(*link)->chain;
    *link = node->chain;
  }

  static Node* create(const Key& key, Derived derived, const Placement& placement) {
    void* block = allocate(key.src.size());
    Node* node = new (block) Node;
    node->op = key.op;
    node->dtype = derived.dtype;
    node->scalar_stack = derived.scalar_stack;
    node->source_count = static_cast<uint32_t>(key.src.size());
    node->hash = key.hash;
    node->place = key.place;
    node->id = next_id.fetch_add(1, std::memory_order_relaxed);
    node->tag = key.tag;
    if (key.arg.index() != 0) node->arg = key.arg;
    if (const std::string* name = detail::name_in(node->arg)) detail::add_carrier(*name);
    node->shape = std::move(derived.shape);
    node->placement = placement;
    node->ops_below = mask_of(key.op);
    node->varies = key.op == Op::Param && !std::get<BufferArg>(key.arg).name.empty();
    node->foreign = false;
    UOp* sources = node->sources();
    for (size_t i = 0; i < key.src.size(); ++i) {
      new (sources + i) UOp(key.src[i]);
      const bool body = key.op == Op::Call && i == 0;  // which is opaque
      node->ops_below |= body ? mask_of(key.src[i].op()) : key.src[i].node()->ops_below;
      if (key.src[i].node()->varies) node->varies = true;
      if (key.src[i].node()->foreign) node->foreign = true;
    }
    return node;
  }

  static void destroy_unlinked(Node* node) {
    delete node->interval.load(std::memory_order_relaxed);
    const auto* ranges = node->range_set.load(std::memory_order_relaxed);
    if (owns_ranges(node, ranges)) delete ranges;
    if (const std::string* name = detail::name_in(node->arg)) detail::drop_carrier(*name);
    const uint32_t count = node->source_count;
    for (uint32_t i = 0; i < count; ++i) node->sources()[i].~UOp();
    node->~Node();
    deallocate(node, count);
  }

  std::array<Shard, shard_count> shards_;
};

UOp UOp::make(Op op, std::span<const UOp> src, const Arg& arg, int64_t tag) {
  const uint64_t of_arg = arg_hash(arg);
  uint64_t hash = hash_mix(static_cast<uint64_t>(op) * 64 + src.size(), of_arg);
  if (tag != 0) hash = hash_mix(hash, static_cast<uint64_t>(tag));
  for (size_t i = 0; i < src.size(); ++i) {
    if (!src[i]) raise(ErrorKind::Type, "{}: source {} is null", op_name(op), i);
    hash = hash_mix(hash, src[i].hash());
  }
  UOp out = InternTable::instance().intern(Key{
      op, src, arg, tag, hash, place_of(op, src, hash_mix(of_arg, static_cast<uint64_t>(tag)))});
  note_origin(out.node());
  return out;
}

UOp UOp::share(const Node* node) {
  auto* shared = const_cast<Node*>(node);
  shared->references.fetch_add(1, std::memory_order_relaxed);
  return UOp(shared);
}

void UOp::leave(Node* node) {
  if (node->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
    InternTable::instance().release(node);
}

uint32_t fresh_normal_bit() {
  static std::atomic<uint32_t> given{0};
  const uint32_t n = given.fetch_add(1);
  return n < 32 ? uint32_t{1} << n : 0;
}
int64_t live_node_count() { return InternTable::instance().live(); }
void set_death_hook(DeathHook hook) { death_hook.store(hook); }
void mark_foreign(const UOp& buffer) { buffer.node()->foreign = true; }
void withdraw(const UOp& node) { InternTable::instance().withdraw(const_cast<Node*>(node.node())); }
void watch(const UOp& node) { node.node()->watched.store(true, std::memory_order_relaxed); }

}  // namespace koine

#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "koine/ir/arg.hpp"

namespace koine {

class UOp;
struct Node;

/// A closed interval of values. Integers (bool, index included) are exact; floats bound every
/// value that is not NaN. `known` is false where nothing tighter than the dtype's range is known.
struct Interval {
  __int128 low = 0, high = 0;            ///< integers
  double float_low = 0, float_high = 0;  ///< floats
  bool may_be_nan = false;
  bool is_constant() const { return low == high; }
};

/// Where a value lives: on which device, and if on several, which axes they split.
struct Placement {
  Device device;
  AxisSet axes = {};  ///< none: not split
  bool operator==(const Placement&) const = default;
};

/// Handle on an immutable interned node: equal (op, src, arg, tag) is one node, so equality is
/// pointer equality. 8 bytes, reference-counted, safe to share between threads.
class UOp {
 public:
  UOp() = default;
  UOp(const UOp& other) noexcept;
  UOp(UOp&& other) noexcept : node_(std::exchange(other.node_, nullptr)) {}
  UOp& operator=(UOp other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~UOp() {
    if (node_ != nullptr) leave(node_);
  }

  /// Interns a node. Derives dtype and shape; throws Error naming op, operand and rule when the
  /// node is ill-typed.
  static UOp make(Op op, std::span<const UOp> src, const Arg& arg = {}, int64_t tag = 0);
  static UOp make(Op op, std::initializer_list<UOp> src, const Arg& arg = {}, int64_t tag = 0) {
    return make(op, std::span<const UOp>(src.begin(), src.size()), arg, tag);
  }

  explicit operator bool() const { return node_ != nullptr; }
  bool operator==(const UOp& other) const { return node_ == other.node_; }

  Op op() const;
  std::span<const UOp> src() const;
  const UOp& src(size_t i) const;
  const Arg& arg() const;
  /// Tells nodes apart that are equal otherwise; it means nothing else.
  int64_t tag() const;
  DType dtype() const;
  /// Content hash: equal in every run and process.
  uint64_t hash() const;
  /// Unique for the life of the process; never reused.
  uint64_t id() const;
  /// Handles and edges that hold this node.
  uint32_t use_count() const;

  /// The shape, itself a node: a Stack of index scalars; () is the empty Stack.
  UOp shape() const;
  size_t rank() const;
  /// One size; an index scalar.
  UOp dim(size_t axis) const;
  /// Concrete sizes; throws Error when one is symbolic.
  std::vector<int64_t> sizes() const;
  bool has_concrete_shape() const;
  /// Number of elements; throws Error when symbolic or above 2^62.
  int64_t numel() const;
  bool is_scalar() const { return rank() == 0; }

  bool is(Op op) const { return node_ != nullptr && this->op() == op; }
  /// Whether its arg is this mark; is any mark.
  bool is(Mark mark) const;
  bool is_marked() const { return std::holds_alternative<MarkArg>(arg()); }
  template <class T>
  const T& as() const {
    return std::get<T>(arg());
  }

  /// Of a leaf or a copy its own; else the first non-null one over the sources (amendment C7).
  Device device() const;
  /// The axis along which several devices split the value among them (the spec's `axis`, amendment
  /// C22). None: every device of the value holds all of it.
  std::optional<size_t> axis() const;

  // --- derived on demand, cached in the node, computed without recursion (derive.cpp)
  const Interval& bounds() const;
  /// Ranges that the value still depends on, by axis id; pointers live as long as this node.
  const std::vector<const Node*>& ranges() const;
  /// The address space of a buffer or of an Index into one; Global otherwise.
  AddrSpace addrspace() const;

  const Node* node() const { return node_; }
  /// A new handle on a node that is known to be alive.
  static UOp share(const Node* node);

 private:
  static void leave(Node* node);  // one handle fewer; the last one destroys it
  explicit UOp(Node* adopted) : node_(adopted) {}
  Node* node_ = nullptr;
  friend struct Node;
  friend class InternTable;
  friend class Borrowed;
};

/// A handle that counts nothing, for a node that something else keeps alive.
class Borrowed {
 public:
  explicit Borrowed(const Node* node) { new (handle_) UOp(const_cast<Node*>(node)); }
  operator const UOp&() const { return *reinterpret_cast<const UOp*>(handle_); }  // NOLINT

 private:
  alignas(UOp) std::byte handle_[sizeof(UOp)];  // made in place, never destroyed
};

/// Storage of a node. Only the table creates these; everything but the counters is immutable. The
/// sources follow the last member; what walks and the table look at lies beside them, for a node is
/// seldom in the caches.
struct Node {
  UOp shape;  ///< null: ()
  Placement placement;
  mutable std::atomic<const Interval*> interval{nullptr};
  mutable std::atomic<const std::vector<const Node*>*> range_set{nullptr};
  mutable std::atomic<uint32_t> normal{0};  ///< the rule sets of which none applies below
  mutable std::atomic<uint32_t> origin{0};  ///< the line that made it (`ir/origin`)
  static constexpr uint32_t several_origins = uint32_t{1} << 31;  ///< so did others, later
  Arg arg;
  uint64_t id;
  uint64_t hash;
  int64_t tag;
  Node* chain = nullptr;  ///< the next of its bucket; itself: withdrawn
  OpMask ops_below;       ///< of this node and all that it depends on
  std::atomic<uint32_t> references{1};
  Op op;
  DType dtype;
  bool scalar_stack : 1;  ///< a Stack of scalars: its shape (n,) is made on demand, which ends the
                          ///< regress
  bool varies : 1;        ///< whether a Variable is this or below it, in any body
  mutable bool foreign : 1;  ///< whether memory that others write is this or below it
  mutable std::atomic<bool> watched{false};  ///< a side table holds something for this id
  uint32_t source_count;
  uint32_t place;  ///< its bucket in the table is this, modulo the table's size
  UOp* sources() { return reinterpret_cast<UOp*>(this + 1); }
  const UOp* sources() const { return reinterpret_cast<const UOp*>(this + 1); }
  std::span<const UOp> src() const { return {sources(), source_count}; }
};

inline UOp::UOp(const UOp& other) noexcept : node_(other.node_) {
  if (node_ != nullptr) node_->references.fetch_add(1, std::memory_order_relaxed);
}
inline Op UOp::op() const { return node_->op; }
inline std::span<const UOp> UOp::src() const { return node_->src(); }
inline const UOp& UOp::src(size_t i) const { return node_->sources()[i]; }
inline const Arg& UOp::arg() const { return node_->arg; }
inline int64_t UOp::tag() const { return node_->tag; }
inline bool UOp::is(Mark mark) const {
  const MarkArg* own = node_ != nullptr ? std::get_if<MarkArg>(&node_->arg) : nullptr;
  return own != nullptr && own->mark == mark;
}
inline DType UOp::dtype() const { return node_->dtype; }
inline uint64_t UOp::hash() const { return node_->hash; }
inline Device UOp::device() const { return node_->placement.device; }
inline std::optional<size_t> UOp::axis() const { return node_->placement.axes.first(); }
inline uint64_t UOp::id() const { return node_->id; }
inline uint32_t UOp::use_count() const { return node_->references.load(std::memory_order_relaxed); }

/// Whether a set of ranges is the node's own, and not that of one of its sources.
bool owns_ranges(const Node* node, const std::vector<const Node*>* set);

/// Live nodes of the process; for leak tests.
int64_t live_node_count();

/// Called with the id of a watched node when it dies; side tables drop what they hold for it.
using DeathHook = void (*)(uint64_t id);
void set_death_hook(DeathHook hook);
/// Asks for the death hook to be called for this node.
void watch(const UOp& node);
inline bool is_watched(const UOp& node) {
  return node.node()->watched.load(std::memory_order_relaxed);
}

/// Says that others write the memory of a Buffer which nothing has been made of yet.
void mark_foreign(const UOp& buffer);
/// Takes a node out of the table: it stays what it is to those who have it, and whoever makes an
/// equal one gets another.
void withdraw(const UOp& node);

/// A node is immutable, so "the rules of set k change nothing here or below" holds for its life:
/// whoever finds it out marks the node, and the next walk stops there. One bit a set.
inline bool is_normal(const Node* node, uint32_t set) {
  return (node->normal.load(std::memory_order_relaxed) & set) != 0;
}
inline void mark_normal(const Node* node, uint32_t sets) {
  node->normal.fetch_or(sets, std::memory_order_relaxed);
}
/// A bit that nobody else has; 0, which marks nothing, once all are given out.
uint32_t fresh_normal_bit();

struct UOpHash {
  size_t operator()(const UOp& u) const { return u.hash(); }
};

}  // namespace koine

template <>
struct std::hash<koine::UOp> {
  size_t operator()(const koine::UOp& u) const noexcept { return u ? u.hash() : 0; }
};

#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "koine/ir/uop.hpp"

// Patterns read like the algebra they state:
//
//   const Pat x = any(0), c = constant(1);
//   rule("x*1", x * 1, [](const Match& m) { return m[0]; });
//
// A Pat is a value: an op set, sources, and an optional slot that captures the node it matched.
// The same slot twice must capture the same node.
namespace koine {

inline constexpr int slot_count = 10;

/// What the slots of a pattern captured: places in the graph below the root, which keeps them
/// alive.
class Match {
 public:
  explicit Match(const UOp& root) : root_(&root) {}
  const UOp& operator[](int slot) const { return *slots_[static_cast<size_t>(slot)]; }
  /// Captures `node`, or says whether the slot holds it already.
  bool capture(int slot, const UOp& node) {
    const UOp*& at = slots_[static_cast<size_t>(slot)];
    if (at == nullptr) at = &node;
    return *at == node;
  }
  /// The node the whole pattern matched.
  const UOp& root() const { return *root_; }

 private:
  std::array<const UOp*, slot_count> slots_{};
  const UOp* root_;
};

enum class DTypeClass : uint8_t { Any, Index, Integer, Float, Bool };

struct PatNode {
  OpSet ops;                                            // none set: any op
  std::vector<std::shared_ptr<const PatNode>> sources;  // empty: do not look below
  bool more_sources = false;                            // the node may have further sources
  bool commutative = false;                             // two sources match in either order
  int slot = -1;
  bool literal = false;  // a Const of this integer value
  int64_t value = 0;
  DTypeClass dtype = DTypeClass::Any;
};

class Pat {
 public:
  explicit Pat(PatNode node) : node_(std::make_shared<const PatNode>(std::move(node))) {}
  Pat(int64_t literal);  // NOLINT: a literal in a pattern is a constant of any dtype
  Pat(int literal) : Pat(static_cast<int64_t>(literal)) {}

  const PatNode& node() const { return *node_; }
  const std::shared_ptr<const PatNode>& shared() const { return node_; }
  /// The same pattern, capturing into `slot`.
  Pat as(int slot) const;
  /// The same pattern, for one class of dtypes.
  Pat of(DTypeClass dtype) const;

 private:
  std::shared_ptr<const PatNode> node_;
};

/// Any node, into a slot.
Pat any(int slot);
/// Any Const that is not invalid, into a slot.
Pat any_const(int slot);
Pat node(Op op, const std::vector<Pat>& sources = {});
Pat node(OpSet op, const std::vector<Pat>& sources = {});
/// The same, with possibly more sources than named.
Pat node_with(Op op, const std::vector<Pat>& sources);

Pat operator+(const Pat& a, const Pat& b);
Pat operator*(const Pat& a, const Pat& b);
Pat operator<(const Pat& a, const Pat& b);
Pat operator!=(const Pat& a, const Pat& b);
Pat operator&(const Pat& a, const Pat& b);
Pat operator|(const Pat& a, const Pat& b);
Pat operator^(const Pat& a, const Pat& b);
Pat pat_max(const Pat& a, const Pat& b);
Pat pat_idiv(const Pat& a, const Pat& b);
Pat pat_mod(const Pat& a, const Pat& b);
Pat pat_where(const Pat& p, const Pat& a, const Pat& b);
Pat pat_cast(const Pat& a);

bool match(const PatNode& pattern, const UOp& node, Match& m);

}  // namespace koine

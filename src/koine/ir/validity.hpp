#pragma once
#include <absl/container/flat_hash_set.h>

#include "koine/ir/node_map.hpp"
#include "koine/ir/uop.hpp"

// Which nodes may hold invalid elements: the surroundings of a Pad without fill and what is
// computed from them (amendment C27). Reduces skip them, and memory, which has no validity bit,
// resolves them.
namespace koine {

/// Whether a node is a Load into LOCAL memory: a buffer of each kernel that reads it.
bool goes_to_local(const UOp& node);
/// The axes of a value that such a Load holds at once: some of them, for each place along the
/// others, or all.
Ints row_axes(const UOp& load);
/// Whether a node is computed into a buffer of its own wherever it stands.
bool asks_for_buffer(const UOp& node);
/// Whether a Call can be handed a node as it stands: memory, or what is computed into some.
bool lies_in_memory(const UOp& node);
/// Whether all elements of a node are valid whatever those of its sources are.
bool is_whole(const UOp& node);

/// Whether a node brings invalid elements in: a Pad without fill, or the invalid constant.
bool brings_invalid(const UOp& node);

/// The nodes of which some elements may be invalid, among those that were visited.
class PartlyInvalid {
 public:
  /// In topological order.
  void visit(const UOp& node);
  bool contains(const UOp& node) const { return nodes_.contains(node.node()); }

 private:
  absl::flat_hash_set<const Node*> nodes_;
};

bool may_be_invalid(const UOp& value);

/// Which elements of the nodes that were visited are invalid, as graphs.
class InvalidElements {
 public:
  /// In topological order.
  void visit(const UOp& node);
  /// The same of a node whose values the graphs shall take from `same`, which is the node over
  /// other sources: those that hold any value where an element is invalid.
  void visit(const UOp& node, const UOp& same);
  /// A bool for each element of a node: whether it is invalid; null where none is.
  UOp of(const UOp& node) const;

 private:
  NodeMap<UOp> known_;
};

}  // namespace koine

#pragma once
#include <absl/container/flat_hash_map.h>

#include <string_view>
#include <vector>

#include "koine/ir/graph.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// What a value shows, below all movement but Stacks.
UOp below_views(UOp value);

/// What `decide` knows of the values of a program: what they are made of, and which of them lie in
/// memory so far.
class ValueFacts {
 public:
  /// `strict`: sums of floats keep their order.
  ValueFacts(const UOp& program, bool strict);

  bool strict() const { return strict_; }
  const NodeList& order() const { return order_; }
  uint32_t number(const UOp& u) const { return numbers_.find(u.node()); }
  /// All consumers of a node before it. The order of operands and the numbers of Params change
  /// nothing.
  std::vector<uint32_t> consumers_first() const;

  uint32_t consumers(const UOp& u) const { return consumers_[number(u)]; }
  /// False for what is made of constants alone, which folds away; a deep nest of folds over them
  /// does not.
  bool reads_memory(const UOp& u) const { return reads_memory_[number(u)]; }
  /// Whether a fold is in it, itself or one that nothing else reads.
  bool folds(const UOp& u) const { return folds_[number(u)]; }
  /// Whether a condition compares positions with numbers: the compiler makes a load, or a store, at
  /// the one position out of what such a condition picks, so it is worth nothing in memory.
  bool picks(const UOp& u) const { return picks_[number(u)]; }
  /// Whether a value is 0 but at places that a condition picks.
  bool is_chosen_by_place(const UOp& value) const;

  /// The Store of an output that holds a value for all who read that; null: none does.
  const Node* output_of(const UOp& u) const;
  /// Gives a value memory of its own; `reason` lives as long as the program.
  void give_memory(const UOp& u, std::string_view reason) { decided_.emplace(u.node(), reason); }
  /// Why a value has memory of its own; empty: it has none.
  std::string_view reason_of(const UOp& u) const;
  /// Whether a value lies in memory, of its own or of another.
  bool in_memory(const UOp& u) const;

 private:
  bool sees_memory(const UOp& u) const;
  uint32_t constant_folds(const UOp& u) const;
  bool has_fold(const UOp& u) const;
  bool tests_a_position(const UOp& u) const;

  bool strict_;
  NodeList order_;
  NodeNumbers numbers_;
  std::vector<uint32_t> consumers_;       // by number, as the next four
  std::vector<uint32_t> constant_folds_;  // nested, in what is made of constants alone
  std::vector<bool> reads_memory_;
  std::vector<bool> folds_;
  std::vector<bool> picks_;
  absl::flat_hash_map<const Node*, const Node*> outputs_;  // value -> its Store
  absl::flat_hash_map<const Node*, std::string_view> decided_;
};

}  // namespace koine

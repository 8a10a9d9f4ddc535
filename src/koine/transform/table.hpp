#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "koine/ir/uop.hpp"

// One row an op, one column a transform. Each column is a file with one switch over all ops, so
// that an op without a cell does not compile.
namespace koine {

/// What a transform does with an op: it follows a rule; or there is nothing to do, which the op's
/// meaning proves; or it refuses, and says why (amendment C40).
template <class Rule>
class Cell {
 public:
  static Cell by(Rule r) { return {r, {}}; }
  static Cell nothing(std::string_view proof) { return {nullptr, proof, true}; }
  static Cell refused(std::string_view reason) { return {nullptr, reason, false}; }

  /// Null: nothing to do, or refused.
  Rule rule() const { return rule_; }
  bool is_refused() const { return rule_ == nullptr && !nothing_; }
  /// The proof or the reason; empty where there is a rule.
  std::string_view words() const { return words_; }

 private:
  Cell(Rule r, std::string_view words, bool nothing = false)
      : rule_(r), words_(words), nothing_(nothing) {}
  Rule rule_;
  std::string_view words_;
  bool nothing_;
};

using Cotangents = std::vector<UOp>;  ///< one a source; null: none
/// The cotangents of a node's sources from its own, which has its dtype and shape. Those of an
/// elementwise op have the node's shape: the driver sums them to that of a source that was
/// broadcast.
using VjpRule = Cotangents (*)(const UOp& node, const UOp& cotangent);

/// What a transform that goes forward, from sources to results, knows at a node.
struct ForwardStep {
  const UOp& node;
  /// What each source carries: its tangent, or its values for all examples; null: nothing, so that
  /// its tangent is 0, or it is the same for each example.
  std::span<const UOp> carried;
  const UOp& examples;  ///< how many, an index; null: tangents are carried
};
/// What a node carries; null: nothing. A tangent has the dtype and shape of its value, values for
/// all examples have an axis for these before those of the value.
using ForwardRule = UOp (*)(const ForwardStep& step);

/// What one device of several computes of a node that they hold.
struct ShardStep {
  const UOp& node;
  size_t device;               ///< its number among those of the node
  std::span<const UOp> parts;  ///< what it has of each source; of one that is elsewhere, all of it
};
/// The device's part of the node. Along which axis a node is split is derived when it is made
/// (ir/placement), which refuses what would cut across the parts.
using ShardRule = UOp (*)(const ShardStep& step);

using VjpCell = Cell<VjpRule>;
using ForwardCell = Cell<ForwardRule>;
using ShardCell = Cell<ShardRule>;

VjpCell vjp_cell(Op op);
ForwardCell jvp_cell(Op op);
ForwardCell batch_cell(Op op);
ShardCell shard_cell(Op op);

/// All that transforms know of an op.
struct Row {
  VjpCell vjp;
  ForwardCell jvp, batch;
  ShardCell shard;
};
inline Row row_of(Op op) { return {vjp_cell(op), jvp_cell(op), batch_cell(op), shard_cell(op)}; }

/// Of effects side by side.
inline constexpr std::string_view of_groups = "its Stores have no order: store one after the other";
/// Of an op that no graph of values holds.
inline constexpr std::string_view of_kernels_alone = "it stands in kernels alone, not among values";

}  // namespace koine

#pragma once
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "koine/lower/cuts.hpp"
#include "koine/lower/rows.hpp"
#include "koine/lower/running.hpp"
#include "koine/lower/use.hpp"
#include "koine/lower/value_facts.hpp"

namespace koine {

/// Why a value gets memory of its own, asked for each when all places that it is read at are known
/// (`decide` walks and asks). What a kernel holds of those asked before counts too: its product,
/// its rows, the loop of its running folds, how long it is.
class Reasons {
 public:
  /// `row_bytes`: how much LOCAL memory the rows of a kernel may have. `next_range`: ids of loops
  /// that are made up on the way.
  /// `tensor_cores`: products take narrow floats as they lie in memory.
  Reasons(const ValueFacts& facts, int64_t row_bytes, bool tensor_cores, int64_t& next_range)
      : facts_(facts),
        most_row_bytes_(static_cast<double>(row_bytes)),
        tensor_cores_(tensor_cores),
        cuts_(cuts_of(facts)),
        next_range_(next_range) {}

  /// Empty: the value is computed where it is read, or a row of its kernel (`row`).
  std::string_view of(const UOp& u, const std::vector<Use>& uses);
  /// The value as a row of the one kernel that reads it.
  std::optional<Row> row(const UOp& u, const std::vector<Use>& uses) const;
  /// A fold that goes on along a loop of its kernel.
  std::optional<Scan> scan(const UOp& u, const Use& use) const;

  /// A value is read as memory, and why.
  void wants_memory(const UOp& u, std::string_view reason) { wanted_.emplace(u.node(), reason); }
  bool is_wanted(const UOp& u) const { return wanted_.contains(u.node()); }
  /// A kernel runs Stores of an assignment.
  void assigns(const Node* kernel) { held_[kernel].assigns = true; }
  /// A kernel has a row more.
  void holds(const Row& row, const Node* kernel);

 private:
  // What a kernel holds so far.
  struct Held {
    bool assigns = false;           // it runs Stores of an assignment
    size_t operations = 0;          // elementwise
    const Node* product = nullptr;  // the one that has its register tile
    std::optional<std::pair<const Node*, bool>>
        running;   // the loop of its running folds, and its way
    int rows = 0;  // in LOCAL memory
    double row_bytes = 0;
  };

  Held held(const Node* kernel) const;
  bool is_factor_of_core(const UOp& u) const;
  bool is_join_of_many(const UOp& u);
  std::string_view broken_fold(const UOp& u, const Use& use);
  static bool is_its_product(const UOp& u, Held& kernel);
  std::string_view grown(const UOp& u, Held& kernel) const;

  const ValueFacts& facts_;
  double most_row_bytes_;
  bool tensor_cores_;
  absl::flat_hash_set<const Node*> cuts_;
  int64_t& next_range_;
  absl::flat_hash_map<const Node*, std::string_view> wanted_;  // read as memory, and why
  absl::flat_hash_map<const Node*, Held> held_;                // by kernel
  absl::flat_hash_set<const Node*> joining_;                   // a join may go on there
};

}  // namespace koine

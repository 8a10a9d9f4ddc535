#pragma once
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <functional>
#include <span>
#include <vector>

#include "koine/ir/uop.hpp"

namespace koine {

/// Which values get a buffer of their own. Answers are reasons, null for "fuse" (amendment C38).
class Fusion {
 public:
  explicit Fusion(const UOp& program);

  /// Several kernels want it and computing it again is not cheap, or a marker asks for it.
  const char* must_realize(const UOp& node) const;

  /// Reading `node` at place `at` inside the loops `context` would compute it more than once: a
  /// loop that the place does not depend on stands outside one that it does.
  const char* repeats_work(const UOp& node, const std::vector<UOp>& at, const UOp& guard,
                           const std::vector<UOp>& context,
                           const std::function<bool(const UOp&)>& realized) const;

  /// Whether the graph of `value` reads `version` (a buffer or an After of one).
  bool reads(const UOp& value, const UOp& version) const;
  /// The After that follows a version of a buffer in this program; null when it is the last.
  UOp later_version(const UOp& version) const;

 private:
  absl::flat_hash_set<const Node*> shared_;
  absl::flat_hash_set<const Node*> partly_invalid_;  // memory could not hold these: always fused
  absl::flat_hash_map<const Node*, UOp> later_;
};

/// Whether some elements may be invalid: a Pad without fill below, not resolved by a Reduce or by
/// memory on the way.
bool may_be_invalid(const UOp& value);

/// Scalar operations to compute one element, following sources until `stop`; saturates.
double element_cost(const UOp& node, const std::function<bool(const UOp&)>& stop);

}  // namespace koine

#pragma once
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <functional>
#include <span>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/ir/validity.hpp"

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

  /// Whether some elements of this node of the program may be invalid: memory could not hold it.
  bool partly_invalid(const UOp& node) const { return partly_invalid_.contains(node); }

 private:
  absl::flat_hash_set<const Node*> shared_;
  PartlyInvalid partly_invalid_;  // memory could not hold these: always fused
};

/// Scalar operations to compute one element, following sources until `stop`; saturates.
double element_cost(const UOp& node, const std::function<bool(const UOp&)>& stop);

}  // namespace koine

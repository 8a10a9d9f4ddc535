#pragma once
#include <functional>
#include <string_view>
#include <vector>

#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// Stage 5. Only what the target runs is left: ops it lacks are decomposed, narrow floats are
/// emulated, and values of more than one axis are taken apart into vectors along the last axis.
/// A vector access that is contiguous has the index Add(Expand(base), Stack(0, 1, ..., n-1)).
UOp select(const UOp& ast, const Target& target);

/// A part of a stage with a name of its own.
struct StageStep {
  std::string_view name;
  std::function<UOp(const UOp&)> apply;
};
/// The steps that `select` takes, in order.
std::vector<StageStep> select_steps(const Target& target);

}  // namespace koine

#pragma once
#include <functional>
#include <vector>

#include "koine/lower/pipeline.hpp"

namespace koine::test {

/// A stage with one thing wrong in it.
struct Broken {
  const char* name;
  const char* stage;
  std::function<UOp(const UOp& node)> rule;        ///< one node, in one pass; null: no change
  std::function<UOp(const UOp& graph)> pass = {};  ///< the whole graph
};

/// What does that to the graphs of its stage; `broken` lives as long.
StageChange changes_of(const Broken& broken);

/// Every stage, broken in the ways that a wrong line may break it.
std::vector<Broken> broken_graphs();

}  // namespace koine::test

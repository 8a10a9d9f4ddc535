#pragma once
#include <functional>

#include "koine/differential/reduce.hpp"

namespace koine::test {

using koine::Fails;
using koine::graph_size;

/// The reducer of the compiler with what tests know of memory.
struct Reducer {
  std::function<UOp(const UOp& node)> leaf;
  /// Gives memory to a Buffer whose size was changed; null: sizes stay.
  std::function<UOp(const UOp& buffer)> resized;
  int64_t most_tries = 3000;
};

UOp reduce_graph(const UOp& graph, const Fails& fails, const Reducer& how = {});

}  // namespace koine::test

#include "reduce.hpp"

#include "koine/engine/engine.hpp"

namespace koine::test {

UOp reduce_graph(const UOp& graph, const Fails& fails, const Reducer& how) {
  koine::Reducer inner;
  inner.leaf = how.leaf;
  inner.sizes = how.resized != nullptr;
  inner.most_tries = how.most_tries;
  if (how.resized)
    inner.resized = [&](const UOp& buffer, const UOp& was) {
      return memory_of(was) ? how.resized(buffer) : buffer;
    };
  return koine::reduce_failure(graph, fails, inner);
}

}  // namespace koine::test

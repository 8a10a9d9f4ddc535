#include "koine/lower/split_reduce.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/cost.hpp"

namespace koine {
namespace {

bool reads_buffer(const UOp& u) {
  const auto order = toposort(u);
  return std::any_of(order.begin(), order.end(), [](const UOp& n) {
    return n.is(Op::Param) && n.as<BufferArg>().name.empty();
  });
}

// Splits the outermost long axis n into (chunks, n / chunks).
UOp split_one(const UOp& node) {
  const ReduceArg& arg = node.as<ReduceArg>();
  if (!node.has_concrete_shape() || !node.src(0).has_concrete_shape()) return node;
  const UOp& value = node.src(0);
  const std::vector<int64_t> sizes = value.sizes();
  const int64_t results = node.numel();
  if (results == 0 || results > most_results_to_split ||
      value.numel() / results < least_elements_to_split)
    return node;
  for (const int64_t axis : arg.axes) {
    const auto at = static_cast<size_t>(axis);
    if (sizes[at] % split_parts != 0 || sizes[at] == split_parts || !reads_buffer(value)) continue;
    std::vector<int64_t> split = sizes;
    split[at] = split_parts;
    split.insert(split.begin() + axis + 1, sizes[at] / split_parts);
    Ints inner;
    for (const int64_t a : arg.axes) inner.push_back(a >= axis ? a + 1 : a);
    const UOp partial = reduce(arg.op, reshape(value, shape_of(split)), inner);
    const UOp total = reduce(arg.op, contiguous(partial), {axis});
    return reshape(total, node.shape());
  }
  return node;
}

}  // namespace

UOp split_large_reduces(const UOp& program, const CompileOptions& how) {
  if (how.strict || how.noopt) return program;
  return transform_graph(program, [](const UOp&, const UOp& node) {
    return node.is(Op::Reduce) ? split_one(node) : node;
  });
}

}  // namespace koine

#include "koine/lower/shared_products.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine {
namespace {

bool is_float_product(const UOp& u) { return u.is(Op::Mul) && is_float(u.dtype()); }

// What shows the elements of its first source as they are; a fold of one element is that.
bool shows(const UOp& u) {
  if (!u.is(Op::Reduce)) return is_movement(u.op()) || op_info(u.op()).group == GroupOp::Marker;
  const Ints& axes = u.as<ReduceArg>().axes;
  return std::all_of(axes.begin(), axes.end(), [&](int64_t axis) {
    return is_const(u.src(0).dim(static_cast<size_t>(axis)), 1);
  });
}

}  // namespace

UOp round_shared_products(const UOp& program) {
  const NodeList order = toposort(program);
  if (std::none_of(order.begin(), order.end(), is_float_product)) return program;
  // At how many places each is read, through what only shows it; 2 stands for more.
  NodeMap<int> reads;
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& u = order[i];
    const int through = shows(u) ? reads[u.node()] : 1;
    for (const UOp& s : u.is(Op::Fence) ? u.src().first(1) : u.src())
      if (is_float(s.dtype())) {
        int& count = reads[s.node()];
        count = std::min(2, count + through);
      }
  }
  return transform_graph(program, [&](const UOp& old, const UOp& node) {
    return is_float_product(old) && reads[old.node()] > 1 ? rounded_product(node) : node;
  });
}

}  // namespace koine

#include "koine/lower/shared_products.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/lower/value_facts.hpp"

namespace koine {
namespace {

bool is_float_product(const UOp& u) { return u.is(Op::Mul) && is_float(u.dtype()); }

// A sum of one element that a place picks, of which index rules leave that element.
bool picks_one(const UOp& reduce) {
  if (reduce.as<ReduceArg>().op != Op::Add) return false;
  const UOp body = below_views(reduce.src(0));
  if (!body.is(Op::Where)) return false;
  const UOp condition = below_views(body.src(0));
  return condition.is(Op::CmpNe) || condition.is(Op::And);
}

// Whether an operation with a constant may be none, such as a product with 1, or become one with
// another.
bool may_fold(const UOp& u, size_t source) {
  if (op_info(u.op()).group != GroupOp::Binary) return false;
  UOp other = below_views(u.src(1 - source));
  while (other.is(Op::Cast)) other = below_views(other.src(0));
  if (!other.is(Op::Const)) return false;
  return !u.is(Op::Add) ||
         (is_float(other.dtype()) ? const_double(other) == 0 : is_const(other, 0));
}

// Whether a node shows elements of a source as they are, at least where rules know what it chooses:
// a slice of joined values is one of these.
bool shows(const UOp& u, size_t source) {
  switch (u.op()) {
    case Op::Where:
      return source > 0;
    case Op::Index:
      return source == 0;
    case Op::Stack:
    case Op::Load:
    case Op::After:  // what was stored, where no memory comes of it
    case Op::Group:
    case Op::Store:
      return true;
    case Op::Reduce: {
      const Ints& axes = u.as<ReduceArg>().axes;
      return picks_one(u) || std::all_of(axes.begin(), axes.end(), [&](int64_t axis) {
               return is_const(u.src(0).dim(static_cast<size_t>(axis)), 1);
             });
    }
    default:
      return is_movement(u.op()) || op_info(u.op()).group == GroupOp::Marker || may_fold(u, source);
  }
}

}  // namespace

UOp round_shared_products(const UOp& program) {
  const NodeList order = toposort(program);
  if (std::none_of(order.begin(), order.end(), is_float_product)) return program;
  // At how many places each is read, through what only shows it; 2 stands for more.
  NodeMap<int> reads;
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& u = order[i];
    const std::span<const UOp> sources = u.is(Op::Fence) ? u.src().first(1) : u.src();
    for (size_t k = 0; k < sources.size(); ++k) {
      if (!is_float(sources[k].dtype()) && sources[k].dtype() != DType::Void) continue;
      const int through = shows(u, k) ? reads[u.node()] : 1;
      int& count = reads[sources[k].node()];
      count = std::min(2, count + through);
    }
  }
  return transform_graph(program, [&](const UOp& old, const UOp& node) {
    return is_float_product(old) && reads[old.node()] > 1 ? rounded_product(node) : node;
  });
}

}  // namespace koine

#include "koine/lower/cost.hpp"

#include <absl/container/flat_hash_set.h>

#include <vector>

#include "koine/ir/build.hpp"

namespace koine {
namespace {

double own_cost(const UOp& u) {
  switch (u.op()) {
    case Op::Cast:
    case Op::Bitcast:
    case Op::Trunc:
      return 0.5;
    case Op::Fdiv:
    case Op::Recip:
    case Op::Sqrt:
    case Op::Idiv:
      return 6;
    case Op::Mod:
      return is_float(u.dtype()) ? 80 : 6;
    case Op::Exp2:
    case Op::Log2:
      return 14;
    case Op::Sin:
    case Op::Pow:
      return 40;
    case Op::Threefry:
      return 80;
    default:
      return is_elementwise(u.op()) ? 1 : 0;
  }
}

bool is_leaf(const UOp& u) { return u.is(Op::Param) || u.is(Op::Buffer) || u.is(Op::After); }

constexpr size_t cost_horizon = 300;  // nodes looked at before "expensive" is the answer

}  // namespace

double largest(const UOp& size) {
  return size.is(Op::Const) ? static_cast<double>(const_int(size))
                            : static_cast<double>(size.bounds().high);
}

double reduced_size(const UOp& reduce) {
  double n = 1;
  for (const int64_t axis : reduce.as<ReduceArg>().axes)
    n *= largest(reduce.src(0).dim(static_cast<size_t>(axis)));
  return n;
}

double element_cost(const UOp& node, const std::function<bool(const UOp&)>& stop) {
  double total = 0;
  size_t seen = 0;
  struct Frame {
    UOp node;
    double times;
  };
  std::vector<Frame> stack{{node, 1}};
  absl::flat_hash_set<const Node*> done;
  while (!stack.empty()) {
    const Frame f = stack.back();
    stack.pop_back();
    if (!done.insert(f.node.node()).second) continue;
    if (++seen > cost_horizon) return 1e12;
    double times = f.times;
    if (f.node.is(Op::Reduce)) {
      times *= reduced_size(f.node);
      total += times;
    }
    total += own_cost(f.node) * f.times;
    if (is_movement(f.node.op()) || f.node.is(Op::Reduce) || is_elementwise(f.node.op()) ||
        f.node.is(Op::Detach) || f.node.is(Op::Assume) || f.node.is(Op::ContiguousBackward) ||
        f.node.is(Op::Contiguous)) {
      const size_t count =
          is_movement(f.node.op()) && !f.node.is(Op::Stack) ? 1 : f.node.src().size();
      for (size_t i = 0; i < count; ++i)
        if (!is_leaf(f.node.src(i)) && !(stop && stop(f.node.src(i))))
          stack.push_back({f.node.src(i), times});
    }
  }
  return total;
}

}  // namespace koine

#include "koine/lower/fusion.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"

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

double size_of(const UOp& bound) {
  return bound.is(Op::Const) ? static_cast<double>(const_int(bound))
                             : static_cast<double>(bound.bounds().high);
}

double reduced_size(const UOp& u) {
  double n = 1;
  for (const int64_t axis : u.as<ReduceArg>().axes)
    n *= size_of(u.src(0).dim(static_cast<size_t>(axis)));
  return n;
}

bool is_leaf(const UOp& u) { return u.is(Op::Param) || u.is(Op::Buffer) || u.is(Op::After); }

constexpr size_t cost_horizon = 300;  // nodes looked at before "expensive" is the answer

// Whether anything is read from memory below: what is made of constants alone folds away.
bool reads_memory(const UOp& node) {
  size_t seen = 0;
  std::vector<UOp> stack{node};
  absl::flat_hash_set<const Node*> done;
  while (!stack.empty()) {
    const UOp u = stack.back();
    stack.pop_back();
    if (!done.insert(u.node()).second) continue;
    if (is_leaf(u) || u.is(Op::Load)) return !(u.is(Op::Param) && !u.as<BufferArg>().name.empty());
    if (++seen > cost_horizon) return true;
    for (const UOp& s : u.src()) stack.push_back(s);
  }
  return false;
}

}  // namespace

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

Fusion::Fusion(const UOp& program) {
  const NodeList order = toposort(program);
  for (const UOp& u : order) partly_invalid_.visit(u);
  // Which kernels want a node: none yet (null), one (its root), or several (shared).
  absl::flat_hash_map<const Node*, const Node*> wanted_by;
  absl::flat_hash_set<const Node*> by_many;
  absl::flat_hash_map<const Node*, const Node*> kernel_of;  // of a Store
  auto want = [&](const UOp& node, const Node* root) {
    auto [it, fresh] = wanted_by.try_emplace(node.node(), root);
    if (!fresh && it->second != root) by_many.insert(node.node());
  };
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& u = order[i];
    if (u.is(Op::After)) {  // the Stores of one dependency are one kernel
      for (const UOp& d : u.src().subspan(1))
        for (const UOp& s : stores_in(d)) kernel_of.emplace(s.node(), d.node());
      continue;
    }
    if (u.is(Op::Store)) {
      const auto kernel = kernel_of.find(u.node());
      const Node* root = kernel == kernel_of.end() ? u.node() : kernel->second;
      for (const UOp& value : u.src().subspan(1)) want(value, root);
      for (const UOp* view = &u.src(0); is_movement(view->op()); view = &view->src(0))
        if (view->is(Op::Index))
          for (const UOp& which : view->src().subspan(1)) want(which, root);
      continue;
    }
    if (u.is(Op::Sink) || u.dtype() == DType::Void) continue;
    const auto it = wanted_by.find(u.node());
    if (it == wanted_by.end()) continue;  // a shape or an offset
    const Node* root = it->second;
    bool own_kernel = asks_for_buffer(u);
    if (by_many.contains(u.node())) {
      const bool worth =
          u.is(Op::Reduce) || (is_elementwise(u.op()) && element_cost(u, nullptr) >= 4);
      if (worth && reads_memory(u) && !partly_invalid_.contains(u)) {
        shared_.insert(u.node());
        own_kernel = true;
      }
    }
    const bool movement = is_movement(u.op()) && !u.is(Op::Stack) && !u.is(Op::Index);
    const size_t count = movement ? 1 : u.src().size();
    for (size_t k = 0; k < count; ++k) {
      want(u.src(k), own_kernel ? u.node() : root);
      if (!own_kernel && by_many.contains(u.node())) by_many.insert(u.src(k).node());
    }
    if (u.is(Op::Pad) && u.src().size() == 4) want(u.src(3), own_kernel ? u.node() : root);
  }
}

const char* Fusion::must_realize(const UOp& node) const {
  if (asks_for_buffer(node)) return "asked for by contiguous()";
  if (shared_.contains(node.node())) return "several kernels read it";
  return nullptr;
}

const char* Fusion::repeats_work(const UOp& node, const std::vector<UOp>& at, const UOp& guard,
                                 const std::vector<UOp>& context,
                                 const std::function<bool(const UOp&)>& realized) const {
  if (!is_elementwise(node.op()) && !node.is(Op::Reduce)) return nullptr;
  if (context.empty() || partly_invalid_.contains(node)) return nullptr;
  absl::flat_hash_set<const Node*> used;
  for (const UOp& place : at)
    for (const Node* r : place.ranges()) used.insert(r);
  if (guard)
    for (const Node* r : guard.ranges()) used.insert(r);
  int64_t innermost = 0;
  double iterations = 1, distinct = 1, outer_repeats = 1;
  bool in_reduce = false, any_missing = false;
  for (const UOp& r : context)
    if (used.contains(r.node())) innermost = std::max(innermost, r.as<RangeArg>().id);
  for (const UOp& r : context) {
    const double size = size_of(r.src(0));
    iterations *= size;
    if (used.contains(r.node())) {
      distinct *= size;
      in_reduce |= r.as<RangeArg>().type == AxisType::Reduce;
    } else {
      any_missing = true;
      if (r.as<RangeArg>().id < innermost) outer_repeats *= size;
    }
  }
  if (node.is(Op::Reduce) && in_reduce && reads_memory(node) &&
      iterations * reduced_size(node) > 4096)
    return "a reduce of reduces";
  if (!any_missing) return nullptr;
  if (!reads_memory(node)) return nullptr;
  const double cost = element_cost(node, realized);
  if (outer_repeats > 1 && cost * distinct * (outer_repeats - 1) > 0.25 * iterations)
    return "read under a loop it does not depend on";
  // Nothing is repeated (the loops it lacks are inside): but a reduce for few rows would leave one
  // thread with all of its work.
  const bool heavy = cost >= 32;
  if (heavy && distinct < 8 && cost * distinct > 8192) return "a long reduce for few results";
  return nullptr;
}

}  // namespace koine

#include "koine/lower/cost.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <span>
#include <vector>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/symbolic.hpp"

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

// What is computed with a value, not read at a place of it.
std::span<const UOp> computed_sources(const UOp& u) {
  if (is_movement(u.op()) && !u.is(Op::Stack)) return u.src().first(1);
  const bool passes = u.is(Op::Stack) || u.is(Op::Reduce) || is_elementwise(u.op()) ||
                      u.is(Op::Detach) || u.is(Op::Assume) || u.is(Op::ContiguousBackward) ||
                      u.is(Op::Contiguous);
  return passes ? u.src() : std::span<const UOp>();
}

// How often a node of a kernel is computed; of a Reduce, how often it folds. A loop whose length
// depends on another is that of a running fold, which goes on with the one that it counts.
double rounds_of(const UOp& u) {
  double rounds = 1;
  const UOp& inside = u.is(Op::Reduce) ? u.src(0) : u;
  for (const Node* loop : inside.ranges())
    if (const UOp& bound = loop->sources()[0]; bound.ranges().empty()) rounds *= largest(bound);
  return rounds;
}

using Nodes = absl::flat_hash_set<const Node*>;

// Whether a node computes a place, or tests one: loops and gates, and no work on values.
bool is_about_places(const UOp& u, const Nodes& tests) {
  if (u.dtype() == DType::Index) return true;
  return u.dtype() == DType::Bool && is_elementwise(u.op()) &&
         std::all_of(u.src().begin(), u.src().end(), [&](const UOp& s) {
           return s.is(Op::Const) || s.dtype() == DType::Index || tests.contains(s.node());
         });
}

}  // namespace

double largest(const UOp& size) {
  return size.is(Op::Const) ? static_cast<double>(const_int(size))
                            : static_cast<double>(size.bounds().high);
}

double turns_of(std::span<const UOp> loops) {
  double out = 1;
  for (const UOp& loop : loops) out *= largest(loop.src(0));
  return out;
}

double elements_of(const UOp& u) {
  double out = 1;
  for (size_t i = 0; i < u.rank(); ++i) out *= largest(u.dim(i));
  return out;
}

double reduced_size(const UOp& reduce) {
  double n = 1;
  for (const int64_t axis : reduce.as<ReduceArg>().axes)
    n *= largest(reduce.src(0).dim(static_cast<size_t>(axis)));
  return n;
}

double element_cost(const UOp& node, const std::function<bool(const UOp&)>& stop) {
  auto is_counted = [&](const UOp& u) { return !is_leaf(u) && !(stop && stop(u)); };
  struct Frame {
    const UOp* node;
    std::span<const UOp> rest;
  };
  // How often each is computed: within a fold as often as there, whichever consumer is met first.
  absl::flat_hash_map<const Node*, double> times{{node.node(), 1}};
  std::vector<const UOp*> order;  // sources before their consumers
  std::vector<Frame> stack{{&node, computed_sources(node)}};
  while (!stack.empty()) {
    Frame& f = stack.back();
    if (f.rest.empty()) {
      order.push_back(f.node);
      stack.pop_back();
      continue;
    }
    const UOp& s = f.rest.back();
    f.rest = f.rest.first(f.rest.size() - 1);
    if (!is_counted(s) || !times.emplace(s.node(), 0).second) continue;
    if (times.size() > cost_horizon) return 1e12;
    stack.push_back({&s, computed_sources(s)});
  }
  double total = 0;
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& u = *order[i];
    double each = times[u.node()];
    total += own_cost(u) * each;
    if (u.is(Op::Reduce)) total += each *= reduced_size(u);
    for (const UOp& s : computed_sources(u))
      if (const auto it = times.find(s.node()); it != times.end())
        it->second = std::max(it->second, each);
  }
  return total;
}

bool is_operation(const UOp& u) { return is_elementwise(u.op()) && u.dtype() != DType::Index; }

size_t operations_of(const UOp& u) {
  constexpr double least_expanded = 40;
  if (!is_operation(u)) return 0;
  const double cost = own_cost(u);
  return cost < least_expanded ? 1 : static_cast<size_t>(cost);
}

KernelEstimate estimate_of(const UOp& kernel) {
  struct Bytes {
    double accessed = 0, whole = 0;
  };
  KernelEstimate out;
  absl::flat_hash_map<const Node*, Bytes> buffers;
  Nodes tests;  // of places
  for (const UOp& u : toposort(kernel)) {
    const bool accesses = u.is(Op::Load) || u.is(Op::Store);
    if (!is_elementwise(u.op()) && !u.is(Op::Reduce) && !accesses) continue;
    const double rounds = rounds_of(u);
    const bool places = is_about_places(u, tests);
    if (places) tests.insert(u.node());
    if (u.dtype() != DType::Index) out.steps += rounds;
    if (!places && !accesses && !u.is(Op::Cast)) out.operations += rounds;
    if (!accesses || !accessed_buffer(u).is(Op::Param)) continue;  // the kernel's own
    const UOp& buffer = accessed_buffer(u);
    const auto size = static_cast<double>(item_size(buffer.dtype()));
    Bytes& bytes = buffers[buffer.node()];
    bytes.accessed += rounds * size;
    bytes.whole = buffer.src().empty() ? 0 : largest(product(buffer.src(0))) * size;
  }
  for (const auto& [buffer, bytes] : buffers) out.bytes += std::min(bytes.accessed, bytes.whole);
  return out;
}

}  // namespace koine

#include "koine/differential/reduce.hpp"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"

namespace koine {
namespace {

bool is_shape_part(const UOp& u) {
  return u.is(Op::Const) || (u.is(Op::Stack) && u.dtype() == DType::Index);
}

bool takes_any_number(const UOp& u) {
  return u.is(Op::Sink) || u.is(Op::Group) || u.is(Op::Tuple) || u.is(Op::Stack) || u.is(Op::After);
}

UOp spread_one(const UOp& node) {
  if (node.dtype() == DType::Void || node.is(Op::Range)) return {};
  const UOp one = constant_int(node.dtype(), 1);
  if (node.rank() == 0) return one;
  return expand(reshape(one, shape_of(std::vector<int64_t>(node.rank(), 1))), node.shape());
}

class Reduction {
 public:
  Reduction(UOp graph, const Fails& fails, const Reducer& how)
      : best_(std::move(graph)), fails_(fails), how_(how), tries_(how.most_tries) {}

  UOp run() {
    for (bool again = true; again && tries_ > 0;) {
      again = false;
      while (tries_ > 0 && shrink_root()) again = true;
      while (tries_ > 0 && shrink_nodes()) again = true;
      while (tries_ > 0 && drop_ranges()) again = true;
      if (tries_ > 0 && accept([&] { return first_lanes(); })) again = true;
      while (tries_ > 0 && shrink_constants()) again = true;
    }
    return best_;
  }

 private:
  // Smaller first by nodes, then by what the constants and sizes add up to.
  static std::pair<int64_t, double> cost(const UOp& graph) {
    double numbers = 0;
    for (const UOp& u : toposort(graph)) {
      if (!u.is(Op::Const)) continue;
      const double v = is_float(u.dtype()) ? const_double(u) : static_cast<double>(const_int(u));
      numbers +=
          std::isfinite(v) ? 1 + std::log2(1 + std::abs(v)) + (v == std::trunc(v) ? 0 : 1) : 5;
    }
    return {graph_size(graph), numbers};
  }

  // Takes `make()` in place of the best graph, if it can be built, is smaller and still fails.
  bool accept(const std::function<UOp()>& make) {
    if (tries_ <= 0) return false;
    UOp candidate;
    try {
      candidate = make();
    } catch (const std::exception&) {
      return false;  // ill-typed
    }
    if (!candidate || candidate == best_ || cost(candidate) >= cost(best_) ||
        !seen_.insert(candidate.id()).second)
      return false;
    kept_.push_back(candidate);  // ids are not reused, and neither are tries
    --tries_;
    if (!fails_(candidate)) return false;
    best_ = candidate;
    return true;
  }

  bool replace(const UOp& node, const UOp& by) {
    return replace(node, [&] { return by; });
  }
  // `make` may find that there is no such node.
  bool replace(const UOp& node, const std::function<UOp()>& make) {
    return accept([&] {
      const UOp by = make();
      return transform_graph(best_, [&](const UOp& original, const UOp& rebuilt) {
        return original == node ? by : rebuilt;
      });
    });
  }

  bool shrink_root() {
    for (const UOp& s : std::vector<UOp>(best_.src().begin(), best_.src().end()))
      if (!is_shape_part(s) && s.dtype() != DType::Void && accept([&] { return s; })) return true;
    return false;
  }

  bool shrink_nodes() {
    bool any = false;
    const NodeList order = toposort(best_);
    std::vector<UOp> nodes(order.begin(), order.end());
    for (size_t i = nodes.size(); i-- > 0 && tries_ > 0;) any = shrink_node(nodes[i]) || any;
    return any;
  }

  bool shrink_node(const UOp& node) {
    if (is_shape_part(node)) return false;
    for (const UOp& s : node.src()) {
      if (fits(node, s) && replace(node, s)) return true;
      for (const UOp& below : s.src())
        if (fits(node, below) && replace(node, below)) return true;
    }
    if (node.is(Op::Index) && skip_view(node)) return true;
    if (takes_any_number(node) && drop_operand(node)) return true;
    if ((node.is(Op::Load) || node.is(Op::Store)) && node.src().size() == 3 && drop_gate(node))
      return true;
    if (replace_by_another(node)) return true;
    if (!(node == best_))
      if (const UOp leaf = how_.leaf ? how_.leaf(node) : spread_one(node);
          leaf && replace(node, leaf))
        return true;
    return false;
  }

  static bool fits(const UOp& node, const UOp& other) {
    return node.dtype() == other.dtype() && node.shape() == other.shape() && !is_shape_part(other);
  }

  // An element of a view as one of what it is a view of.
  bool skip_view(const UOp& node) {
    const UOp& view = node.src(0);
    if (view.src().empty() || !(view.is(Op::Shrink) || view.is(Op::Reshape) || view.is(Op::Expand)))
      return false;
    return replace(node, [&] { return with_source(node, 0, view.src(0)); });
  }

  bool drop_operand(const UOp& node) {
    const size_t first = node.is(Op::After) ? 1 : 0;
    for (size_t i = first; i < node.src().size() && node.src().size() > 1; ++i) {
      std::vector<UOp> rest(node.src().begin(), node.src().end());
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      if (replace(node, [&] { return with_sources(node, rest); })) return true;
    }
    return false;
  }

  bool drop_gate(const UOp& node) {
    return accept([&] {
      return transform_graph(best_, [&](const UOp& original, const UOp& rebuilt) {
        if (!(original == node)) return rebuilt;
        return node.is(Op::Load) ? load(rebuilt.src(0)) : store(rebuilt.src(0), rebuilt.src(1));
      });
    });
  }

  // Every vector of a kernel becomes its first lane.
  UOp first_lanes() const {
    return rebuild_graph(best_, [](const UOp& node, std::vector<UOp>& src) {
      if (node.is(Op::Expand) || node.is(Op::Reshape) || node.is(Op::Shrink) ||
          (node.is(Op::Stack) && !node.src().empty()) || (node.is(Op::Index) && !is_address(node)))
        return src[0];
      if (!node.is(Op::Param) && !node.is(Op::Buffer)) return with_sources(node, src);
      return node.addrspace() == AddrSpace::Reg ? UOp::make(node.op(), {shape_of({})}, node.arg())
                                                : node;
    });
  }

  // Something that is there already, in place of a node.
  bool replace_by_another(const UOp& node) {
    constexpr size_t most = 60;  // nodes: every pair is tried
    const NodeList order = toposort(best_);
    if (order.size() > most) return false;
    const NodeList below = toposort(node);
    for (const UOp& other : std::vector<UOp>(order.begin(), order.end()))
      if (fits(node, other) && std::find(below.begin(), below.end(), other) == below.end() &&
          replace(node, other))
        return true;
    return false;
  }

  bool drop_ranges() {
    for (const UOp& u : toposort(best_))
      if (const UOp range = u; range.is(Op::Range) && accept([&] { return without(range); }))
        return true;
    return false;
  }

  // The loop's first iteration.
  UOp without(const UOp& range) const {
    return rebuild_graph(best_, [&](const UOp& node, std::vector<UOp>& src) {
      if (node == range) return index_const(0);
      const bool loops = node.is(Op::End) || node.is(Op::Reduce);
      const auto listed = node.src().subspan(loops ? 1 : node.src().size());
      const auto at = std::find(listed.begin(), listed.end(), range) - listed.begin();
      if (at == std::ssize(listed)) return with_sources(node, src);
      src.erase(src.begin() + 1 + at);
      const bool starts = node.is(Op::Reduce) && start_of(node);
      if (src.size() > (starts ? 2 : 1)) return with_sources(node, src);
      return starts ? binary(node.as<ReduceArg>().op, src[1], src[0]) : src[0];
    });
  }

  // Sizes are constants of dtype index that shapes share: one is changed everywhere.
  bool shrink_constants() {
    const NodeList order = toposort(best_);
    for (const UOp& u : std::vector<UOp>(order.begin(), order.end())) {
      if (!u.is(Op::Const) || is_invalid(u)) continue;
      if (u.dtype() == DType::Index && !how_.sizes) continue;
      const double v = is_float(u.dtype()) ? const_double(u) : static_cast<double>(const_int(u));
      for (const double to : {0.0, 1.0, 2.0, std::trunc(v / 2), v - 1, std::trunc(v)})
        if (std::isfinite(to) && to != v && accept([&] { return with_constant(u, to); }))
          return true;
    }
    return false;
  }

  UOp with_constant(const UOp& from, double value) const {
    const UOp to = is_float(from.dtype()) ? constant(from.dtype(), value)
                                          : constant_int(from.dtype(), static_cast<int64_t>(value));
    return transform_graph(best_, [&](const UOp& original, const UOp& rebuilt) -> UOp {
      if (original == from) return to;
      const bool fresh = how_.resized && rebuilt.is(Op::Buffer) && !(rebuilt == original);
      return fresh ? how_.resized(rebuilt, original) : rebuilt;
    });
  }

  UOp best_;
  const Fails& fails_;
  const Reducer& how_;
  int64_t tries_;
  std::unordered_set<uint64_t> seen_;
  std::vector<UOp> kept_;
};

}  // namespace

int64_t graph_size(const UOp& graph) {
  int64_t n = 0;
  for (const UOp& u : toposort(graph)) n += is_shape_part(u) ? 0 : 1;
  return n;
}

UOp reduce_failure(const UOp& graph, const Fails& fails, const Reducer& how) {
  return Reduction(graph, fails, how).run();
}

}  // namespace koine

#include "koine/lower/contents.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <tuple>

#include "koine/base/hash.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/node_map.hpp"
#include "koine/lower/ranges.hpp"

namespace koine {
namespace {

bool has_no_order(const UOp& u) {
  return is_commutative(u.op()) || u.is(Op::Group) || u.is(Op::Sink);
}

uint64_t own_content(const UOp& u, const std::vector<UOp>& outer) {
  const auto op = static_cast<uint64_t>(u.op());
  if ((u.is(Op::Param) && !is_variable(u)) || u.is(Op::Buffer))
    return hash_mix(op, static_cast<uint64_t>(u.dtype()));
  if (u.is(Op::Range) && !is_among(outer, u))
    return hash_mix(op, static_cast<uint64_t>(u.as<RangeArg>().type));
  const uint64_t out = hash_mix(op, arg_hash(u.arg()));
  return u.is(Op::Call) ? hash_mix(out, u.src(0).hash()) : out;
}

}  // namespace

std::vector<uint64_t> contents_of(const NodeList& order) {
  NodeNumbers numbers;
  for (const UOp& u : order) numbers.add(u.node());
  std::vector<UOp> outer;  // loops of a kernel, which are numbered first
  for (const UOp& nest : order.back().src())
    if (nest.is(Op::End)) outer.insert(outer.end(), nest.src().begin() + 1, nest.src().end());
  std::vector<uint64_t> out(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const UOp& u = order[i];
    const auto op = static_cast<uint64_t>(u.op());
    uint64_t operands = 0;
    for (const UOp& s : sources_outside_body(u)) {
      const uint64_t own = out[numbers.find(s.node())];
      operands = has_no_order(u) ? operands + hash_mix(op, own) : hash_mix(operands, own);
    }
    out[i] = hash_mix(own_content(u, outer), operands);
  }
  return out;
}

UOp share_commuted(const UOp& graph) {
  absl::flat_hash_map<std::tuple<Op, const Node*, const Node*>, UOp> known;
  return transform_graph(graph, [&](const UOp&, const UOp& node) {
    // Of two zeros, Max gives the left one.
    const bool commutes =
        is_commutative(node.op()) && !(node.is(Op::Max) && is_float(node.dtype()));
    if (!commutes || node.dtype() == DType::Index) return node;
    const auto [a, b] = std::minmax({node.src(0).node(), node.src(1).node()});
    const auto [it, fresh] = known.try_emplace({node.op(), a, b}, node);
    return fresh || it->second.tag() != node.tag() ? node : it->second;
  });
}

}  // namespace koine

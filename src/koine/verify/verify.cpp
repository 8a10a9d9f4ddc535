#include "koine/verify/verify.hpp"

#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/verify/demand.hpp"

namespace koine {
namespace {

const Demands& demands_of(VerifyLevel level) {
  switch (level) {
    case VerifyLevel::Tensor:
      return tensor_demands();
    case VerifyLevel::Program:
      return program_demands();
    case VerifyLevel::Memory:
      return memory_demands();
    case VerifyLevel::Kernel:
      return kernel_demands();
    case VerifyLevel::Shaped:
      return shaped_demands();
    case VerifyLevel::Selected:
      return selected_demands();
    case VerifyLevel::Schedule:
    case VerifyLevel::Linear:
      break;
  }
  return linear_demands();
}

Facts facts_of(std::span<const UOp> nodes, VerifyLevel level, const Target* target) {
  Facts facts{target};
  if (level != VerifyLevel::Shaped) return facts;
  // Buffers in memory are flat and shape operands are not values: neither has lanes.
  auto is_value = [](const UOp& u) {
    return !u.is(Op::Stack) && !is_memory(u) && u.dtype() != DType::Void;
  };
  for (const UOp& u : nodes)
    if (is_value(u)) facts.rank = std::max(facts.rank, u.rank());
  for (const UOp& u : nodes)
    if (is_value(u) && facts.rank > 0 && u.rank() == facts.rank && u.has_concrete_shape())
      facts.lanes = std::max(facts.lanes, u.sizes().back());
  return facts;
}

std::optional<Violation> check_graph(const UOp& graph, std::span<const UOp> nodes,
                                     VerifyLevel level) {
  switch (level) {
    case VerifyLevel::Tensor:
      return std::nullopt;
    case VerifyLevel::Memory:
      return check_names(nodes, level);
    case VerifyLevel::Program:
      return check_program(graph, nodes);
    case VerifyLevel::Linear:
      return check_linear(graph);
    default:
      return check_kernel(graph, nodes, level);
  }
}

std::optional<Violation> check_nodes(const UOp& graph, std::span<const UOp> all, VerifyLevel level,
                                     const Target* target) {
  const Facts facts = facts_of(all, level, target);
  const Demands& demands = demands_of(level);
  for (const UOp& u : all)
    if (auto violation = demands.check(u, facts)) return violation;
  return check_graph(graph, all, level);
}

}  // namespace

std::optional<Violation> find_violation(const UOp& graph, VerifyLevel level, const Target* target) {
  if (level == VerifyLevel::Schedule) return check_schedule(graph);
  if (level == VerifyLevel::Linear && !graph.is(Op::Linear))
    return Violation{graph, -1, "a linear program is a Linear"};
  const bool sink = level != VerifyLevel::Linear && level != VerifyLevel::Tensor;
  if (sink && !graph.is(Op::Sink)) return Violation{graph, -1, "a program is a Sink"};
  if (level == VerifyLevel::Linear) return check_nodes(graph, graph.src(), level, target);
  const NodeList order = toposort(graph);
  return check_nodes(graph, std::span<const UOp>(order.begin(), order.size()), level, target);
}

std::string violation_text(const Violation& v) {
  const std::string where = v.source < 0 ? "" : fmt::format(", source {}", v.source);
  return fmt::format("{}{}: {}; the node is\n{}", op_name(v.node.op()), where, v.rule,
                     to_text(v.node));
}

void report_violation(std::string_view stage, const Violation& violation) {
  throw VerifyError(fmt::format("after {}: {}", stage, violation_text(violation)));
}

void verify(const UOp& graph, VerifyLevel level, std::string_view stage, const Target* target) {
  if (const auto violation = find_violation(graph, level, target))
    report_violation(stage, *violation);
}

}  // namespace koine

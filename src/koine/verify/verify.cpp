#include "koine/verify/verify.hpp"

#include <absl/container/flat_hash_set.h>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/rewrite/rules.hpp"

namespace koine {
namespace {

// A rule of a verifier fires on a node that breaks it; its name says what is demanded.
struct Finding {
  std::string rule;
};
using Spec = RuleSet<Finding>;

// `broken(node)` is true for nodes that break the demand.
Rule<Finding> demand(std::string text, Pat pattern, std::function<bool(const UOp&)> broken) {
  return rule<Finding>(text, std::move(pattern), [text, broken](const Match& m, Finding& f) -> UOp {
    if (!broken(m.root())) return {};
    f.rule = text;
    return constant_bool(false);
  });
}

OpSet group_ops(std::initializer_list<GroupOp> groups) {
  OpSet set;
  for (int i = 0; i < op_count; ++i)
    for (const GroupOp g : groups)
      if (op_info(static_cast<Op>(i)).group == g) set.set(static_cast<size_t>(i));
  return set;
}

bool always(const UOp&) { return true; }

const Spec& tensor_spec() {
  static const Spec spec = {
      demand(
          "no codegen op stands in a tensor graph",
          node(group_ops({GroupOp::Codegen}) & ~ops({Op::CustomFunction, Op::Program, Op::Source})),
          always),
      demand("Linear and Range belong to kernels", node(ops({Op::Linear, Op::Range, Op::End})),
             always),
  };
  return spec;
}

const Spec& kernel_spec() {
  static const Spec spec = {
      demand("no tensor-level op is left in a kernel",
             node(ops({Op::Permute, Op::Flip, Op::Pad, Op::Contiguous, Op::ContiguousBackward,
                       Op::Detach, Op::Assume, Op::Function, Op::Call, Op::Tuple, Op::GetTuple,
                       Op::Binary})),
             always),
      demand("no store writes Invalid", node(Op::Store),
             [](const UOp& u) { return is_invalid(u.src(1)); }),
      demand("a Store goes to an Index of a buffer or to a register", node(Op::Store),
             [](const UOp& u) {
               const UOp* target = &u.src(0);
               while (target->is(Op::After) || target->is(Op::Index)) target = &target->src(0);
               return !target->is(Op::Param) && !target->is(Op::Buffer);
             }),
      demand("a LOCAL buffer has a constant size of at most 256 KiB", node(Op::Buffer),
             [](const UOp& u) {
               constexpr int64_t most = 256 << 10;
               return u.as<BufferArg>().space == AddrSpace::Local &&
                      (!u.has_concrete_shape() || u.numel() * item_size(u.dtype()) > most);
             }),
      demand("every Range is closed", node(Op::Sink),
             [](const UOp& u) { return !u.ranges().empty(); }),
  };
  return spec;
}

const Spec& linear_spec() {
  static const Spec spec = {
      demand("only instructions stand in a linear program",
             node(group_ops({GroupOp::Call, GroupOp::Reduce, GroupOp::Marker}) |
                  ops({Op::Permute, Op::Flip, Op::Pad, Op::Sink, Op::Group, Op::Exp2, Op::Log2,
                       Op::Sin, Op::Pow, Op::Threefry, Op::Recip})),
             always),
      demand("remainders of floats are decomposed", node(Op::Mod).of(DTypeClass::Float), always),
      demand("values are scalars or vectors",
             node(group_ops({GroupOp::Unary, GroupOp::Binary, GroupOp::Ternary})),
             [](const UOp& u) { return u.rank() > 1; }),
  };
  return spec;
}

[[noreturn]] void report(std::string_view stage, std::string_view rule, const UOp& node) {
  internal_error("after {}: {}; the node is\n{}", stage, rule, to_text(node));
}

void check_nodes(std::span<const UOp> nodes, const Spec& spec, std::string_view stage) {
  for (const UOp& u : nodes) {
    Finding finding;
    if (spec.apply(u, finding)) report(stage, finding.rule, u);
  }
}

void check_order(const UOp& linear, std::string_view stage) {
  absl::flat_hash_set<const Node*> defined;
  std::vector<UOp> open;
  for (const UOp& u : linear.src()) {
    for_each_operand(u, [&](const UOp& source) {
      const UOp& s = strip_after(source);
      if (s.dtype() != DType::Void && !s.is(Op::Const) && !defined.contains(s.node()))
        report(stage, "definitions stand before uses", u);
    });
    if (u.is(Op::Range)) open.push_back(u);
    if (u.is(Op::End)) {
      if (open.empty() || !(open.back() == u.src(u.src().size() - 1)))
        report(stage, "loops nest", u);
      open.pop_back();
    }
    defined.insert(u.node());
  }
  if (!open.empty()) report(stage, "every loop is closed", open.back());
}

}  // namespace

void verify(const UOp& graph, VerifyLevel level, std::string_view stage) {
  switch (level) {
    case VerifyLevel::Tensor:
      check_nodes(toposort(graph), tensor_spec(), stage);
      return;
    case VerifyLevel::Kernel:
      check_nodes(toposort(graph), kernel_spec(), stage);
      return;
    case VerifyLevel::Linear: {
      if (!graph.is(Op::Linear)) report(stage, "the result is a Linear", graph);
      std::vector<UOp> instructions;
      for (const UOp& u : graph.src())
        if (!u.is(Op::End)) instructions.push_back(u);
      check_nodes(instructions, linear_spec(), stage);
      check_order(graph, stage);
      return;
    }
  }
}

}  // namespace koine

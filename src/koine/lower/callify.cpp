#include "koine/lower/callify.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/contents.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/selection.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/shared_loops.hpp"
#include "koine/transform/slices.hpp"

namespace koine {
namespace {

// A program runs all the Stores below its values, also those whose memory nobody looks at.
UOp with_all_effects(const UOp& program) {
  if (!has_effects(program)) return program;
  std::vector<UOp> effects(program.src().begin(), program.src().end());
  for (const UOp& u : toposort(program))
    if (u.is(Op::After)) effects.push_back(u);
  return sink(effects);
}

// What a Call reads is in memory: a view is copied, and what is lazy is computed before.
UOp with_arguments_in_memory(const UOp& program) {
  if ((program.node()->ops_below & mask_of(Op::Call)) == 0) return program;
  return transform_graph(program, [](const UOp&, const UOp& node) {
    if (!node.is(Op::Call)) return node;
    std::vector<UOp> src(node.src().begin(), node.src().end());
    for (size_t k = 1; k < src.size(); ++k) src[k] = call_argument(src[k]);
    return with_sources(node, src);
  });
}

// What stood for an argument of a function has a value only while that runs.
[[noreturn]] void refuse_leaked(const UOp& param, const UOp& program) {
  const std::string traced = origin_text(param);
  std::string used;  // where it was first
  for (const UOp& u : toposort(program))
    if (used.empty() && std::find(u.src().begin(), u.src().end(), param) != u.src().end())
      used = origin_text(u);
  raise(ErrorKind::Value,
        "realize: the value follows from what stood for an argument, {} of shape {}, of a function "
        "that was traced{}, and that function has returned: a tensor that is kept from inside of "
        "it{}, in a variable, a list or an attribute, has no value outside: let the function "
        "return it",
        dtype_name(param.dtype()), shape_text(param), traced.empty() ? "" : " at " + traced,
        used.empty() ? "" : fmt::format(" (it begins at {})", used));
}

}  // namespace

Callified callify(const std::vector<UOp>& values, const std::vector<UOp>& destinations,
                  const CompileOptions& how) {
  KOINE_INVARIANT(values.size() == destinations.size(), "callify: {} values, {} destinations",
                  values.size(), destinations.size());
  std::vector<UOp> effects;
  for (size_t i = 0; i < values.size(); ++i)
    effects.push_back(destinations[i] ? store(destinations[i], values[i]) : values[i]);
  // Before bodies are inlined: a body means by itself what it means when it is interpreted.
  const UOp asked = sink(effects);
  const UOp meant = how.strict ? asked : rewrite(asked, selection_rules());
  const UOp program = with_all_effects(with_shared_loops(inline_functions(meant)));
  Callified out;
  Substitution params;
  bool clones = false;
  for (const UOp& node : toposort(program)) {
    clones = clones || is_private_copy(node);
    if (node.is(Op::Param) && !is_variable(node) && !is_argument_param(node))
      refuse_leaked(node, program);
    KOINE_REQUIRE(!node.is(Op::Param) || is_variable(node), Key,
                  "realize: the Param of slot {} ({} of shape {}) has no value: it stands for an "
                  "argument of a Function; call that Function with a value for slot {}",
                  node.as<BufferArg>().slot, dtype_name(node.dtype()), shape_text(node),
                  node.as<BufferArg>().slot);
    if (!node.is(Op::Buffer)) continue;
    const auto slot = static_cast<int64_t>(out.arguments.size());
    params.emplace(node, param_for(slot, node));
    out.arguments.push_back(node);
  }
  static const auto& rules =
      *new const RuleSet<>((forward_rules() + movement_rules() + slice_rules()).remembered());
  UOp body = without_values(substitute(program, params));
  // A number makes a copy a node of its own, which is lost on what computes it: equal programs are
  // one node.
  if (clones)
    body = transform_graph(body, [](const UOp&, const UOp& node) {
      return is_private_copy(node) ? UOp::make(Op::Contiguous, node.src(), MarkArg{Mark::Copies})
                                   : node;
    });
  // Bodies that are inlined with their arguments exchanged have a * b and b * a.
  out.body = with_arguments_in_memory(share_commuted(rewrite(body, rules)));
  return out;
}

}  // namespace koine

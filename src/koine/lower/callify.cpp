#include "koine/lower/callify.hpp"

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/selection.hpp"
#include "koine/rules/simplify.hpp"
#include "koine/transform/function.hpp"

namespace koine {
Callified callify(const std::vector<UOp>& values, const std::vector<UOp>& destinations) {
  KOINE_INVARIANT(values.size() == destinations.size(), "callify: {} values, {} destinations",
                  values.size(), destinations.size());
  std::vector<UOp> effects;
  for (size_t i = 0; i < values.size(); ++i)
    effects.push_back(destinations[i] ? store(destinations[i], values[i]) : values[i]);
  // Before bodies are inlined: a body means by itself what it means when it is interpreted.
  const UOp program = inline_functions(rewrite(sink(effects), selection_rules()));
  Callified out;
  Substitution params;
  for (const UOp& node : toposort(program)) {
    if (!node.is(Op::Buffer)) continue;
    const BufferArg& b = node.as<BufferArg>();
    const auto slot = static_cast<int64_t>(out.arguments.size());
    params.emplace(node, param(slot, node.shape(), b.dtype, b.device));
    out.arguments.push_back(node);
  }
  static const RuleSet<> rules = (forward_rules() + movement_rules()).remembered();
  out.body = rewrite(substitute(program, params), rules);
  return out;
}

}  // namespace koine

#pragma once
#include <cstdint>
#include <functional>
#include <string_view>

#include "koine/rewrite/rules.hpp"

namespace koine {

/// Sees every rule that fires: name, before, after. Null switches it off.
using TraceSink = std::function<void(std::string_view rule, const UOp& before, const UOp& after)>;
/// For this thread.
void set_trace_sink(TraceSink sink);

namespace detail {
/// Applies `step` (null: final) bottom-up until nothing changes. `step` returns the replacement.
/// Final from the start are nodes marked with `skip`, and nodes that do not depend on any of
/// `roots`; nodes that become final are marked with `mark`.
struct Pass {
  std::function<UOp(const UOp&)> step;
  bool enter_calls = true;
  uint32_t skip = 0, mark = 0;
  OpMask roots = ~OpMask{0};
};
UOp rewrite_fixpoint(const UOp& root, const Pass& pass);
void trace(std::string_view rule, const UOp& before, const UOp& after);
}  // namespace detail

enum class Enter { Everything, NotCalls };

/// Rewrites bottom-up: sources first, then the node until no rule applies; results are rewritten
/// again. Every node is visited once; bodies of Calls are opaque. A cycle of rules stops with an
/// InternalError that prints it.
template <class Context>
UOp rewrite(const UOp& root, const RuleSet<Context>& rules, Context& context,
            Enter enter = Enter::Everything) {
  detail::Pass pass;
  pass.step = [&](const UOp& node) {
    const Rule<Context>* fired = nullptr;
    UOp result = rules.apply(node, context, &fired);
    if (result) detail::trace(fired->name, node, result);
    return result;
  };
  pass.roots = rules.roots();
  pass.enter_calls = enter == Enter::Everything;
  if (pass.enter_calls) {
    pass.skip = rules.normal_bit();
    pass.mark = rules.normal_bits();
  }
  return detail::rewrite_fixpoint(root, pass);
}

inline UOp rewrite(const UOp& root, const RuleSet<>& rules, Enter enter = Enter::Everything) {
  NoContext none;
  return rewrite(root, rules, none, enter);
}

}  // namespace koine

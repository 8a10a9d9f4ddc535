#pragma once
#include <cstdint>
#include <functional>
#include <string_view>

#include "koine/rewrite/rules.hpp"

namespace koine {

/// How often rules were tried and fired; for benchmarks and the stage report.
struct RewriteCounters {
  int64_t visits = 0;
  int64_t fired = 0;
};
/// Totals of this thread since its start.
RewriteCounters& rewrite_counters();

/// Sees every rule that fires: name, before, after. Null switches it off.
using TraceSink = std::function<void(std::string_view rule, const UOp& before, const UOp& after)>;
/// For this thread.
void set_trace_sink(TraceSink sink);

namespace detail {
/// Applies `step` (null: final) bottom-up until nothing changes. `step` returns the replacement.
UOp rewrite_fixpoint(const UOp& root, const std::function<UOp(const UOp&)>& step, bool enter_calls);
void trace(std::string_view rule, const UOp& before, const UOp& after);
}  // namespace detail

enum class Enter { Everything, NotCalls };

/// Rewrites bottom-up: sources first, then the node until no rule applies; results are rewritten
/// again. Every node is visited once. A cycle of rules stops with an InternalError that prints it.
template <class Context>
UOp rewrite(const UOp& root, const RuleSet<Context>& rules, Context& context,
            Enter enter = Enter::Everything) {
  return detail::rewrite_fixpoint(
      root,
      [&](const UOp& node) {
        const Rule<Context>* fired = nullptr;
        UOp result = rules.apply(node, context, &fired);
        if (result) detail::trace(fired->name, node, result);
        return result;
      },
      enter == Enter::Everything);
}

inline UOp rewrite(const UOp& root, const RuleSet<>& rules, Enter enter = Enter::Everything) {
  NoContext none;
  return rewrite(root, rules, none, enter);
}

}  // namespace koine

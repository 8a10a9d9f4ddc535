#pragma once
#include "koine/rewrite/rewrite.hpp"

namespace koine::test {

/// What a rule makes of an expression.
struct RuleRow {
  const char* rule;  // one of those that fire; null: none does, and `before` stays
  UOp before, after;
};

/// Expects every row to hold under `rules` and those `beside` them, and every one of `rules` to
/// fire in some row.
void check_rules(const RuleSet<>& rules, const RuleSet<>& beside,
                 const std::vector<RuleRow>& table);

}  // namespace koine::test

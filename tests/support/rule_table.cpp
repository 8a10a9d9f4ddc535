#include "rule_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "koine/ir/text.hpp"

namespace koine::test {

void check_rules(const RuleSet<>& rules, const RuleSet<>& beside,
                 const std::vector<RuleRow>& table) {
  const RuleSet<> all = rules + beside;
  std::set<std::string> fired;
  for (const RuleRow& r : table) {
    std::vector<std::string> names;
    set_trace_sink(
        [&](std::string_view name, const UOp&, const UOp&) { names.emplace_back(name); });
    const UOp after = rewrite(r.before, all);
    set_trace_sink({});
    EXPECT_EQ(after, r.rule ? r.after : r.before) << (r.rule ? r.rule : "no rule") << " made\n"
                                                  << to_text(r.before) << "to\n"
                                                  << to_text(after);
    if (r.rule) {
      EXPECT_NE(std::find(names.begin(), names.end(), r.rule), names.end()) << r.rule;
    }
    fired.insert(names.begin(), names.end());
  }
  for (const Rule<>& rule : rules.rules())
    EXPECT_TRUE(fired.contains(rule.name)) << "no row for the rule " << rule.name;
}

}  // namespace koine::test

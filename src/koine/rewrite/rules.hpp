#pragma once
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "koine/rewrite/pattern.hpp"

namespace koine {

/// The context of rules that need none.
struct NoContext {};

/// One rewrite: a name, a pattern, and what it becomes. The result is a null handle for "does not
/// apply"; returning the matched node itself is a mistake that debug runs report.
template <class Context = NoContext>
struct Rule {
  std::string name;
  Pat pattern;
  std::function<UOp(const Match&, Context&)> apply;
};

template <class Context = NoContext, class F>
Rule<Context> rule(std::string name, Pat pattern, F apply) {
  if constexpr (std::is_invocable_v<F, const Match&, Context&>)
    return {std::move(name), std::move(pattern), std::move(apply)};
  else
    return {std::move(name), std::move(pattern),
            [apply = std::move(apply)](const Match& m, Context&) { return apply(m); }};
}

/// Rules filed by root op, in priority order. A value: sets add with `+`.
template <class Context = NoContext>
class RuleSet {
 public:
  RuleSet() = default;
  RuleSet(std::initializer_list<Rule<Context>> rules) {
    for (const Rule<Context>& r : rules) add(r);
  }

  RuleSet operator+(const RuleSet& other) const {
    RuleSet sum = *this;
    sum.bit_ = 0;
    sum.parts_ |= other.parts_;
    for (const Rule<Context>& r : other.rules_) sum.add(r);
    return sum;
  }

  /// This set for long-lived use: nodes that it does not change are marked, and skipped from then
  /// on. For rules without a context; sums of remembered sets mark for their parts too.
  RuleSet remembered() &&
    requires std::is_same_v<Context, NoContext>
  {
    bit_ = fresh_normal_bit();
    parts_ |= bit_;
    return std::move(*this);
  }
  /// The ops that some rule is filed under: a graph without them stays as it is.
  OpMask roots() const { return roots_; }
  uint32_t normal_bit() const { return bit_; }
  /// The marks of a node that this set does not change.
  uint32_t normal_bits() const { return parts_; }

  /// The first rule that applies to `node`; null when none does.
  UOp apply(const UOp& node, Context& context, const Rule<Context>** fired = nullptr) const {
    const auto& candidates = by_op_[static_cast<size_t>(node.op())];
    if (candidates.empty()) return {};
    OpSet below;
    for (const UOp& source : node.src()) below.set(static_cast<size_t>(source.op()));
    for (const Candidate& c : candidates) {
      if ((c.required & ~below).any()) continue;
      Match m(node);
      if (!match(rules_[c.rule].pattern.node(), node, m)) continue;
      if (UOp result = rules_[c.rule].apply(m, context); result && !(result == node)) {
        if (fired != nullptr) *fired = &rules_[c.rule];
        return result;
      }
    }
    return {};
  }

  const std::vector<Rule<Context>>& rules() const { return rules_; }

 private:
  struct Candidate {
    uint32_t rule;
    OpSet required;  // ops that must be among the direct sources
  };

  void add(const Rule<Context>& rule) {
    const PatNode& root = rule.pattern.node();
    OpSet required;
    for (const auto& source : root.sources)
      if (source->ops.count() == 1) required |= source->ops;
    const auto id = static_cast<uint32_t>(rules_.size());
    rules_.push_back(rule);
    for (size_t op = 0; op < static_cast<size_t>(op_count); ++op)
      if (root.ops.none() || root.ops[op]) {
        by_op_[op].push_back({id, required});
        roots_ |= mask_of(static_cast<Op>(op));
      }
  }

  uint32_t bit_ = 0, parts_ = 0;
  OpMask roots_ = 0;
  std::vector<Rule<Context>> rules_;
  std::array<std::vector<Candidate>, static_cast<size_t>(op_count)> by_op_;
};

}  // namespace koine

#pragma once
#include <functional>
#include <string>
#include <vector>

#include "koine/ir/build.hpp"

// Functions whose derivative the user gives: `Function["rule NAME"]`, and the rule by its name. A
// rule is one of the two; the other follows from it, since a derivative is linear.
namespace koine {

struct CustomRule {
  /// What a rule is given: the arguments of the call, its results, and what the derivative is
  /// applied to.
  struct Given {
    std::vector<UOp> arguments, results;
    std::vector<UOp> moved;  ///< of `vjp` cotangents of the results, of `jvp` tangents of the
                             ///< arguments; none is null
  };
  /// Cotangents of the arguments, one each; null: 0.
  std::function<std::vector<UOp>(const Given&)> vjp;
  /// Tangents of the results, one each; null: 0.
  std::function<std::vector<UOp>(const Given&)> jvp;
  /// Whether the function and the rule are those of each row, a last axis, of their one argument:
  /// many examples are more rows.
  bool rows = false;
};

/// Makes a rule known, and gives the name that its Functions carry: `name` with a number of its
/// own.
std::string register_custom_rule(const std::string& name, CustomRule rule);
/// No more Functions are made with a rule: it is known until the last one is gone.
void let_go_custom_rule(const std::string& name);
/// The rule for Functions whose arguments behind the first `own` are what they have captured: it
/// neither sees these nor gives cotangents of them.
std::string register_rule_of_first(const std::string& name, size_t own);
/// The name of a Function's rule; empty: it is differentiated by its body.
std::string custom_rule_of(const UOp& function);
UOp custom_function(const UOp& body, std::span<const UOp> arguments, const std::string& name);

/// What the rule of a call says: the cotangents of its arguments, of those that the rule knows;
/// tangents of its results; its results for many examples, as a call with a rule of its own. Null:
/// none.
std::vector<UOp> custom_cotangents(const UOp& call, const std::vector<UOp>& cotangents);
std::vector<UOp> custom_tangents(const UOp& call, const std::vector<UOp>& tangents);
std::vector<UOp> batched_custom(const UOp& call, const std::vector<UOp>& carried,
                                const UOp& examples);
/// The tangents of the results of an opaque Call, from the gradient registered for its name.
std::vector<UOp> call_tangents(const UOp& call, const std::vector<UOp>& tangents);

}  // namespace koine

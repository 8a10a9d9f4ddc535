#pragma once
#include <functional>
#include <string>
#include <vector>

#include "koine/ir/uop.hpp"

// Transforms of Calls: their bodies are opaque, so whoever makes one says its gradient, and how it
// runs for many examples (row B13).
namespace koine {

/// What a gradient rule of a Call is given.
struct CallCotangents {
  std::vector<UOp> arguments;
  std::vector<UOp> results;
  std::vector<UOp> cotangents;  ///< of the results, in their shapes
};
/// Gives the cotangent of each argument, in its dtype and shape; null: none.
using CallGradientRule = std::function<std::vector<UOp>(const CallCotangents&)>;

/// The gradient of Calls of the kernels or of the function of a name, from now on. Throws Error
/// (Value) where the name is empty or there is no rule.
void register_call_gradient(const std::string& name, CallGradientRule rule);

/// What a rule for many examples is given.
struct CallExamples {
  std::vector<UOp> arguments;
  std::vector<bool> mapped;  ///< whether axis 0 of an argument counts the examples
  UOp examples;              ///< how many
};
/// Gives each result for all examples, which axis 0 counts.
using CallExamplesRule = std::function<std::vector<UOp>(const CallExamples&)>;
/// How Calls of a name run for many examples, from now on. Throws as the above.
void register_call_examples(const std::string& name, CallExamplesRule rule);
/// Forgets both rules of a name.
void unregister_call_rules(const std::string& name);
/// The results of a Call for all examples, where `carried` holds the arguments that differ. Throws
/// Error (Type) naming the Call where its name has no rule, (Value) where what it gives does not
/// fit the results.
std::vector<UOp> call_for_examples(const UOp& call, const std::vector<UOp>& carried,
                                   const UOp& examples);

/// The cotangents of a Call's arguments from those of its results (null: none). Throws Error (Type)
/// naming the Call where its name has no rule, and Error (Value) where the rule gives what does not
/// fit the arguments.
std::vector<UOp> call_vjp(const UOp& call, const std::vector<UOp>& cotangents);

}  // namespace koine

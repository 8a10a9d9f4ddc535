#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "koine/base/error.hpp"
#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// What a graph is supposed to be: what a stage takes and gives.
enum class VerifyLevel : uint8_t {
  Tensor,    ///< a graph of values: no codegen ops, no loops
  Program,   ///< a Sink of Stores and Afters of whole values into Params (callify)
  Memory,    ///< a Sink of Afters, with a Buffer for every value in memory (bufferize)
  Schedule,  ///< a Linear of Calls of kernels on Params and Buffers (rangeify, plan)
  Kernel,    ///< a Sink of Stores under Ends over Ranges; every value is a scalar (rangeify,
             ///< optimize)
  Shaped,    ///< the same without UPCAST, UNROLL, GROUP_REDUCE and THREAD: those are shape (expand)
  Selected,  ///< scalars and vectors, and only what the target runs (select)
  Linear,    ///< a Linear of such instructions: definitions before uses, loops nested
};

/// A rule that a graph breaks: at a node, or at one of its sources.
struct Violation {
  UOp node;
  int source = -1;  ///< -1: the node itself
  std::string rule;
};
/// "Load, source 1: rule; the node is ..." with the node as text.
std::string violation_text(const Violation& violation);

/// The first rule of a level that a graph breaks. Without a target its ops and dtypes are not
/// looked at.
std::optional<Violation> find_violation(const UOp& graph, VerifyLevel level,
                                        const Target* target = nullptr);

/// A stage made something that breaks a rule, or was given it.
class VerifyError : public InternalError {
 public:
  explicit VerifyError(const std::string& finding)
      : InternalError("koine internal error: " + finding), finding_(finding) {}
  /// What is wrong, without the claim that it is the compiler's mistake.
  const std::string& finding() const { return finding_; }

 private:
  std::string finding_;
};
[[noreturn]] void report_violation(std::string_view stage, const Violation& violation);

/// Throws VerifyError naming the stage, the op, the source and the rule, with the node as
/// paste-able text.
void verify(const UOp& graph, VerifyLevel level, std::string_view stage,
            const Target* target = nullptr);

}  // namespace koine

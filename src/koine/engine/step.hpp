#pragma once
#include <absl/container/inlined_vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/engine/executable.hpp"
#include "koine/engine/prepare.hpp"

namespace koine {

/// Values to compute, ready to be computed again and again (row L9): everything is compiled, the
/// memory is there, and a run hands one list to each queue. `realize` runs one once. For one thread
/// at a time.
class CapturedStep {
 public:
  /// Values of a graph; an After gives its own Buffer once its effects have run.
  explicit CapturedStep(const std::vector<UOp>& values, const VariableValues& variables = {});

  /// Computes the values from what the Buffers hold now. Throws Error (Index) where a position that
  /// the user gave is out of range, before anything is written (amendment C28); Error (Key) where a
  /// Variable has no value.
  void run();
  /// The same, but false where such a position is out of range.
  bool try_run();

  /// Where each value lies after a run; the same Buffers each time.
  const std::vector<UOp>& outputs() const { return outputs_; }
  /// Reads or writes another Buffer of the same shape, dtype and device in place of one that the
  /// graph names, or of an output. Throws Error (Value) where it does not fit or is not named.
  void replace(const UOp& buffer, const UOp& by);
  /// The places among the program's arguments where it reads or writes a Buffer.
  std::vector<size_t> places_of(const UOp& buffer) const;
  /// Another Buffer of the same shape, dtype and device in one of these places; where the shape is
  /// symbolic, of the sizes that the Variables say now.
  void put(size_t place, const UOp& by);
  /// Gives each output that is computed into a Buffer of the step a new one, of the sizes that the
  /// Variables say now, and each copy that is written to: what a run before gave stays as it is.
  void renew_outputs();
  void bind(const std::string& variable, int64_t value);

  /// What runs, as a node: Linear(Call(kernel, buffers...)...) (`lower/schedule`). Empty where all
  /// values are in memory already.
  UOp host_program() const;

 private:
  using Nodes = absl::InlinedVector<UOp, 4>;
  friend class Realizer;
  friend class CompiledProgram;

  enum class Checks : uint8_t { None, EachRun };
  CapturedStep(const std::vector<UOp>& values, const VariableValues& variables, Checks checks);
  CapturedStep(std::pair<std::vector<UOp>, std::vector<UOp>> values_and_copies, size_t outputs,
               const VariableValues& variables);
  void renew(UOp& buffer, const UOp& fresh);
  /// Once a launch has stored into memory that there was before, nothing stops a run.
  void finish_what_is_begun();
  Nodes arguments_of(const Prepared::Program& program) const;
  std::optional<Submission> submission_of(const Prepared::Program& program) const;
  UOp present_size(const UOp& size) const;
  UOp present_shape(const UOp& shape) const;

  std::vector<UOp> values_;  // distinct
  VariableValues variables_;
  Skeleton skeleton_;
  std::shared_ptr<const Prepared> prepared_;
  Nodes made_;                // by distinct value, then the flag of the checks
  std::vector<UOp> copies_;   // memory of the step's own that values are written into, as named
  std::vector<UOp> written_;  // and as it is now
  std::vector<UOp> outputs_;  // by value
  Nodes named_;               // arguments as the values name them; none where it runs once
  Nodes arguments_;           // what is in their places now
  std::optional<Submission> submission_;
};

}  // namespace koine

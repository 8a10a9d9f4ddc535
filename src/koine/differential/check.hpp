#pragma once
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "koine/differential/run.hpp"

// KOINE_VERIFY=3: what a stage made is run beside what it was made from.
namespace koine {

/// What a kernel gave on some inputs when it was looked at as the output of a stage. The next one,
/// whose input it is, need not run it again.
struct KeptRuns {
  struct Run {
    Setting inputs;
    std::optional<Outcome> outcome;  ///< none where these inputs were not needed
  };
  UOp graph;
  Liberties liberties;  ///< that it ran with
  std::vector<Run> runs;
};

/// An earlier graph that the input of a stage was made from. What Expand makes of one node, an
/// accumulator and its loop, is one node there: a mistake may be shown on a smaller graph.
struct StageOrigin {
  UOp graph;                                        ///< null: none
  std::function<UOp(const UOp& graph)> since = {};  ///< null: the graph is that input
  Liberties liberties = {};                         ///< of the stages since then
};

/// A stage, its input and its output, and how both run.
struct StageCheck {
  std::string_view stage;
  UOp before, after;
  Level from = Level::Kernel, to = Level::Kernel;
  /// The stage once more: finds the smallest graph that shows a mistake.
  std::function<UOp(const UOp& before)> apply;
  /// Render: machine code for `after`, which is what runs; null: the interpreter.
  std::function<CompiledKernel(const UOp& linear)> compile = {};
  SlotTypes types = {};  ///< of a kernel's slots
  /// What the stage may do to floats; {} in strict mode: outcomes are then equal bit for bit.
  Liberties liberties = {};
  KeptRuns* kept = nullptr;  ///< of the stage before, then of this one
  StageOrigin origin = {};
};

/// How many interpreted operations a stage is checked with; larger graphs are not checked.
constexpr double most_checked_operations = 2e5;

struct CheckCounts {
  int64_t checked = 0;    ///< stages whose output was compared
  int64_t unchecked = 0;  ///< too large, or no input decides what they do
  CheckCounts& operator+=(const CheckCounts& other) {
    checked += other.checked;
    unchecked += other.unchecked;
    return *this;
  }
};

/// Runs both graphs on the same inputs. Throws InternalError naming the stage, the first element
/// that differs, a smallest graph for which the stage still changes a value, what it becomes, and
/// its inputs, as text that `parse` reads. False where nothing could be compared.
bool check_stage(const StageCheck& check);

}  // namespace koine

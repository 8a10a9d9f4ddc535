#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/ir/uop.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/plan.hpp"

namespace koine {

/// A scheduled, compiled and planned program: steps over its arguments and one arena of
/// temporaries. Immutable; runs on any arguments of the same shapes, from any thread.
class Executable {
 public:
  virtual ~Executable() = default;
  /// `arguments[k]` is the Buffer for Param slot k.
  virtual void run(const std::vector<UOp>& arguments, const VariableValues& variables) = 0;
};

/// How tests break stages: the graph stages of a program (also "rangeify", "plan" aside), with
/// "render" for what machine code is made of, and the memory plan.
struct Changes {
  StageChange graph;
  std::function<void(MemoryPlan&)> plan;
};

/// Stages 2 to 8, verified by KOINE_VERIFY. With `changes`, programs neither come from the cache
/// nor go there.
std::shared_ptr<Executable> build_executable(const UOp& program, const std::string& device,
                                             const Changes& changes = {});
void clear_program_cache();

/// Changes the counters under their lock.
void count(const std::function<void(Counters&)>& change);

}  // namespace koine

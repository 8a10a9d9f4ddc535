#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/ir/uop.hpp"

namespace koine {

/// A scheduled, compiled and planned program: steps over its arguments and one arena of
/// temporaries. Immutable; runs on any arguments of the same shapes, from any thread.
class Executable {
 public:
  virtual ~Executable() = default;
  /// `arguments[k]` is the Buffer for Param slot k.
  virtual void run(const std::vector<UOp>& arguments, const VariableValues& variables) = 0;
};

std::shared_ptr<Executable> build_executable(const UOp& program, const std::string& device);
void clear_program_cache();

/// Changes the counters under their lock.
void count(const std::function<void(Counters&)>& change);

}  // namespace koine

#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "koine/base/compile_options.hpp"
#include "koine/ir/uop.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/runtime/device.hpp"

// Lazy execution: values are scheduled, compiled (in parallel, cached by content and target),
// planned and run when somebody looks at them.
namespace koine {

/// Values of Variables during a run.
using VariableValues = std::map<std::string, int64_t>;

/// A new Buffer node with memory behind it, holding `bytes` bytes from `data` (null: arbitrary).
/// Several devices split it along `axes`; none: each holds all of it.
UOp buffer_from_host(const UOp& shape, DType dtype, const std::string& device, const void* data,
                     AxisSet axes = 0);
/// A new Buffer node over memory of the host that somebody else owns, of the device CPU. It is not
/// copied and never written; it must stay as it is until `owner` is let go.
UOp buffer_over(const UOp& shape, DType dtype, const void* data, std::shared_ptr<const void> owner);
/// The memory behind a Buffer node; null before it has any.
std::shared_ptr<Memory> memory_of(const UOp& buffer);

/// Called before anything of a request runs, to look at its graph, which is in the caches then:
/// kernels push it out. Other requests may wait for it: it takes no lock. `reads_results`: whether
/// some of the values, or values below them, had been computed before; not told of effects.
using BeforeRun = std::function<void(bool reads_results)>;
/// Computes values and returns one Buffer node each. Values that were computed before are not
/// computed again. An After gives its own buffer once its effects have run.
std::vector<UOp> realize(const std::vector<UOp>& values, const VariableValues& variables = {},
                         const BeforeRun& before_run = {});
/// The Buffer that holds a value computed earlier; null when it was not.
UOp realized_buffer(const UOp& value);
/// Whether a value would be computed from memory of others, who may write it: it is not in memory
/// itself.
bool reads_borrowed(const UOp& value);

/// What would run for these values, without running it: the host program (`lower/schedule`).
UOp host_program(const std::vector<UOp>& values, const CompileOptions& how = compile_options());
/// The same, launch by launch.
std::vector<Kernel> schedule(const std::vector<UOp>& values);
/// The program of a launch of a kernel, on its device or the default one. Throws Error (Value) for
/// a launch that the host runs.
std::shared_ptr<Program> program_of(const Kernel& launch);

/// Counted since the start of the process or the last reset; all threads together.
struct Counters {
  int64_t kernels = 0;    ///< launched
  int64_t compiled = 0;   ///< programs compiled, not found in the cache
  double operations = 0;  ///< arithmetic on values (not on places), estimated
  double bytes = 0;       ///< moved to and from memory, estimated
  double run_seconds = 0;
  double schedule_seconds = 0;   ///< stages 1 and 2, and planning
  double compile_seconds = 0;    ///< wall time of stages 3 to 8
  int64_t temporary_bytes = 0;   ///< largest arena of temporaries
  int64_t checked_stages = 0;    ///< that KOINE_VERIFY=3 has run beside their inputs
  int64_t unchecked_stages = 0;  ///< that were too large for it
  /// Bytes that programs copied from one device to another, by (from, to). What the host writes and
  /// reads is not counted.
  std::map<std::pair<std::string, std::string>, int64_t> copied_bytes = {};
  std::map<std::string, int64_t> kernels_on = {};  ///< launched, by device
};
Counters counters();
void reset_counters();
/// Forgets compiled programs and schedules; the next realize is cold.
void clear_compile_cache();

}  // namespace koine

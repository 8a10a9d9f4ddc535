#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace koine {

/// What becomes of a user's position that is out of range (amendment C28). Memory is never touched.
enum class IndexMode : uint8_t {
  Raise,  ///< an Index error when the value is looked at
  Clamp,  ///< the nearest position that exists
  Fill,   ///< reads give 0
};

/// Every switch of the process, read once from the environment (`KOINE_*`).
/// The table `option_table()` is the single list; docs/switches.md is checked against it.
struct Options {
  int debug = 0;        ///< KOINE_DEBUG: 0..7, see docs/switches.md
  int verify = 1;       ///< KOINE_VERIFY: 0 never, 1 both ends, 2 every stage, 3 runs them too
  bool noopt = false;   ///< KOINE_NOOPT: kernels keep their plain loops
  bool strict = false;  ///< KOINE_FP=strict: bit-for-bit floating point (amendment C32)
  int threads = 0;      ///< KOINE_THREADS: workers for THREAD axes; 0 means all cores
  std::string cpu;      ///< KOINE_CPU: x86-64-v2, x86-64-v3 or x86-64-v4; empty means this host
  std::string device;   ///< KOINE_DEVICE: the default device; empty means CPU
  std::string dump;     ///< KOINE_DUMP: a stage name; prints what comes out of it
  bool poison = false;  ///< KOINE_POISON: freed and fresh buffers are filled with a pattern
  bool nan = false;     ///< KOINE_NAN: what a program computes first that is not finite is an Error
  IndexMode index = IndexMode::Raise;  ///< KOINE_INDEX: raise, clamp or fill
  bool atomic_scatter = false;         ///< KOINE_SCATTER=atomic: sums by index in any order
  int64_t memory_limit = 0;  ///< KOINE_MEMORY_LIMIT: bytes a device may hold; 0 means the machine's
};

struct OptionRow {
  const char* name;     ///< environment variable
  const char* values;   ///< what it accepts
  const char* meaning;  ///< one line
};

/// The names of the eight stages and of the first part of Rangeify, in order.
const std::vector<std::string_view>& stage_names();

/// The process's options. Throws Error (Value) for a value that a variable does not take and for a
/// variable `KOINE_...` that nobody knows. Tests change them through `OptionScope`.
const Options& options();
const std::vector<OptionRow>& option_table();

/// Replaces the options for the life of the object; for tests and tools, on one thread.
class OptionScope {
 public:
  explicit OptionScope(const Options& options);
  ~OptionScope();
  OptionScope(const OptionScope&) = delete;
  OptionScope& operator=(const OptionScope&) = delete;

 private:
  Options saved_;
};

}  // namespace koine

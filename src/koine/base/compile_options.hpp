#pragma once
#include <cstdint>
#include <string>

namespace koine {

/// The options that change what is compiled, and how it is checked. Taken once, where a program
/// begins to be compiled, and handed to each pass: what another thread sets meanwhile holds for the
/// next program.
struct CompileOptions {
  bool strict = false;
  bool noopt = false;
  int verify = 1;
  std::string cpu;
  bool atomic_scatter = false;             ///< sums by index in any order
  int64_t row_bytes = int64_t{256} << 10;  ///< for the rows of a kernel, if all its devices have it
  /// Of the device with the fewest, if all have groups of threads; 0: parts are for CPUs.
  int64_t multiprocessors = 0;
  int64_t atomic_bytes = 8;  ///< of the widest number that threads of all devices add at once
  int64_t cached_bytes = int64_t{1} << 20;  ///< a second pass over no more finds them in a cache
  bool tensor_cores = false;  ///< all have some that take narrow floats as they lie in memory
};

/// Those of `options()`, now.
CompileOptions compile_options();

}  // namespace koine

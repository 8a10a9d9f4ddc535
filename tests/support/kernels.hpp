#pragma once
#include <vector>

#include "koine/interp/interp.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/rangeify.hpp"

namespace koine::test {

/// Edits of one of a program's kernels in place of the heuristic's.
struct KernelEdits {
  size_t kernel = 0;
  std::vector<Opt> opts;
};

/// Runs the kernels of a program in order on the device of the options; returns what the last one
/// writes.
Array run_kernels(const std::vector<Kernel>& kernels, const Callified& program,
                  const KernelEdits& edits);

}  // namespace koine::test

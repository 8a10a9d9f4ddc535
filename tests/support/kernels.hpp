#pragma once
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "koine/engine/engine.hpp"
#include "koine/interp/interp.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/tensor/tensor.hpp"

namespace koine::test {

/// Edits of one of a program's kernels in place of the heuristic's.
struct KernelEdits {
  size_t kernel = 0;
  std::vector<Opt> opts;
};

inline Opt split(int axis, int64_t amount, AxisType target, bool top = false) {
  return {OptOp::Split, axis, amount, target, top};
}

/// Memory that ends where a page begins that nobody may touch. It starts out as zeros.
class GuardedMemory {
 public:
  explicit GuardedMemory(int64_t bytes);
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory();
  std::byte* data() const { return end_ - bytes_; }

 private:
  int64_t bytes_;
  size_t mapped_;
  std::byte* end_;
};

/// Runs the kernels of a program in order on the device of the options, in guarded memory, with
/// Variables by name; returns what the last one writes.
Array run_kernels(const std::vector<Kernel>& kernels, const Callified& program,
                  const KernelEdits& edits,
                  const std::unordered_map<std::string, int64_t>& bound = {});

/// How many nodes of a graph are of an op.
int count_ops(const UOp& graph, Op op);
/// How many elements kernels load from memory, gated Loads among them, each as often as its loops
/// say.
double loads_of(const std::vector<Kernel>& kernels);
/// The same value with the operands of some commutative ops exchanged.
UOp with_swapped_operands(const UOp& value, std::mt19937_64& random);
/// A value of which two kernels are one, which each launch tells where its slice begins and what it
/// adds.
UOp told_by_arguments(DType dtype = DType::Float32);
/// Operations and bytes of each kernel that would run for values, ascending.
std::vector<std::pair<double, double>> counted_work(const std::vector<UOp>& values);
/// What computing values into memory of their own costs, by the engine's own count.
Counters counters_of(const std::vector<Tensor>& values);

}  // namespace koine::test

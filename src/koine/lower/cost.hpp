#pragma once
#include <functional>

#include "koine/ir/uop.hpp"

// What passes of the compiler hold against each other: operations, bytes, and when one is worth the
// other. One unit everywhere: an operation on a scalar that lies in a register.
namespace koine {

// --- values of a program -------------------------------------------------------------------------

/// The largest value of a size.
double largest(const UOp& size);
/// How many elements a value has.
double elements_of(const UOp& u);
/// How many elements are folded into one.
double reduced_size(const UOp& reduce);
/// Operations to compute one element, following sources until `stop`; saturates.
double element_cost(const UOp& node, const std::function<bool(const UOp&)>& stop);

/// What storing an element and loading it costs where its memory is its own: what costs more is
/// computed once.
constexpr double cost_of_memory = 32;
/// What a further load costs where the element lies in memory anyway: what costs less is computed
/// again.
constexpr double cost_of_load = 4;

// --- kernels -------------------------------------------------------------------------------------

/// Whether a node is an operation on values, and no arithmetic of places.
bool is_operation(const UOp& u);
/// Operations on values that one kernel may hold: passes and LLVM take their time for what is
/// compiled together.
constexpr size_t most_fused_operations = 400;

/// What one kernel costs, counted on its loops: for reports and for choosing.
struct KernelEstimate {
  double operations = 0;  ///< on values; none for casts and what computes or tests a place
  double steps = 0;       ///< the same with casts, tests, loads and stores
  double bytes = 0;       ///< distinct bytes of the buffers it touches, at most what it accesses
};
KernelEstimate estimate_of(const UOp& kernel);

// --- threads -------------------------------------------------------------------------------------

/// Steps of a kernel below which a second thread costs more than it gives.
constexpr double least_steps_for_threads = 1 << 17;
/// Parts of a kernel that keep the threads busy, and those that are too many.
constexpr int64_t enough_parts = 8, most_parts = 16;

/// A reduce of so many operations is no work for one thread.
constexpr double most_operations_of_a_part = 8192;
/// A reduce of so many elements a result, with no more results than these, becomes partial ones of
/// so many parts.
constexpr int64_t least_elements_to_split = 1 << 18, most_results_to_split = 32, split_parts = 64;

}  // namespace koine

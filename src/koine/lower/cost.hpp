#pragma once
#include <functional>
#include <span>

#include "koine/ir/uop.hpp"

// What passes of the compiler hold against each other: operations, bytes, and when one is worth the
// other. One unit everywhere: an operation on a scalar that lies in a register.
namespace koine {

// --- values of a program -------------------------------------------------------------------------

/// The largest value of a size.
double largest(const UOp& size);
/// How often what stands in loops is computed, at most.
double turns_of(std::span<const UOp> loops);
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

// --- fusion: what may be repeated, what a kernel may hold
// -----------------------------------------

/// How much more than once a fold may be computed: what stands at the edges.
constexpr double fold_repeated = 0.05;
/// How often a sum may be computed, to once, that another sum goes on with in the same loops.
constexpr double sum_continued = 1.5;
/// Repeated operations, to each iteration of the loops, that nobody notices.
constexpr double operations_unnoticed = 0.25;
/// A fold within a fold of no more steps is as cheap in place.
constexpr double most_nested_steps = 4096;
/// A sum of products of fewer is fast without a register tile.
constexpr double least_tiled_products = 1 << 15;

/// A part of a join with fewer elements is copied: that costs less than a launch.
constexpr double least_elements_of_a_part = 256;
/// Parts of a join that are copied, each by a launch, before all are one kernel.
constexpr int64_t most_copied_parts = 16;
/// Rows in LOCAL memory, whose loops make the code of a kernel longer.
constexpr int most_rows_of_a_kernel = 8;
/// What a cache keeps of a row from one loop along it to the next, and how many columns the lanes
/// of some vectors go along side by side.
constexpr double most_bytes_of_rows = 1 << 20, lanes_of_columns = 64;
/// Buffers and Stores of a kernel that several were merged into.
constexpr size_t most_merged_buffers = 32, most_merged_stores = 64;
/// Kernels that are looked at for each buffer of one, and between two, before they count as too far
/// apart: so looking costs time that grows with the program alone.
constexpr size_t most_neighbours = 8, most_kernels_between = 256;

// --- kernels -------------------------------------------------------------------------------------

/// Whether a node is an operation on values, and no arithmetic of places.
bool is_operation(const UOp& u);
/// How many operations a kernel holds by a node, as its limit counts them: 0 for no operation on
/// values, 1 for most, and for what a target has no instruction for, such as a sine, about what it
/// becomes.
size_t operations_of(const UOp& u);
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
/// On machines with groups of threads: groups on each multiprocessor that keep it busy, elements of
/// a part at least, and neighbouring results that a group has.
constexpr int64_t busy_groups = 8, least_elements_of_a_group = 1 << 12, results_of_a_group = 32;
/// An axis that is no multiple of the parts is cut where each has so many elements of it, and a run
/// of so many in memory.
constexpr double least_elements_of_a_cut = 8, least_run_of_a_cut = 256;

}  // namespace koine

#pragma once
#include <stdexcept>
#include <vector>

#include "koine/interp/deviation.hpp"
#include "koine/interp/interp.hpp"

namespace koine {

/// What is known of the elements of a kernel's buffers, by slot: how far a legal evaluation in
/// default mode may be from what the interpreter computes. Missing elements deviate by 0.
struct Deviations {
  Liberties liberties;
  std::vector<std::vector<double>> buffers;
};

/// The inputs do not decide what a kernel does: an address, a gate or a loop's bound comes from
/// floats that the default mode may round in several ways.
class Undetermined : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Runs a kernel between Rangeify and Linearize as its graph says: scalars over Ranges, axes of
/// shape and REG accumulators (Expand), vectors (Select). All threads run, one after the other.
/// Accesses are checked like those of `interpret_linear`. With `deviations`, bounds are kept beside
/// the values, from those of the buffers before to those after; throws Undetermined where they do
/// not suffice.
void interpret_kernel(const UOp& ast, const KernelArguments& arguments,
                      Deviations* deviations = nullptr);

}  // namespace koine

#pragma once
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "koine/tensor/transforms.hpp"

namespace koine {

/// An axis of an argument of a CapturedFunction that has another size in each call.
struct DynamicAxis {
  size_t argument;
  size_t axis;
  Variable size;
};

/// A function of tensors, described and compiled once (row L9): each call is one submission, for
/// arguments of the shapes, dtypes and devices of `examples`. Tensors that are one value among the
/// examples must be one among the arguments, and no others.
///
///     CapturedFunction step([](const Tensors& x) { return Tensors{x[0].matmul(x[1]).relu()}; },
///                           {a, b});
///     Tensor y = step({c, d})[0];
///
/// `surroundings` are tensors that the function may read and assign without being given them: their
/// values are those of each call, and they count as arguments behind the others. A result is the
/// value that the function itself would give, with its memory: gradients go through it. Safe from
/// several threads, one after the other; while the function is described, no other thread may use
/// tensors that it assigns.
///
/// What it assigns to an argument or a surrounding is computed with the results and assigned at
/// each call, the gradients that it leaves too: a whole step of training is one function. A
/// gradient of a tensor that it assigns is computed when somebody asks for it. Random numbers of
/// the global seed are drawn anew at each call; memory that it fills itself with numbers of the
/// host (`OutsideOfTraces`) is a constant. A call that fails assigns nothing.
///
/// Throws Error (Value) where the function is no description of its results by these tensors alone:
/// it looks at values, assigns to other tensors, reads other memory, gives back an argument, a
/// surrounding or one tensor twice, or assigns what a gradient to a leaf goes through.
///
/// Along `dynamic` axes the arguments of a call have any size from 2 on that the Variable may have,
/// and one program serves all of them. To the function these sizes are symbolic, and whatever would
/// decide by one that its range leaves open throws Error. Sizes 0 and 1 are no such sizes, because
/// they broadcast, squeeze and reduce in their own way: they want a function of their own.
class CapturedFunction {
 public:
  CapturedFunction(const transforms::Function& f, const transforms::Tensors& examples,
                   const transforms::Tensors& surroundings = {},
                   const std::vector<DynamicAxis>& dynamic = {},
                   std::source_location where = std::source_location::current());
  ~CapturedFunction();
  CapturedFunction(CapturedFunction&&) noexcept;

  /// Computes, for arguments with the surroundings of now behind them. Throws Error (Value) where
  /// they are not as the examples, Error (Index) where a position is out of range.
  transforms::Tensors operator()(const transforms::Tensors& arguments);
  /// False where a size inside of the function that follows from the dynamic ones is 0 or 1 for
  /// these arguments: they want a function of their own too.
  bool serves(const transforms::Tensors& arguments) const;

  /// Whether the function assigns, or asks for gradients. Then a call must give tensors of the same
  /// `state_of` as the examples.
  bool has_state() const;
  /// Which tensors are views or handles of one, which require a gradient, which have one.
  static std::string state_of(const transforms::Tensors& arguments);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace koine

#pragma once
#include <memory>
#include <source_location>
#include <vector>

#include "koine/tensor/transforms.hpp"

namespace koine {

/// A function of tensors, described and compiled once (row L9): each call is one submission, for
/// arguments of the shapes, dtypes and devices of `examples`. Tensors that are one value among the
/// examples must be one among the arguments, and no others.
///
///     CapturedFunction step([](const Tensors& x) { return Tensors{x[0].matmul(x[1]).relu()}; },
///                           {a, b});
///     Tensor y = step({c, d})[0];
///
/// `surroundings` are tensors that the function may read without being given them: their values are
/// those of each call, and they count as arguments behind the others. A result is the value that
/// the function itself would give, with its memory: gradients go through it. Safe from several
/// threads, one after the other.
///
/// Throws Error (Value) where the function is no description of its results by these tensors alone:
/// it looks at values, assigns to a tensor that it did not make, reads other memory (random numbers
/// do), or gives back an argument or one tensor twice.
class CapturedFunction {
 public:
  CapturedFunction(const transforms::Function& f, const transforms::Tensors& examples,
                   const transforms::Tensors& surroundings = {},
                   std::source_location where = std::source_location::current());
  ~CapturedFunction();
  CapturedFunction(CapturedFunction&&) noexcept;

  /// Computes, for arguments with the surroundings of now behind them. Throws Error (Value) where
  /// they are not as the examples, Error (Index) where a position is out of range.
  transforms::Tensors operator()(const transforms::Tensors& arguments);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace koine

#pragma once
#include <functional>
#include <string>
#include <vector>

#include "koine/interp/host_function.hpp"
#include "koine/ir/build.hpp"
#include "koine/tensor/tensor.hpp"

// Kernels made by hand and functions of the host as parts of tensor graphs (rows B13 and X4). Both
// are lazy, are pure, run once for equal arguments, and are differentiable once somebody says how.
namespace koine {

/// A result: its shape and dtype.
struct CallResult {
  Shape shape;
  DType dtype = DType::Float32;
};

/// Makes a kernel of its Params: results first, then arguments, each with its shape and dtype.
///
///     Tensor c = custom_kernel("axpy", CallResult{x.shape()}, {x, y}, [](const std::vector<UOp>&
///     p) {
///       const UOp i = range(0, p[0].dim(0), AxisType::Loop);
///       const UOp twice = mul(constant(DType::Float32, 2), index(p[1], {i}));
///       return sink({end(store(index(p[0], {i}), add(twice, index(p[2], {i}))), {i})});
///     });
///
/// The Sink holds loops (Ends) around Stores into elements of results; `index(p, {i, j})` is an
/// element, with an index for each axis. An element that is out of bounds reads 0, and is not
/// stored; what is not stored at all is 0. A kernel whose loops visit each element of its results
/// once is optimised as others are; another one, or one with loops of types other than LOOP and
/// REDUCE, runs as it is written.
using KernelBuilder = std::function<UOp(const std::vector<UOp>& params)>;

/// The result of a kernel made by hand, called with arguments that may be lazy, and views, which
/// are copied. `name` stands in Errors and is that of its gradient (`register_gradient`). Throws
/// Error (Value) where the kernel is none, stores into an argument, or does not store into a
/// result.
Tensor custom_kernel(const std::string& name, const CallResult& result,
                     const std::vector<Tensor>& arguments, const KernelBuilder& kernel);
/// The same with several results.
std::vector<Tensor> custom_kernel(const std::string& name, const std::vector<CallResult>& results,
                                  const std::vector<Tensor>& arguments,
                                  const KernelBuilder& kernel);

/// The result of a function of the host that `register_function` made known:
///
///     register_function("my.axpy", [](std::span<const HostResult> out,
///                                     std::span<const HostArgument> in) {
///       const auto x = in[0].as<float>(), y = in[1].as<float>();
///       for (size_t i = 0; i < x.size(); ++i) out[0].as<float>()[i] = 2 * x[i] + y[i];
///     });
///     Tensor c = call_function("my.axpy", CallResult{x.shape()}, {x, y});
///
/// Throws Error (Key) naming the functions that are known where this one is not.
Tensor call_function(const std::string& name, const CallResult& result,
                     const std::vector<Tensor>& arguments);
std::vector<Tensor> call_function(const std::string& name, const std::vector<CallResult>& results,
                                  const std::vector<Tensor>& arguments);

/// What the gradient of a kernel or function is made of; `gradients` are those of its results, in
/// their shapes.
struct CallGradient {
  std::vector<Tensor> arguments, results, gradients;
};
/// Says the gradient of the kernels and the function of this name, from now on: one tensor for each
/// argument in its shape and dtype, or Tensor() where there is none. Without one, a gradient
/// through a call is an Error that names it.
///
///     register_gradient("axpy", [](const CallGradient& c) -> std::vector<Tensor> {
///       return {2 * c.gradients[0], c.gradients[0]};
///     });
void register_gradient(const std::string& name,
                       std::function<std::vector<Tensor>(const CallGradient&)> rule);

/// What a kernel or function for many examples is given: its arguments, and whether axis 0 of each
/// counts the examples.
struct CallForExamples {
  std::vector<Tensor> arguments;
  std::vector<bool> mapped;
  Size examples;
};
/// Says what `vmap` makes of the kernels and the function of this name, from now on: each result
/// for all examples, which axis 0 counts. Without one, vmap of a call is an Error that names it.
void register_vmap(const std::string& name,
                   std::function<std::vector<Tensor>(const CallForExamples&)> rule);

/// Of a name that no kernel and no function has had: what `register_function`, `register_gradient`
/// and `register_vmap` make known by it is known until `let_go` says that no more values are made
/// of it, and the last of them is gone. Of other names it is known as long as the process lives.
void keep_while_used(const std::string& name);
void let_go(const std::string& name);

}  // namespace koine

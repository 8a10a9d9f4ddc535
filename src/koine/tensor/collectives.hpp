#pragma once
#include <cstdint>
#include <string>

#include "koine/tensor/tensor.hpp"

// The seven collectives of the specification, each composed of reshape, expand, permute, copy,
// replicated and a reduce. The compiler finds them again in the program, also where somebody writes
// the same by hand, and its copies say which one they are of. docs/devices.md has a table of the
// compositions and of the bytes that each device sends.
//
// Of n devices, "in parts" means: split along axis 0, device i holds rows i m to (i + 1) m of n m.
// Where partial values are combined (reduce, reduce_scatter, all_reduce), the part of a device is
// its partial value of shape (m, ...). Gradients go through all seven.
namespace koine::collective {

/// How the partial values of the devices become one. The dtype is that of sum() and max().
enum class Fold : uint8_t { Add, Max };

/// What becomes of a size that the devices do not divide: an Error (Value) that names the multiple
/// to pad to, or zeros behind it up to that multiple.
enum class Uneven : uint8_t { Refuse, Pad };

/// x, on one device, whole on each of several: shape (...) stays. Throws Error (Value) where x lies
/// on several devices, or `devices` names one.
Tensor broadcast(const Tensor& x, const std::string& devices);

/// x (s, ...), on one device, in parts of s/n rows on several. With Uneven::Pad the result has as
/// many rows of zeros at its end as it takes. Throws Error (Value) where x is a scalar or lies on
/// several devices, `devices` names one, or s does not split.
Tensor scatter(const Tensor& x, const std::string& devices, Uneven uneven = Uneven::Refuse);

/// x (n m, ...), in parts, on one device: the first of its own, or the one that is named. Throws
/// Error (Value) where x is not in parts, and so do those below.
Tensor gather(const Tensor& x, const std::string& device = "");

/// The partial values of x (n m, ...), in parts, combined on one device: (m, ...).
Tensor reduce(const Tensor& x, Fold fold = Fold::Add, const std::string& device = "");

/// x (n m, ...), in parts, whole on each of its devices.
Tensor all_gather(const Tensor& x);

/// The partial values of x (n m, ...), in parts, combined: (m, ...) in parts of m/n rows, where
/// each device combines its own. With Uneven::Pad the result has rows of zeros at its end. Throws
/// Error (Value) where m does not split.
Tensor reduce_scatter(const Tensor& x, Fold fold = Fold::Add, Uneven uneven = Uneven::Refuse);

/// The partial values of x (n m, ...), in parts, combined: (m, ...) whole on each device, an
/// all_gather of the reduce_scatter. With Uneven::Pad rows of zeros go along and are cut off.
Tensor all_reduce(const Tensor& x, Fold fold = Fold::Add, Uneven uneven = Uneven::Refuse);

}  // namespace koine::collective

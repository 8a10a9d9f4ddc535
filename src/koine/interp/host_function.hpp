#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "koine/ir/dtype.hpp"
#include "koine/ir/own_functions.hpp"
#include "koine/ir/uop.hpp"

// Functions of the host: C++ callables that a graph calls by name (row X4).
namespace koine {

/// A dense row-major array in host memory; `Byte` is std::byte, or const std::byte where it is only
/// read.
template <class Byte>
struct BasicHostArray {
  DType dtype = DType::Void;
  std::vector<int64_t> sizes;
  Byte* data = nullptr;

  int64_t numel() const {
    int64_t n = 1;
    for (const int64_t s : sizes) n *= s;
    return n;
  }
  /// The elements as a C++ type: `y.as<float>()`. Throws Error (Type) where that is not the dtype.
  template <class T>
  auto as() const {
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    require_dtype(dtype_of<T>());
    return std::span<Element>(reinterpret_cast<Element*>(data), static_cast<size_t>(numel()));
  }

 private:
  void require_dtype(DType wanted) const;
};
using HostResult = BasicHostArray<std::byte>;
using HostArgument = BasicHostArray<const std::byte>;

/// Fills the results, which hold zeros, from the arguments. It is taken to be pure: equal arguments
/// give equal results, so equal calls run once, a call whose result nobody reads does not run, and
/// what was computed is not computed again. It may run in any thread, in several at once, and while
/// others compile; it may compute tensors of its own, but not wait for another thread that does.
/// What it throws becomes an Error that names it, and the tensors keep the values they had.
using HostFunction = std::function<void(std::span<const HostResult> results,
                                        std::span<const HostArgument> arguments)>;

/// Makes a function callable by name. A second one of that name takes the place of the first: no
/// later run calls the old one, and no result of it is used for calls that are made from then on.
/// Throws Error (Value) where the name is empty or one that Koine has, or there is no function.
void register_function(const std::string& name, HostFunction function);
void unregister_function(const std::string& name);
/// The body of a Call of what is registered now, with a Param for each result. Throws Error (Key)
/// naming the functions that are known where this one is not.
UOp host_function(const std::string& name, std::span<const UOp> results);
/// Runs what is registered as the name of a CustomFunction.
void run_host_function(const UOp& function, std::span<const HostResult> results,
                       std::span<const HostArgument> arguments);

}  // namespace koine

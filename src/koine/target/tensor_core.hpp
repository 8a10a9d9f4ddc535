#pragma once
#include <span>
#include <string_view>

#include "koine/ir/dtype.hpp"

// Machines that multiply small matrices by one instruction. Plain data.
namespace koine {

/// An axis of a matrix as threads and registers hold it: `size` places, `step` apart, along rows
/// (m), columns (n) or what is summed over (k).
struct CoreAxis {
  char along;
  int size, step;
  bool operator==(const CoreAxis&) const = default;
};

/// How A (m by k), B (k by n) or the accumulator (m by n) lies in the threads: the number of a
/// thread counts along `threads`, that of an element which it holds along `elements`, the last axis
/// fastest.
struct CoreMatrix {
  DType dtype;
  std::span<const CoreAxis> threads, elements;

  int element_count() const;
  /// Where an element of a thread lies along m, n or k.
  int place(char along, int thread, int element) const;
};

/// A tensor core: accumulator += A * B. The threads of all three matrices count along axes of the
/// same sizes.
struct TensorCore {
  std::string_view name;
  int m, n, k;
  CoreMatrix a, b, accumulator;
  std::string_view feature = {};  ///< of a CPU: what LLVM calls what it needs
  /// It folds in ascending order and rounds each step once, as strict mode does, or is exact.
  bool ordered = false;
  /// There is no such instruction: others compute it, anywhere.
  bool software = false;

  int threads() const;
  int size(char along) const { return along == 'm' ? m : along == 'n' ? n : k; }
};

/// All that are known. A target lists those it has.
std::span<const TensorCore> tensor_cores();
/// Null: there is none of that name.
const TensorCore* find_tensor_core(std::string_view name);
/// Throws InternalError.
const TensorCore& tensor_core_named(std::string_view name);

}  // namespace koine

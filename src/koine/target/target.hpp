#pragma once
#include <cstdint>
#include <string>

#include "koine/ir/dtype.hpp"
#include "koine/ir/op.hpp"

namespace koine {

/// What the code generator must know of a machine. Plain data: no behaviour, no device handle.
struct Target {
  std::string name;       ///< part of every kernel's cache key
  std::string cpu;        ///< LLVM's name of the processor; empty for text targets
  std::string features;   ///< LLVM's feature string
  int vector_bytes = 16;  ///< widest register for arithmetic
  int vector_registers = 16;
  bool has_fma = false;
  bool has_threads = false;                     ///< THREAD axes run on a team
  bool strict = false;                          ///< amendment C32: no contraction, ascending folds
  int64_t last_level_cache = int64_t{8} << 20;  ///< bytes one core may count on
  /// What it computes of floats besides Add, Mul, Max and comparisons.
  OpSet float_ops = ops({Op::Fdiv, Op::Sqrt, Op::Trunc});
  int64_t most_lanes = 256;               ///< of one value
  int64_t row_bytes = int64_t{32} << 10;  ///< of LOCAL memory for the rows of a kernel

  int lanes(int64_t item_bytes) const { return static_cast<int>(vector_bytes / item_bytes); }
};

/// A target that knows nothing special: plain C text and the interpreter.
inline Target generic_target(bool strict) {
  Target t;
  t.name = strict ? "generic-strict" : "generic";
  t.vector_bytes = 32;  // the shapes of an AVX2 kernel, so that the interpreter checks them
  t.strict = strict;
  return t;
}

/// Whether the target computes an elementwise op on operands of this dtype (of a Where: what it
/// picks from) without its decomposition. Narrow floats count as the float32 in which they are
/// emulated.
bool is_native(const Target& target, Op op, DType operands);
/// Whether a value of this dtype stands in a program for the target: narrow floats are gone.
bool is_native(const Target& target, DType dtype);

}  // namespace koine

#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "koine/base/compile_options.hpp"
#include "koine/ir/dtype.hpp"
#include "koine/ir/op.hpp"
#include "koine/target/tensor_core.hpp"

namespace koine {

/// What a machine offers to groups of threads, which share LOCAL memory and wait for each other.
struct Groups {
  int64_t most_threads = 0;  ///< of a group; 0: there are no groups, and loops stay loops
  std::array<int64_t, 3> most_in_group{1024, 1024, 64};         ///< along each axis
  std::array<int64_t, 3> most_groups{INT32_MAX, 65535, 65535};  ///< along each axis
  int64_t local_bytes = int64_t{32} << 10;                      ///< of a group
  int64_t warp = 32;  ///< threads that run in step: a group has a multiple of them at best
  int64_t multiprocessors = 128;  ///< several groups on each keep the machine busy

  explicit operator bool() const { return most_threads > 0; }
};

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
  std::vector<DType> lacks;  ///< dtypes that it has no values of, besides narrow floats
  int64_t most_lanes = 256;  ///< of one value
  /// Of neighbouring elements that one load or store takes, at multiples of so many; 0: each alone.
  int64_t wide_bytes = 0;
  int64_t row_bytes = int64_t{256} << 10;       ///< of LOCAL memory for the rows of a kernel
  int64_t atomic_bytes = 8;                     ///< of the widest number that threads add at once
  Groups groups;                                ///< GLOBAL, LOCAL and GROUP_REDUCE axes run on them
  std::vector<const TensorCore*> tensor_cores;  ///< that it has (`give_cores`)

  /// Restricts the options of a program that has kernels for it.
  void restrict(CompileOptions& how) const;
  int lanes(int64_t item_bytes) const { return static_cast<int>(vector_bytes / item_bytes); }
};

/// Gives a target the tensor cores that `has` names, and those that any machine computes; in strict
/// mode none that rounds otherwise than strict mode does.
template <class Has>
void give_cores(Target& target, Has&& has) {
  target.tensor_cores.clear();
  for (const TensorCore& core : tensor_cores())
    if ((core.software || has(core)) && (core.ordered || !target.strict))
      target.tensor_cores.push_back(&core);
}

/// A target that knows nothing special: plain C text and the interpreter.
inline Target generic_target(bool strict) {
  Target t;
  t.name = strict ? "generic-strict" : "generic";
  t.vector_bytes = 32;  // the shapes of an AVX2 kernel, so that the interpreter checks them
  t.strict = strict;
  give_cores(t, [](const TensorCore&) { return false; });
  return t;
}

/// A GPU that is like most: what the texts of such languages are made for, and the device SIMT,
/// which has the tensor cores of all GPUs.
inline Target simt_target(bool strict) {
  Target t;
  t.name = strict ? "simt-strict" : "simt";
  t.vector_bytes = 16;
  t.has_fma = true;
  t.strict = strict;
  t.groups.most_threads = 1024;
  t.row_bytes = t.groups.local_bytes;
  give_cores(t, [](const TensorCore& core) { return core.threads() > 1; });
  return t;
}

/// Whether the target computes an elementwise op on operands of this dtype (of a Where: what it
/// picks from) without its decomposition. Narrow floats count as the float32 in which they are
/// emulated.
bool is_native(const Target& target, Op op, DType operands);
/// Whether a value of this dtype stands in a program for the target: narrow floats are gone, and
/// what it lacks.
bool is_native(const Target& target, DType dtype);

}  // namespace koine

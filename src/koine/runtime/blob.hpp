#pragma once
#include <string>
#include <string_view>

#include "koine/lower/pipeline.hpp"
#include "koine/target/target.hpp"

namespace koine {

/// What a compiler makes of a kernel: all that a program is loaded from.
struct Blob {
  LoweredKernel kernel;
  std::string target;  ///< what it was made for, as `blob_target` says it
  std::string code;    ///< machine code; empty where the device runs the linear program itself
};

/// A target with all that code for it may use.
std::string blob_target(const Target& target);
/// Throws Error (Device) where a blob was made for another target.
void require_target(const Blob& blob, const Target& target);

/// A blob as bytes, to be kept and read again by the same version of Koine. What KOINE_VERIFY=3 and
/// reports on the optimiser know of a kernel is left out. They are machine code: load only what you
/// trust.
std::string to_bytes(const Blob& blob);
/// Throws Error (Value) where the bytes are none of this version, or damaged.
Blob blob_from(std::string_view bytes);

}  // namespace koine

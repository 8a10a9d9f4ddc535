#pragma once
#include <functional>
#include <memory>
#include <string>

#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace koine {

using KernelFunction = void (*)(std::byte* const* buffers, const int64_t* variables,
                                int64_t thread);

/// Machine code of one kernel; unmapped with the last owner.
class JitCode {
 public:
  virtual ~JitCode() = default;
  virtual KernelFunction function() const = 0;
};

/// Compiles a linear program with LLVM (PERFORMANCE section 4: no IR passes, O1 code generation,
/// LSR off). Safe from several threads; each has its own LLVM context, recycled now and then.
std::shared_ptr<JitCode> jit_compile(const UOp& linear, const Target& target);

/// Name and feature string of this host's processor as LLVM spells them.
std::string host_cpu_name();
std::string host_cpu_features();

}  // namespace koine

#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

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
/// LSR off) to an object file, equal ones for equal programs. Safe from several threads; each has
/// its own LLVM context, recycled now and then.
std::string compile_object(const UOp& linear, const Target& target);
/// Links such an object file into the process.
std::shared_ptr<JitCode> load_object(std::string_view object);
/// Both.
std::shared_ptr<JitCode> jit_compile(const UOp& linear, const Target& target);

/// Name and feature string of this host's processor as LLVM spells them.
std::string host_cpu_name();
std::string host_cpu_features();

}  // namespace koine

#pragma once
#include <string>

#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace llvm {
class Module;
}

namespace koine {

/// Adds the function `name(ptr buffers, ptr variables, i64 thread)` to a module. REG buffers become
/// PHIs, vectors LLVM vectors; no pass is needed to make the code good. For a target with groups of
/// threads it is a kernel of NVPTX with a parameter a slot and one a Variable, an i64.
void render_llvm(const UOp& linear, const std::string& name, const Target& target,
                 llvm::Module& module);

/// The same as text, for people.
std::string render_llvm_text(const UOp& linear, const std::string& name, const Target& target);

/// The assembly of NVIDIA's virtual machine, PTX, for machines from sm_80 on. Throws Error (Value)
/// where LLVM was built without it.
std::string render_ptx(const UOp& linear, const std::string& name, const Target& target);
/// What kernels are lowered for before.
Target ptx_target(bool strict);

}  // namespace koine

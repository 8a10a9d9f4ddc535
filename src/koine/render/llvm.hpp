#pragma once
#include <string>

#include "koine/ir/uop.hpp"
#include "koine/target/target.hpp"

namespace llvm {
class Module;
}

namespace koine {

/// Adds the function `name(ptr buffers, ptr variables, i64 thread)` to a module. REG buffers become
/// PHIs, vectors LLVM vectors; no pass is needed to make the code good.
void render_llvm(const UOp& linear, const std::string& name, const Target& target,
                 llvm::Module& module);

/// The same as text, for people.
std::string render_llvm_text(const UOp& linear, const std::string& name, const Target& target);

}  // namespace koine

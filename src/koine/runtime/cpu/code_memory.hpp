#pragma once
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>

#include <memory>

namespace koine {

/// Memory for the code of kernels and for their constants. Both are taken page by page from a few
/// large regions, the code of all kernels side by side and their constants side by side: pages of
/// one protection that are neighbours are one mapping for the system, which limits how many a
/// process may have (Linux: 65,530). Pages are writable or executable, never both.
std::unique_ptr<llvm::jitlink::JITLinkMemoryManager> make_code_memory();

}  // namespace koine

#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>

#include "koine/base/error.hpp"
#include "koine/render/llvm.hpp"

#ifdef KOINE_HAS_NVPTX
extern "C" {
void LLVMInitializeNVPTXTargetInfo();
void LLVMInitializeNVPTXTarget();
void LLVMInitializeNVPTXTargetMC();
void LLVMInitializeNVPTXAsmPrinter();
}
#endif

namespace koine {
namespace {

constexpr const char* triple = "nvptx64-nvidia-cuda";

// Registers LLVM's target once; null where it was built without.
const llvm::Target* nvptx() {
#ifdef KOINE_HAS_NVPTX
  static const llvm::Target* const found = [] {
    LLVMInitializeNVPTXTargetInfo();
    LLVMInitializeNVPTXTarget();
    LLVMInitializeNVPTXTargetMC();
    LLVMInitializeNVPTXAsmPrinter();
    std::string error;
    return llvm::TargetRegistry::lookupTarget(triple, error);
  }();
  return found;
#else
  return nullptr;
#endif
}

}  // namespace

Target ptx_target(bool strict) {
  Target out = simt_target(strict);
  out.name = strict ? "ptx-strict" : "ptx";
  out.cpu = "sm_80";
  out.features = "+ptx70";
  give_cores(out, [](const TensorCore&) { return false; });
  return out;
}

std::string render_ptx(const UOp& linear, const std::string& name, const Target& target) {
  KOINE_REQUIRE(nvptx() != nullptr, Value, "ptx: this LLVM was built without its target NVPTX");
  set_llvm_options();
  llvm::TargetOptions how;
  how.AllowFPOpFusion = llvm::FPOpFusion::Strict;  // what is fused is a Mulacc
  const std::unique_ptr<llvm::TargetMachine> machine(
      nvptx()->createTargetMachine(triple, target.cpu, target.features, how, std::nullopt,
                                   std::nullopt, llvm::CodeGenOptLevel::Default));
  llvm::LLVMContext context;
  llvm::Module module(name, context);
  module.setTargetTriple(triple);
  module.setDataLayout(machine->createDataLayout());
  render_llvm(linear, name, target, module);
  llvm::SmallString<0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager passes;
  const bool failed =
      machine->addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::AssemblyFile);
  KOINE_INVARIANT(!failed, "NVPTX gives no assembly");
  passes.run(module);
  return text.str().str();
}

}  // namespace koine

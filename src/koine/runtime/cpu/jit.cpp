#include "koine/runtime/cpu/jit.hpp"

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/OptBisect.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Host.h>

#include <atomic>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <optional>

#include "koine/base/error.hpp"
#include "koine/base/interrupt.hpp"
#include "koine/base/left_work.hpp"
#include "koine/base/of_thread.hpp"
#include "koine/base/options.hpp"
#include "koine/ir/text.hpp"
#include "koine/render/llvm.hpp"
#include "koine/runtime/cpu/code_memory.hpp"

namespace koine {
namespace {

template <class T>
T require(llvm::Expected<T> value, const char* what) {
  if (!value) internal_error("LLVM: {}: {}", what, llvm::toString(value.takeError()));
  return std::move(*value);
}
void require(llvm::Error error, const char* what) {
  if (error) internal_error("LLVM: {}: {}", what, llvm::toString(std::move(error)));
}

// What LLVM makes once while it compiles goes when the process exits, before static objects that
// are older than it: a compiler that works on what is left may crash or hang.
std::atomic<bool> llvm_is_gone{false};
#ifndef KOINE_LLVM_SHARED
const struct Farewell {
  ~Farewell() { llvm_is_gone = true; }  // and so does what LLVM has from the start
} farewell;
#endif

// Handlers run in the order of destructors: one behind each of the first compilations is called
// before what these have made is gone. Later ones make little that is new.
void note_compilation() {
  static std::atomic<uint64_t> compiled{0};
  constexpr uint64_t first_ones = 256;
  const uint64_t number = ++compiled;
  if (number <= first_ones || std::has_single_bit(number)) std::atexit([] { llvm_is_gone = true; });
}

void require_llvm() {
  KOINE_REQUIRE(!llvm_is_gone, Device,
                "compile: the process is exiting and its compiler is gone: a static object whose "
                "destructor computes must have computed the same before main returns");
}

// The function of each object file: a library of its own keeps those of kernels apart.
constexpr const char* function_name = "kernel";

void initialise() {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    llvm::InitializeNativeTargetAsmParser();  // of Ins
    set_llvm_options();
    // LLVM would end the process. Its frames have no handlers to run on the way out: the compiler
    // that was at work is given up (`ObjectCompiler::object`).
    llvm::install_fatal_error_handler(
        [](void*, const char* reason, bool) { internal_error("LLVM: {}", reason); });
    std::atexit(wait_for_left_work);  // before LLVM's own static objects go
  });
}

llvm::orc::LLJIT& jit() {
  static llvm::orc::LLJIT* instance = [] {
    initialise();
    llvm::orc::LLJITBuilder builder;
    builder.setObjectLinkingLayerCreator([](llvm::orc::ExecutionSession& session, const auto&) {
      return std::make_unique<llvm::orc::ObjectLinkingLayer>(session, make_code_memory());
    });
    auto made = require(builder.create(), "start the JIT");
    const char prefix = made->getDataLayout().getGlobalPrefix();
    made->getMainJITDylib().addGenerator(
        require(llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(prefix),
                "find process symbols"));
    return made.release();  // lives as long as the process: code may run in static destructors
  }();
  return *instance;
}

// Asked between passes.
class RestsWhenLeft : public llvm::OptPassGate {
 public:
  explicit RestsWhenLeft(const std::atomic<bool>& left) : left_(left) {}
  bool shouldRunPass(llvm::StringRef, llvm::StringRef) override {
    rest_if_left(left_);
    return true;
  }
  bool isEnabled() const override { return true; }

 private:
  const std::atomic<bool>& left_;
};

// One thread's compiler. Setting up LLVM's passes takes longer than they run on a small kernel, so
// they are kept; they and the context are replaced after a number of kernels, so that types and
// constants of kernels long gone do not pile up.
class ObjectCompiler {
 public:
  // `gate`, if there is one, is asked before passes.
  std::string object(const UOp& linear, const Target& target, llvm::OptPassGate* gate = nullptr) {
    constexpr int kernels_per_context = 64;
    if (machine_key_ != target.cpu + target.features || ++used_ > kernels_per_context)
      start(target);
    if (gate != nullptr) context_->setOptPassGate(*gate);
    llvm::Module module(function_name, *context_);
    module.setDataLayout(machine_->createDataLayout());
    module.setTargetTriple(machine_->getTargetTriple().str());
    render_llvm(linear, function_name, target, module);
    if (options().verify >= 2 && llvm::verifyModule(module, &llvm::errs()))
      internal_error("the LLVM renderer made an ill-formed module from\n{}", to_text(linear));
    try {
      passes_->run(module);
    } catch (...) {
      note_compilation();
      abandon();
      throw;
    }
    note_compilation();
    if (!complaints_.empty()) {  // of the user's assembly: our own code gives none
      code_.clear();
      raise(ErrorKind::Value, "Ins: the assembler says: {}", std::exchange(complaints_, {}));
    }
    const auto code = std::exchange(code_, {});
    return {code.data(), code.size()};
  }

 private:
  void start(const Target& target) {
    initialise();
    passes_.reset();  // it refers to the machine
    context_ = std::make_unique<llvm::LLVMContext>();
    context_->setDiagnosticHandlerCallBack(note_complaint, &complaints_);
    used_ = 0;
    if (machine_key_ != target.cpu + target.features) make_machine(target);
    passes_ = std::make_unique<llvm::legacy::PassManager>();
    if (machine_->addPassesToEmitFile(*passes_, stream_, nullptr, llvm::CodeGenFileType::ObjectFile,
                                      true))
      internal_error("LLVM cannot emit object files for this host");
  }

  // Without it LLVM ends the process at an error.
  static void note_complaint(const llvm::DiagnosticInfo* info, void* complaints) {
    if (info->getSeverity() != llvm::DS_Error) return;
    llvm::raw_string_ostream stream(*static_cast<std::string*>(complaints));
    llvm::DiagnosticPrinterRawOStream printer(stream);
    info->print(printer);
    stream << "; ";
  }

  // What LLVM left half done is neither used nor destroyed.
  void abandon() {
    (void)passes_.release();
    (void)context_.release();
    (void)machine_.release();
    machine_key_ = "none yet";
    code_.clear();
  }

  void make_machine(const Target& target) {
    const std::string triple = llvm::sys::getProcessTriple();
    std::string error;
    const llvm::Target* found = llvm::TargetRegistry::lookupTarget(triple, error);
    KOINE_INVARIANT(found != nullptr, "LLVM: {}", error);
    llvm::TargetOptions o;
    o.AllowFPOpFusion = llvm::FPOpFusion::Standard;
    o.EnableFastISel = true;
    machine_.reset(found->createTargetMachine(triple, target.cpu, target.features, o,
                                              llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                              llvm::CodeGenOptLevel::Less, true));
    machine_key_ = target.cpu + target.features;
  }

  llvm::SmallVector<char, 0> code_;
  llvm::raw_svector_ostream stream_{code_};
  std::string complaints_;  // of the context
  std::unique_ptr<llvm::LLVMContext> context_;
  std::unique_ptr<llvm::TargetMachine> machine_;
  std::unique_ptr<llvm::legacy::PassManager> passes_;
  std::string machine_key_ = "none yet";
  int used_ = 0;
};

class Code : public JitCode {
 public:
  Code(llvm::orc::JITDylib& library, KernelFunction entry) : library_(library), function_(entry) {}
  ~Code() override {
    if (auto error = jit().getExecutionSession().removeJITDylib(library_))
      llvm::consumeError(std::move(error));
  }
  KernelFunction function() const override { return function_; }

 private:
  llvm::orc::JITDylib& library_;
  KernelFunction function_;
};

}  // namespace

std::string compile_object(const UOp& linear, const Target& target) {
  constexpr size_t few_instructions = 1000;  // LLVM takes about 0.1 s for so many
  require_llvm();
  if (linear.src().size() > few_instructions && interruption_here() != nullptr)
    return run_or_leave([linear, target](const std::atomic<bool>& left) {
      RestsWhenLeft gate(left);
      return ObjectCompiler().object(linear, target, &gate);
    });
  ObjectCompiler* compiler = of_thread<ObjectCompiler>();
  std::optional<ObjectCompiler> last;  // of a thread that has destroyed its own
  if (compiler == nullptr) compiler = &last.emplace();
  return compiler->object(linear, target);
}

std::shared_ptr<JitCode> load_object(std::string_view object) {
  require_llvm();
  static std::atomic<uint64_t> next{0};
  const std::string name = fmt::format("kernel{}", next.fetch_add(1));
  auto made = jit().createJITDylib(name);
  if (!made) internal_error("LLVM: make a library: {}", llvm::toString(made.takeError()));
  llvm::orc::JITDylib& library = *made;
  library.addToLinkOrder(jit().getMainJITDylib());
  require(jit().addObjectFile(
              library, llvm::MemoryBuffer::getMemBufferCopy({object.data(), object.size()}, name)),
          "link a kernel");
  const auto address = require(jit().lookup(library, function_name), "find a kernel");
  return std::make_shared<Code>(library, address.toPtr<KernelFunction>());
}

std::shared_ptr<JitCode> jit_compile(const UOp& linear, const Target& target) {
  return load_object(compile_object(linear, target));
}

std::string host_cpu_name() { return llvm::sys::getHostCPUName().str(); }

std::string host_cpu_features() {
  std::string out;
  for (const auto& feature : llvm::sys::getHostCPUFeatures())
    out += fmt::format("{}{}{}", out.empty() ? "" : ",", feature.second ? '+' : '-',
                       feature.first().str());
  return out;
}

}  // namespace koine

#include "c_text.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "backends.hpp"
#include "cuda_text.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/split_reduce.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/dialect.hpp"
#include "koine/render/llvm.hpp"
#include "koine/runtime/device.hpp"
#include "random_edits.hpp"

namespace koine::test {

namespace {

// A value by the interpreter in the mode of the options, as memory has it.
BoundedArray expected_of(const UOp& value) {
  const Bindings bindings = bindings_of(value);
  BoundedArray expected = options().strict ? BoundedArray{interpret(value, bindings), {}}
                                           : interpret_bounded(value, bindings);
  Array& exact = expected.value;
  for (size_t i = 0; i < exact.valid.size(); ++i)
    if (exact.valid[i] == 0) exact.data[i] = 0;  // as in fresh memory
  exact.valid.clear();
  return expected;
}

}  // namespace

Target CText::target() const {
  if (target_) return target_();
  if (language_ == "ptx") return ptx_target(options().strict);
  Target out = text_target(language_, options().strict);
  if (language_ == "c") out.has_fma = true;
  return out;
}

CText::Case CText::case_of(const UOp& value) const {
  Case c{value, {}, {}, {}, functions_, {}};
  const UOp root =
      value.is(Op::Buffer) ? UOp::make(Op::Contiguous, {value}, MarkArg{Mark::Copies}) : value;
  c.program = callify({root}, {buffer_from_host(value.shape(), value.dtype(), "CPU", nullptr)});
  const CompileOptions how = options_for(target());
  c.kernels = kernels_of(rangeify(split_large_reduces(c.program.body, how), how));
  return c;
}

void CText::add(const UOp& value) {
  for (const bool strict : tested_modes()) {
    if (!strict && !has_liberties(value)) continue;
    Options mode = options();
    mode.strict = strict;
    const OptionScope scope(mode);
    add(value, expected_of(value));
  }
}

bool CText::add_edited(const UOp& value, std::mt19937_64& random) {
  if (value.numel() == 0) return false;
  const std::vector<Kernel> kernels = this->kernels(value);
  std::vector<size_t> of_code, folds;  // those that fold are few, and have edits of their own
  for (size_t k = 0; k < kernels.size(); ++k) {
    if (kernels[k].ast.is(Op::CustomFunction)) continue;
    of_code.push_back(k);
    if (count_ops(kernels[k].ast, Op::Reduce) > 0) folds.push_back(k);
  }
  if (of_code.empty()) return false;
  const std::vector<size_t>& choices = folds.empty() || random() % 4 == 0 ? of_code : folds;
  const size_t chosen = choices[random() % choices.size()];
  for (int attempt = 0; attempt < 4; ++attempt) {
    const Edits edits = random_edits(kernels[chosen].ast, random, target());
    if (edits.list.empty() || (options().strict && edits.reorders && folds_floats(value))) continue;
    add(value, expected_of(value), KernelEdits{chosen, edits.list});
    return true;
  }
  return false;
}

void CText::add(const UOp& value, BoundedArray expected, const std::optional<KernelEdits>& edits) {
  if (value.numel() == 0) return;
  const Target target = this->target();
  Case c = case_of(value);
  c.expected = std::move(expected);
  c.what = fmt::format("{}, edits: {}, {}", options().strict ? "strict" : "default",
                       edits ? Edits{edits->opts}.text() : "", seed);
  for (const Kernel& k : c.kernels) {
    if (k.ast.is(Op::CustomFunction)) {  // a copy of whole memory: no kernel
      c.signatures.emplace_back();
      ++functions_;
      continue;
    }
    const bool edited = edits && edits->kernel == c.signatures.size();
    const UOp linear = lower_kernel(k.ast, target, {}, edited ? &edits->opts : nullptr).linear;
    const std::string name = fmt::format("k{}", functions_);
    source_ += (language_ == "ptx" ? render_ptx(linear, name, target)
                                   : render(language_, name, linear, source_.empty())) +
               "\n";
    if (language_ != "c" && !load_) source_ += fmt::format("KOINE_RUN({})\n", name);
    c.signatures.push_back(signature_of(linear));
    ++functions_;
  }
  cases_.push_back(std::move(c));
  if (functions_ >= most_functions) check();
}

void CText::run(const Case& c, const TextLibrary& library) const {
  std::map<int64_t, std::vector<std::byte>> temporaries;
  for (size_t k = 0; k < c.kernels.size(); ++k) {
    std::vector<TextLibrary::Given> buffers;
    for (const UOp& b : c.kernels[k].buffers) {
      const int64_t slot = b.as<BufferArg>().slot, bytes = b.numel() * item_size(b.dtype());
      if (b.is(Op::Param)) {
        buffers.push_back(
            {memory_of(c.program.arguments[static_cast<size_t>(slot)])->data(), bytes});
      } else {
        auto& t = temporaries[slot];
        t.resize(static_cast<size_t>(bytes) + 8);
        buffers.push_back({t.data(), bytes});
      }
    }
    if (c.kernels[k].ast.is(Op::CustomFunction)) {
      std::memcpy(buffers[0].data, buffers[1].data, static_cast<size_t>(buffers[0].bytes));
      continue;
    }
    const Signature& signature = c.signatures[k];
    std::vector<TextLibrary::Given> named;  // the parameters of the text, all of them in C
    if (language_ == "c") named = buffers;
    for (const int64_t slot : signature.slots)
      if (language_ != "c") named.push_back(buffers[static_cast<size_t>(slot)]);
    std::vector<int64_t> variables;  // of this launch
    for (const std::string& name : signature.variables)
      for (const UOp& v : c.kernels[k].variables)
        if (v.as<BufferArg>().name == name) variables.push_back(bound_value(v));
    library.run(fmt::format("k{}", c.first + k), named, signature, variables);
  }
  EXPECT_EQ(difference(c.expected, array_of(c.program.arguments[0])), "")
      << "as text of " << language_ << ", " << c.what << ", of\n"
      << to_text(c.value);
}

void CText::check() {
  if (functions_ == 0) return;
  const std::unique_ptr<TextLibrary> library =
      load_ ? load_(source_) : text_library(language_, source_, optimise_);
  for (const Case& c : cases_) run(c, *library);
  cases_.clear();
  source_.clear();
  functions_ = 0;
}

std::unique_ptr<TextLibrary> text_library(std::string_view language, const std::string& source,
                                          int optimise) {
  if (language == "cuda" && cuda_missing().empty()) return std::make_unique<CudaLibrary>(source);
  return std::make_unique<CLibrary>(source, optimise, language);
}

std::array<uint32_t, 3> counts_of(const std::array<UOp, 3>& axes) {
  std::array<uint32_t, 3> out{1, 1, 1};
  for (size_t axis = 0; axis < 3; ++axis)
    if (axes[axis]) out[axis] = static_cast<uint32_t>(const_int(axes[axis]));
  return out;
}

void CLibrary::run(const std::string& name, const std::vector<Given>& parameters,
                   const Signature& signature, const std::vector<int64_t>& variables) const {
  std::vector<void*> buffers;
  for (const Given& p : parameters) buffers.push_back(p.data);
  if (language_ == "c")
    for (int64_t thread = 0; thread < signature.threads; ++thread)
      function(name)(buffers.data(), variables.data(), thread);
  else
    launch("run_" + name)(buffers.data(), variables.data(), counts_of(signature.grid).data(),
                          counts_of(signature.group).data());
}

CLibrary::CLibrary(const std::string& source, int optimise, std::string_view language)
    : language_(language) {
  static int libraries = 0;
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("koine_c_{}_{}", getpid(), libraries++);
  std::filesystem::create_directories(folder);
  const bool c = language == "c";
  std::ofstream(folder / (c ? "kernels.c" : "kernels.cpp"))
      << (language == "cuda" ? "#include \"cuda.hpp\"\n" : "") << source;
  const std::string command = fmt::format(
      "{2} -O{1} -w -ffp-contract=off -shared -fPIC -I{3} -o {0}/kernels.so {0}/kernels.{4}",
      folder.string(), optimise, c ? "cc -std=gnu11" : "c++ -std=gnu++20", KOINE_TEST_SHIMS,
      c ? "c" : "cpp");
  if (std::system(command.c_str()) != 0)
    throw std::runtime_error("the compiler refuses:\n" + source);
  library_ = dlopen((folder / "kernels.so").c_str(), RTLD_NOW);
  if (library_ == nullptr) throw std::runtime_error(dlerror());
  std::filesystem::remove_all(folder);
  ran_on(language);
}

CLibrary::~CLibrary() {
  if (library_ != nullptr) dlclose(library_);
}

void* CLibrary::find(const std::string& name) const {
  void* found = dlsym(library_, name.c_str());
  if (found == nullptr) throw std::runtime_error(dlerror());
  return found;
}

CLibrary::Function CLibrary::function(const std::string& name) const {
  return reinterpret_cast<Function>(find(name));
}

CLibrary::Launch CLibrary::launch(const std::string& name) const {
  return reinterpret_cast<Launch>(find(name));
}

}  // namespace koine::test

#include "c_text.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/render/dialect.hpp"

namespace koine::test {

void CText::add(const UOp& value) {
  const Bindings bindings = bindings_of(value);
  for (const bool strict : {true, false}) {
    if (!strict && !has_liberties(value)) continue;
    Options mode = options();
    mode.strict = strict;
    const OptionScope scope(mode);
    BoundedArray expected =
        strict ? BoundedArray{interpret(value, bindings), {}} : interpret_bounded(value, bindings);
    Array& exact = expected.value;
    for (size_t i = 0; i < exact.valid.size(); ++i)
      if (exact.valid[i] == 0) exact.data[i] = 0;  // as in fresh memory
    exact.valid.clear();
    add(value, std::move(expected));
  }
}

void CText::add(const UOp& value, BoundedArray expected, const std::optional<KernelEdits>& edits) {
  if (value.numel() == 0) return;
  Target target = language_ == "c" ? generic_target(options().strict)
                                   : target_of(dialect_named(language_), options().strict);
  target.has_fma = true;
  Case c{value, std::move(expected), {}, {}, functions_, {}};
  const UOp root =
      value.is(Op::Buffer) ? UOp::make(Op::Contiguous, {value}, MarkArg{Mark::Copies}) : value;
  c.program = callify({root}, {buffer_from_host(value.shape(), value.dtype(), "CPU", nullptr)});
  c.kernels = kernels_of(rangeify(c.program.body));
  for (const Kernel& k : c.kernels) {
    if (k.ast.is(Op::CustomFunction)) {  // a copy of whole memory: no kernel
      c.signatures.emplace_back();
      ++functions_;
      continue;
    }
    const bool edited = edits && edits->kernel == c.signatures.size();
    const UOp linear = lower_kernel(k.ast, target, {}, edited ? &edits->opts : nullptr).linear;
    const std::string name = fmt::format("k{}", functions_);
    source_ += render(language_, name, linear, source_.empty()) + "\n";
    if (language_ != "c") source_ += fmt::format("KOINE_RUN({})\n", name);
    c.signatures.push_back(signature_of(linear));
    ++functions_;
  }
  cases_.push_back(std::move(c));
}

void CText::run(const Case& c, const CLibrary& library) const {
  std::map<int64_t, std::vector<std::byte>> temporaries;
  for (size_t k = 0; k < c.kernels.size(); ++k) {
    std::vector<void*> buffers;
    for (const UOp& b : c.kernels[k].buffers) {
      const int64_t slot = b.as<BufferArg>().slot;
      if (b.is(Op::Param)) {
        buffers.push_back(memory_of(c.program.arguments[static_cast<size_t>(slot)])->data());
      } else {
        auto& t = temporaries[slot];
        t.resize(static_cast<size_t>(b.numel() * item_size(b.dtype())) + 8);
        buffers.push_back(t.data());
      }
    }
    if (c.kernels[k].ast.is(Op::CustomFunction)) {
      const UOp& b = c.kernels[k].buffers[0];
      std::memcpy(buffers[0], buffers[1], static_cast<size_t>(b.numel() * item_size(b.dtype())));
      continue;
    }
    const std::string name = fmt::format("k{}", c.first + k);
    const Signature& signature = c.signatures[k];
    if (language_ == "c") {
      for (int64_t thread = 0; thread < signature.threads; ++thread)
        library.function(name)(buffers.data(), nullptr, thread);
      continue;
    }
    std::vector<void*> named;
    for (const int64_t slot : signature.slots) named.push_back(buffers[static_cast<size_t>(slot)]);
    std::array<uint32_t, 3> grid{1, 1, 1}, group{1, 1, 1};
    for (size_t axis = 0; axis < 3; ++axis) {
      if (const UOp& n = signature.grid[axis]) grid[axis] = static_cast<uint32_t>(const_int(n));
      if (const UOp& n = signature.group[axis]) group[axis] = static_cast<uint32_t>(const_int(n));
    }
    library.launch("run_" + name)(named.data(), nullptr, grid.data(), group.data());
  }
  EXPECT_EQ(difference(c.expected, array_of(c.program.arguments[0])), "")
      << "as text of " << language_ << ", of\n"
      << to_text(c.value);
}

void CText::check(int optimise) {
  if (functions_ == 0) return;
  const CLibrary library(source_, optimise, language_);
  for (const Case& c : cases_) run(c, library);
  cases_.clear();
  source_.clear();
  functions_ = 0;
}

CLibrary::CLibrary(const std::string& source, int optimise, std::string_view language) {
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

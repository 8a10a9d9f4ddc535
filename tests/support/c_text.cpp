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
  Target target = generic_target(options().strict);
  target.has_fma = true;
  Case c{value, std::move(expected), {}, {}, functions_, {}};
  const UOp root =
      value.is(Op::Buffer) ? UOp::make(Op::Contiguous, {value}, MarkArg{Mark::Copies}) : value;
  c.program = callify({root}, {buffer_from_host(value.shape(), value.dtype(), "CPU", nullptr)});
  c.kernels = kernels_of(rangeify(c.program.body));
  for (const Kernel& k : c.kernels) {
    if (k.ast.is(Op::CustomFunction)) {  // a copy of whole memory: no kernel
      c.threads.push_back(0);
      ++functions_;
      continue;
    }
    const bool edited = edits && edits->kernel == c.threads.size();
    const UOp linear = lower_kernel(k.ast, target, {}, edited ? &edits->opts : nullptr).linear;
    source_ += render("c", fmt::format("k{}", functions_), linear, source_.empty()) + "\n";
    c.threads.push_back(signature_of(linear).threads);
    ++functions_;
  }
  cases_.push_back(std::move(c));
}

void CText::run(const Case& c, const CLibrary& library) {
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
    const CLibrary::Function function = library.function(fmt::format("k{}", c.first + k));
    for (int64_t thread = 0; thread < c.threads[k]; ++thread)
      function(buffers.data(), nullptr, thread);
  }
  EXPECT_EQ(difference(c.expected, array_of(c.program.arguments[0])), "") << "as C text, of\n"
                                                                          << to_text(c.value);
}

void CText::check(int optimise) {
  if (functions_ == 0) return;
  const CLibrary library(source_, optimise);
  for (const Case& c : cases_) run(c, library);
  cases_.clear();
  source_.clear();
  functions_ = 0;
}

CLibrary::CLibrary(const std::string& source, int optimise) {
  static int libraries = 0;
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("koine_c_{}_{}", getpid(), libraries++);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "kernels.c") << source;
  const std::string command = fmt::format(
      "cc -std=gnu11 -O{1} -w -ffp-contract=off -shared -fPIC -o {0}/kernels.so {0}/kernels.c",
      folder.string(), optimise);
  if (std::system(command.c_str()) != 0)
    throw std::runtime_error("the C compiler refuses:\n" + source);
  library_ = dlopen((folder / "kernels.so").c_str(), RTLD_NOW);
  if (library_ == nullptr) throw std::runtime_error(dlerror());
  std::filesystem::remove_all(folder);
}

CLibrary::~CLibrary() {
  if (library_ != nullptr) dlclose(library_);
}

CLibrary::Function CLibrary::function(const std::string& name) const {
  auto* found = reinterpret_cast<Function>(dlsym(library_, name.c_str()));
  if (found == nullptr) throw std::runtime_error(dlerror());
  return found;
}

}  // namespace koine::test

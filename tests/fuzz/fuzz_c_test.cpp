// A second opinion: kernels as C text, compiled by the system's compiler, against the interpreter.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "check.hpp"
#include "graphs.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/render/c.hpp"

namespace koine::test {
namespace {

struct Case {
  UOp graph;
  Callified program;
  std::vector<Kernel> kernels;
  size_t first = 0;  // number of its first function
};

}  // namespace

TEST(fuzz, c_text_agrees_with_the_interpreter) {
  const OptionScope scope(strict_options());
  const int64_t cases = test_cases(4000);
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("koine_c_{}", getpid());
  std::filesystem::create_directories(folder);
  std::ofstream source(folder / "kernels.c");
  std::vector<Case> all;
  size_t functions = 0;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937_64 random(test_seed() + 77 + static_cast<uint64_t>(i));
    Case c{random_graph(random), {}, {}, functions};
    if (c.graph.numel() == 0) continue;
    c.program =
        callify({c.graph}, {buffer_from_host(c.graph.shape(), c.graph.dtype(), "CPU", nullptr)});
    c.kernels = rangeify(c.program.body);
    for (const Kernel& k : c.kernels) {
      source << render_c(lower_kernel(k.ast, generic_target(true)).linear,
                         fmt::format("k{}", functions), functions == 0)
             << "\n";
      ++functions;
    }
    all.push_back(std::move(c));
  }
  source.close();
  const std::string command = fmt::format(
      "cc -std=gnu11 -O1 -w -ffp-contract=off -shared -fPIC -o {0}/kernels.so {0}/kernels.c",
      folder.string());
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  void* library = dlopen((folder / "kernels.so").c_str(), RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  for (const Case& c : all) {
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
      auto* function = reinterpret_cast<void (*)(void**, const int64_t*, int64_t)>(
          dlsym(library, fmt::format("k{}", c.first + k).c_str()));
      function(buffers.data(), nullptr, 0);
    }
    Array expected = interpret(c.graph, bindings_of(c.graph));
    for (size_t i = 0; i < expected.valid.size(); ++i)
      if (expected.valid[i] == 0) expected.data[i] = 0;
    expected.valid.clear();
    EXPECT_EQ(difference(expected, array_of(c.program.arguments[0])), "") << to_text(c.graph);
  }
  dlclose(library);
  std::filesystem::remove_all(folder);
}

}  // namespace koine::test

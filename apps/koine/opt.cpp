#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "commands.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/op_table.hpp"
#include "koine/ir/text.hpp"
#include "koine/koine.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/render/c.hpp"
#include "koine/render/llvm.hpp"

namespace koine::app {
namespace {

UOp read_graph(const std::string& path) {
  std::ifstream in(path);
  KOINE_REQUIRE(in, File, "{}: cannot be opened", path);
  std::stringstream text;
  text << in.rdbuf();
  return parse(text.str());
}

// A file holds a tensor value, or the Sink of a kernel.
std::vector<Kernel> kernels_of(const UOp& graph) {
  bool is_kernel = graph.is(Op::Sink);
  if (is_kernel) return {{graph, {}, "given"}};
  return schedule({graph});
}

}  // namespace

int run_opt(const OptOptions& o) {
  const auto& stages = stage_names();
  KOINE_REQUIRE(std::find(stages.begin(), stages.end(), o.until) != stages.end(), Value,
                "--until={}: the stages are {}", o.until, fmt::join(stages, ", "));
  const UOp graph = read_graph(o.file);
  if (o.until == "callify") {
    fmt::print("{}", to_text(callify({graph}, {new_buffer(graph.shape(), graph.dtype(),
                                                          Device(default_device()))})
                                 .body));
    return 0;
  }
  const std::vector<Kernel> kernels = kernels_of(graph);
  const Target& target = device_runtime(default_device()).target();
  for (size_t i = 0; i < kernels.size(); ++i) {
    fmt::print("; kernel {}: {}\n", i, kernels[i].reason);
    const LoweredKernel lowered =
        lower_kernel(kernels[i].ast, target, [&](std::string_view stage, const UOp& after) {
          if (stage == o.until) fmt::print("{}", to_text(after));
        });
    if (o.until == "plan" || o.until == "render")
      fmt::print("{}", render_c(lowered.linear, lowered.name, false));
  }
  return 0;
}

int run_render(const OptOptions& o) {
  KOINE_REQUIRE(o.target == "c" || o.target == "llvm", Value, "--target={}: expected c or llvm",
                o.target);
  const std::vector<Kernel> kernels = kernels_of(read_graph(o.file));
  const Target& target = device_runtime(default_device()).target();
  for (size_t i = 0; i < kernels.size(); ++i) {
    const LoweredKernel k = lower_kernel(kernels[i].ast, target);
    fmt::print("{}", o.target == "c" ? render_c(k.linear, k.name, i == 0)
                                     : render_llvm_text(k.linear, k.name, target));
  }
  return 0;
}

int run_ops() {
  fmt::print("{}", op_table_json());
  return 0;
}

int run_devices() {
  for (const auto& [name, meaning] : device_list()) {
    const Target& t = device_runtime(name).target();
    fmt::print("{:8} {}; target {}, {}-bit vectors{}\n", name, meaning, t.name, t.vector_bytes * 8,
               t.has_fma ? ", fma" : "");
  }
  return 0;
}

}  // namespace koine::app

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "commands.hpp"
#include "koine/ir/op_table.hpp"
#include "koine/koine.hpp"
#include "text.hpp"
#include "view.hpp"

namespace koine::app {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  KOINE_REQUIRE(in, File, "{}: cannot be opened", path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

int run_opt(const OptOptions& o) {
  fmt::print("{}", text_after(read_file(o.file), o.until, o.style));
  return 0;
}

int run_render(const OptOptions& o) {
  fmt::print("{}", sources_of(read_file(o.file), o.target));
  return 0;
}

int run_compile(const CompileOptions& o) {
  save_compiled(read_file(o.file), o.out);
  fmt::print("wrote {}\n", o.out);
  return 0;
}

int run_program(const RunOptions& o) {
  SavedProgram program(o.file);
  std::map<std::string, Tensor> inputs;
  if (!o.in.empty()) inputs = safe_load(o.in);
  const std::map<std::string, Tensor> outputs = program(inputs);
  if (!o.out.empty()) safe_save(outputs, o.out);
  for (const auto& [name, value] : outputs)
    if (o.out.empty()) fmt::print("{} = {}\n", name, value.repr());
  return 0;
}

int run_view(const OptOptions& o) {
  const std::string form = std::filesystem::path(o.output).extension().string();
  KOINE_REQUIRE(form == ".dot" || form == ".svg" || form == ".html", Value,
                "-o {}: expected a name that ends with .dot, .svg or .html", o.output);
  const std::string dot = dot_text(last_graph(read_file(o.file)));
  const std::string text = form == ".dot" ? dot : picture_of(dot, form.substr(1));
  std::ofstream out(o.output);
  out << text << std::flush;
  KOINE_REQUIRE(out, File, "{}: cannot be written", o.output);
  return 0;
}

int run_ops() {
  fmt::print("{}", op_table_json());
  return 0;
}

int run_devices() {
  for (const auto& [name, meaning] : device_list()) try {
      const Target& t = device_runtime(name).target();
      fmt::print("{:8} {}; target {}, {}-bit vectors{}\n", name, meaning, t.name,
                 t.vector_bytes * 8, t.has_fma ? ", fma" : "");
    } catch (const Error& e) {  // what it needs is not installed
      fmt::print("{:8} {}; not here: {}\n", name, meaning, e.what());
    }
  return 0;
}

}  // namespace koine::app

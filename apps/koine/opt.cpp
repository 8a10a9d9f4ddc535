#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "commands.hpp"
#include "koine/ir/op_table.hpp"
#include "koine/koine.hpp"
#include "text.hpp"

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
  fmt::print("{}", text_after(read_file(o.file), o.until));
  return 0;
}

int run_render(const OptOptions& o) {
  fmt::print("{}", sources_of(read_file(o.file), o.target));
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

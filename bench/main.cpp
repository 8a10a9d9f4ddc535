#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "bench.hpp"
#include "koine/base/error.hpp"

namespace {

using namespace koine::bench;

struct Part {
  std::string_view name;
  void (*run)(Rows& rows, const Limits& limits, const char* program);
};
constexpr Part parts[] = {
    {"limits", [](Rows&, const Limits&, const char*) {}},  // printed in any case
    {"compile",
     [](Rows& rows, const Limits&, const char* program) { bench_compile(rows, program); }},
    {"launches", [](Rows& rows, const Limits&, const char*) { bench_launches(rows); }},
    {"kernels", [](Rows& rows, const Limits& limits, const char*) { bench_kernels(rows, limits); }},
    {"opencl", [](Rows& rows, const Limits& limits, const char*) { bench_opencl(rows, limits); }},
    {"widths", [](Rows& rows, const Limits&, const char*) { bench_widths(rows); }},
};

int usage(const char* program) {
  fmt::print(stderr, "usage: {} [--json FILE] [--only PART], where PART is", program);
  for (const Part& part : parts) fmt::print(stderr, " {}", part.name);
  fmt::print(stderr, "\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json_path, only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--first-operation") == 0) return run_first_operation();
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json_path = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else {
      return usage(argv[0]);
    }
  }
  // Where there is no OpenCL its part is asked for by name alone.
  const auto wanted = [&](const Part& part) {
    return only.empty() ? part.name != "opencl" : only == part.name;
  };
  if (std::none_of(std::begin(parts), std::end(parts), wanted)) return usage(argv[0]);
  try {
    Rows rows;
    const Limits limits = measure_limits();
    fmt::print(
        "limits of this run: FMA {:.0f} GFLOP/s on one thread, read {:.1f} GB/s, copy {:.1f} GB/s "
        "and FMA {:.0f} GFLOP/s on all\n\n",
        limits.fma_one_thread * 1e-9, limits.read_bandwidth * 1e-9, limits.copy_bandwidth * 1e-9,
        limits.fma_all_threads * 1e-9);
    for (const Part& part : parts)
      if (wanted(part)) part.run(rows, limits, argv[0]);
    if (!rows.empty())
      fmt::print("{:32} {:>10} {:8} {:>10} {:9} {:>7} {:>7}\n", "benchmark", "value", "unit",
                 "limit", "which", "ratio", "wanted");
    nlohmann::json json = nlohmann::json::array();
    for (const Row& r : rows) {
      fmt::print("{:32} {:10.3f} {:8} {:10.3f} {:9} {:7.2f} {:7.2f}{}\n", r.name, r.value, r.unit,
                 r.limit, r.limit_name, r.ratio(), r.wanted, r.reached() ? "" : "  below");
      json.push_back({{"name", r.name},
                      {"value", r.value},
                      {"unit", r.unit},
                      {"limit", r.limit},
                      {"ratio", r.ratio()},
                      {"wanted", r.wanted}});
    }
    if (!json_path.empty()) std::ofstream(json_path) << json.dump(2) << "\n";
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
  return 0;
}

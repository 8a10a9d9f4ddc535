#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "bench.hpp"
#include "koine/base/error.hpp"

int main(int argc, char** argv) {
  using namespace koine::bench;
  std::string json_path, only;
  constexpr std::string_view parts[] = {"compile", "launches", "kernels", "widths"};
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--first-operation") == 0) return run_first_operation();
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json_path = argv[++i];
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc &&
               std::find(std::begin(parts), std::end(parts), argv[i + 1]) != std::end(parts)) {
      only = argv[++i];
    } else {
      fmt::print(stderr, "usage: {} [--json FILE] [--only {}]\n", argv[0], fmt::join(parts, "|"));
      return 2;
    }
  }
  try {
    Rows rows;
    const Limits limits = measure_limits();
    fmt::print(
        "limits of this run: FMA {:.0f} GFLOP/s on one thread, read {:.1f} GB/s, copy {:.1f} GB/s "
        "on all\n\n",
        limits.fma_one_thread * 1e-9, limits.read_bandwidth * 1e-9, limits.copy_bandwidth * 1e-9);
    const auto wanted = [&](const char* name) { return only.empty() || only == name; };
    if (wanted("compile")) bench_compile(rows, argv[0]);
    if (wanted("launches")) bench_launches(rows);
    if (wanted("kernels")) bench_kernels(rows, limits);
    if (wanted("widths")) bench_widths(rows);
    fmt::print("{:32} {:>10} {:8} {:>10} {:9} {:>7} {:>7}\n", "benchmark", "value", "unit", "limit",
               "which", "ratio", "wanted");
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

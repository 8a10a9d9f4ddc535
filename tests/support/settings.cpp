#include "settings.hpp"

#include <fmt/format.h>

#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine::test {
namespace {

// The levels that this machine runs.
std::vector<std::string> levels() {
  std::vector<std::string> out{""};
#ifdef __x86_64__
  out.emplace_back("x86-64-v2");
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    out.emplace_back("x86-64-v3");
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
    out.emplace_back("x86-64-v4");
#endif
  return out;
}

}  // namespace

Settings draw_settings(std::mt19937_64& random, const std::string& device, bool strict) {
  static const std::vector<std::string> known = levels();
  Settings s;
  // What is interpreted is now and then shaped for a GPU.
  s.device = device == "INTERP" && random() % 4 == 0 ? "SIMT" : device;
  s.strict = strict;
  s.cpu = options().cpu.empty() ? known[random() % known.size()] : options().cpu;
  s.noopt = random() % 4 == 0;
  const int threads[] = {1, 2, 8};
  s.threads = threads[random() % 3];
  s.warm = random() % 4 == 0;
  s.verify = random() % 4 == 0 ? 2 : 1;
  s.atomic = random() % 4 == 0;
  return s;
}

std::mt19937_64 settings_random(const UOp& value) {
  Substitution numbered;
  for (const UOp& u : toposort(value))
    if (u.is(Op::Buffer))
      numbered.emplace(u, param(static_cast<int64_t>(numbered.size()), u.shape(), u.dtype()));
  return std::mt19937_64(test_seed() ^ substitute(value, numbered).hash());
}

Options options_of(const Settings& settings) {
  Options o = options();
  o.device = settings.device;
  o.strict = settings.strict;
  o.cpu = settings.cpu;
  o.noopt = settings.noopt;
  o.threads = settings.threads;
  o.atomic_scatter = settings.atomic;
  o.verify = std::max(settings.verify, options().verify);
  return o;
}

std::string text_of(const Settings& s) {
  return fmt::format(
      "KOINE_DEVICE={} KOINE_FP={} KOINE_CPU={} KOINE_NOOPT={} KOINE_THREADS={} "
      "KOINE_VERIFY={} KOINE_SCATTER={}, {} caches",
      s.device, s.strict ? "strict" : "default", s.cpu.empty() ? "''" : s.cpu, s.noopt ? 1 : 0,
      s.threads, s.verify, s.atomic ? "atomic" : "ordered", s.warm ? "warm" : "cold");
}

}  // namespace koine::test

#pragma once
#include <random>
#include <string>

#include "koine/base/options.hpp"
#include "koine/ir/uop.hpp"

namespace koine::test {

/// Under what a value is computed.
struct Settings {
  std::string device = "CPU";
  bool strict = true;
  std::string cpu;  ///< feature level; empty: the host's
  bool noopt = false;
  int threads = 1;
  bool warm = false;  ///< once more from the caches, after the first time filled them
  int verify = 1;
  bool atomic = false;  ///< sums by index in any order
};

/// Level, optimiser, threads and caches at random. A KOINE_CPU of the environment stays.
Settings draw_settings(std::mt19937_64& random, const std::string& device, bool strict);
/// Random numbers that depend on test_seed() and on what the graph says, not on when it is asked.
std::mt19937_64 settings_random(const UOp& value);

/// The process's options with these.
Options options_of(const Settings& settings);
/// As environment variables: "KOINE_DEVICE=CPU KOINE_FP=strict ...".
std::string text_of(const Settings& settings);

}  // namespace koine::test

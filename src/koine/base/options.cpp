#include "koine/base/options.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "koine/base/compile_options.hpp"
#include "koine/base/error.hpp"

namespace koine {
namespace {

int64_t parse_int(const char* name, std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  KOINE_REQUIRE(
      code == std::errc() && end == text.data() + text.size() && value >= low && value <= high,
      Value, "{}={}: expected an integer from {} to {}", name, text, low, high);
  return value;
}

void read(const char* name, auto apply) {
  if (const char* text = std::getenv(name); text != nullptr && *text != 0) apply(text);
}

// A misspelt switch would change nothing in silence. Those of tests and scripts are not of the
// table.
void refuse_unknown_variables() {
  constexpr std::string_view prefix = "KOINE_";
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view name = *entry;
    name = name.substr(0, name.find('='));
    if (!name.starts_with(prefix)) continue;
    bool known =
        name.starts_with("KOINE_TEST_") || name == "KOINE_BUILD" || name == "KOINE_STRESS_SECONDS";
    std::string all;
    for (const OptionRow& row : option_table()) {
      known = known || name == row.name;
      all += (all.empty() ? "" : ", ") + std::string(row.name);
    }
    KOINE_REQUIRE(known, Value, "the environment has {}, which Koine does not know: it knows {}",
                  name, all);
  }
}

Options from_environment() {
  refuse_unknown_variables();
  Options o;
  auto number = [](const char* name, auto& field, int64_t low, int64_t high) {
    read(name, [&](const char* text) {
      field =
          static_cast<std::remove_reference_t<decltype(field)>>(parse_int(name, text, low, high));
    });
  };
  number("KOINE_DEBUG", o.debug, 0, 7);
  number("KOINE_VERIFY", o.verify, 0, 3);
  number("KOINE_NOOPT", o.noopt, 0, 1);
  number("KOINE_THREADS", o.threads, 0, 1024);
  number("KOINE_POISON", o.poison, 0, 1);
  number("KOINE_NAN", o.nan, 0, 1);
  number("KOINE_MEMORY_LIMIT", o.memory_limit, 0, INT64_MAX);
  read("KOINE_FP", [&](std::string_view text) {
    KOINE_REQUIRE(text == "strict" || text == "default", Value,
                  "KOINE_FP={}: expected 'strict' or 'default'", text);
    o.strict = text == "strict";
  });
  read("KOINE_SCATTER", [&](std::string_view text) {
    KOINE_REQUIRE(text == "ordered" || text == "atomic", Value,
                  "KOINE_SCATTER={}: expected 'ordered' or 'atomic'", text);
    o.atomic_scatter = text == "atomic";
  });
  read("KOINE_INDEX", [&](std::string_view text) {
    KOINE_REQUIRE(text == "raise" || text == "clamp" || text == "fill", Value,
                  "KOINE_INDEX={}: expected 'raise', 'clamp' or 'fill'", text);
    o.index = text == "raise"   ? IndexMode::Raise
              : text == "clamp" ? IndexMode::Clamp
                                : IndexMode::Fill;
  });
  read("KOINE_CPU", [&](const char* text) { o.cpu = text; });
  read("KOINE_DEVICE", [&](const char* text) { o.device = text; });
  read("KOINE_DUMP", [&](const char* text) {
    const auto& stages = stage_names();
    KOINE_REQUIRE(std::find(stages.begin(), stages.end(), text) != stages.end(), Value,
                  "KOINE_DUMP={}: the stages are {}", text, fmt::join(stages, ", "));
    o.dump = text;
  });
  return o;
}

Options& mutable_options() {
  static auto& instance = *new Options(from_environment());
  return instance;
}

}  // namespace

const std::vector<std::string_view>& stage_names() {
  static const auto& names = *new const std::vector<std::string_view>{
      "callify",  "decide", "bufferize", "index",     "split", "rangeify",
      "optimize", "expand", "select",    "linearize", "plan",  "render"};
  return names;
}

const Options& options() { return mutable_options(); }

CompileOptions compile_options() {
  const Options& o = options();
  return {o.strict, o.noopt, o.verify, o.cpu, o.atomic_scatter};
}

const std::vector<OptionRow>& option_table() {
  static const auto& rows = *new const std::vector<OptionRow>{
      {"KOINE_DEBUG", "0..7",
       "1 kernels as they run, 2 schedule, 3 kernel trees, 4 applied "
       "optimisations, 5 source text, 6 linear programs, 7 stage times"},
      {"KOINE_VERIFY", "0..3",
       "0 off, 1 both ends of the pipeline, 2 after every stage, 3 runs what every stage made"},
      {"KOINE_NOOPT", "0|1", "1 keeps every kernel as plain loops"},
      {"KOINE_FP", "default|strict", "strict: equal bits on every backend"},
      {"KOINE_INDEX", "raise|clamp|fill", "what a tensor index out of range does"},
      {"KOINE_SCATTER", "ordered|atomic",
       "atomic: threads add by index at once, in any order; sums of floats differ from run to run"},
      {"KOINE_THREADS", "0..1024", "worker threads; 0 means all cores"},
      {"KOINE_CPU", "x86-64-v2|x86-64-v3|x86-64-v4", "instruction set; unset means this host's"},
      {"KOINE_DEVICE", "a device name", "default device; unset means CPU"},
      {"KOINE_DUMP", "a stage name", "prints every program or kernel after that stage"},
      {"KOINE_POISON", "0|1", "1 fills fresh and freed buffers with a pattern"},
      {"KOINE_NAN", "0|1", "1 makes what is not finite an Error that says where it was made"},
      {"KOINE_MEMORY_LIMIT", "bytes", "most bytes a device may hold; 0 means the machine's memory"},
  };
  return rows;
}

OptionScope::OptionScope(const Options& replacement) : saved_(options()) {
  mutable_options() = replacement;
}
OptionScope::~OptionScope() { mutable_options() = saved_; }

}  // namespace koine

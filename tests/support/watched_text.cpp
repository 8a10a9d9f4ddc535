#include "watched_text.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "backends.hpp"
#include "c_text.hpp"

namespace koine::test {

namespace {

std::string contents(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::filesystem::path new_folder() {
  static int folders = 0;
  auto out = std::filesystem::temp_directory_path() /
             fmt::format("koine_races_{}_{}", getpid(), folders++);
  std::filesystem::create_directories(out);
  return out;
}

struct Ended {
  int status;
  std::string words;  // what it wrote to the error output
};
Ended run_in(const std::filesystem::path& folder, const std::string& command) {
  const int status =
      std::system(fmt::format("cd {} && {} 2>words", folder.string(), command).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(folder / "words")};
}

const char* const compiler =
    "c++ -std=gnu++20 -fsanitize=thread -g1 -O1 -w -ffp-contract=off -rdynamic "
    "-DKOINE_SHIM_THREADS -I " KOINE_TEST_SHIMS " -o program";
// The status of a program with a race; nothing of the environment, or of another sanitizer that
// the tests run with, matters to it.
constexpr int race = 66;
const char* const settings = "TSAN_OPTIONS=exitcode=66 LD_PRELOAD=";

}  // namespace

const std::string& WatchedText::missing() {
  static const std::string words = [] {
    const auto folder = new_folder();
    std::ofstream(folder / "race.cpp") << "#include <thread>\nint x;\nint main() {\n  std::thread "
                                          "a([] { ++x; }), b([] { ++x; });\n"
                                          "  a.join();\n  b.join();\n}\n";
    std::string out;
    if (const Ended compiled = run_in(folder, fmt::format("{} race.cpp", compiler));
        compiled.status != 0)
      out = "the compiler has no ThreadSanitizer: " + compiled.words;
    else if (const Ended ran = run_in(folder, fmt::format("{} ./program", settings));
             ran.status != race)
      out = fmt::format("ThreadSanitizer does not run here ({}): {}", ran.status, ran.words);
    std::filesystem::remove_all(folder);
    return out;
  }();
  return words;
}

WatchedText::WatchedText(std::string language, const std::string& source)
    : language_(std::move(language)), folder_(new_folder()) {
  std::ofstream(folder_ / "kernels.cpp")
      << (language_ == "cuda" ? "#include \"cuda.hpp\"\n" : "") << source;
  const Ended compiled = run_in(
      folder_, fmt::format("{} kernels.cpp {}/program.cpp -ldl", compiler, KOINE_TEST_SHIMS));
  if (compiled.status != 0)
    throw std::runtime_error("the compiler refuses:\n" + source + compiled.words);
}

WatchedText::~WatchedText() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string WatchedText::run(const std::string& name, std::vector<Bytes>& parameters,
                             const Signature& signature) const {
  std::string files;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string file = fmt::format("memory{}", i);
    std::ofstream(folder_ / file, std::ios::binary)
        .write(reinterpret_cast<const char*>(parameters[i].data()),
               static_cast<std::streamsize>(parameters[i].size()));
    files += " " + file;
  }
  const Ended ended =
      run_in(folder_, fmt::format("{} ./program run_{} {} {}{}", settings, name,
                                  fmt::join(counts_of(signature.grid), " "),
                                  fmt::join(counts_of(signature.group), " "), files));
  if (ended.status != 0) return fmt::format("status {}\n{}", ended.status, ended.words);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string bytes = contents(folder_ / fmt::format("memory{}", i));
    const auto* first = reinterpret_cast<const std::byte*>(bytes.data());
    parameters[i].assign(first, first + bytes.size());
  }
  ran_on(language_);
  return "";
}

}  // namespace koine::test

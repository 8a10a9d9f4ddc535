#include "digits.hpp"

#include <charconv>
#include <filesystem>
#include <fstream>

#include "koine/base/error.hpp"

namespace koine::app {

std::string find_digits() {
  namespace fs = std::filesystem;
  std::error_code code;
  const fs::path folder = fs::read_symlink("/proc/self/exe", code).parent_path();
  const fs::path installed = (folder / KOINE_DATA_FROM_BIN / "digits.csv").lexically_normal();
  for (const fs::path& path : {installed, fs::path("data/digits.csv")})
    if (fs::exists(path, code)) return path.string();
  raise(ErrorKind::File,
        "digits.csv is neither {} nor data/digits.csv: pass --data with the path of it",
        installed.string());
}

Digits read_digits(const std::string& path) {
  std::ifstream in(path);
  KOINE_REQUIRE(in, File, "{}: cannot be opened; pass --data with the path of digits.csv", path);
  Digits out;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const char *at = line.data(), *end = line.data() + line.size();
    for (int column = 0; column < 65; ++column) {
      int value = 0;
      const auto [next, code] = std::from_chars(at, end, value);
      KOINE_REQUIRE(code == std::errc() && value >= 0 && value <= 16, File,
                    "{}, line {}: column {} is not a number from 0 to 16", path, number,
                    column + 1);
      if (column < 64)
        out.images.push_back(static_cast<float>(value) / 16.0f);
      else
        out.labels.push_back(value);
      at = next + 1;
    }
  }
  KOINE_REQUIRE(out.count() > 0, File, "{}: no digits in it", path);
  return out;
}

}  // namespace koine::app

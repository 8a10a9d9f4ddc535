#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace koine::app {

/// 8x8 grey images (0..16, row by row) and their labels.
struct Digits {
  std::vector<float> images;
  std::vector<int32_t> labels;
  int64_t count() const { return static_cast<int64_t>(labels.size()); }
};

/// Where digits.csv is: beside the installed executable, else data/digits.csv of the folder that
/// the command runs in. Throws Error (File) naming both.
std::string find_digits();

/// Reads digits.csv. Throws Error (File) naming the line that is malformed.
Digits read_digits(const std::string& path);

}  // namespace koine::app

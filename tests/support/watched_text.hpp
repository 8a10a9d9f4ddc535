#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "koine/ir/linear.hpp"

namespace koine::test {

/// Text of a language with groups as a program of its own, in which each thread of a group is one
/// of the host and ThreadSanitizer watches what they do to memory (support/shim/threads.hpp).
class WatchedText {
 public:
  using Bytes = std::vector<std::byte>;

  /// Why there are none: what the compiler, or a program with two threads in a race, said. Empty
  /// where a compiler has ThreadSanitizer.
  static const std::string& missing();
  /// Throws std::runtime_error where the compiler refuses the text.
  WatchedText(std::string language, const std::string& source);
  WatchedText(const WatchedText&) = delete;
  WatchedText& operator=(const WatchedText&) = delete;
  ~WatchedText();
  /// Runs a kernel on its parameters, in order, which hold what it stored then. Gives the report of
  /// the races, or of another end that was none; empty: it ran to its end without one.
  std::string run(const std::string& name, std::vector<Bytes>& parameters,
                  const Signature& signature) const;

 private:
  std::string language_;
  std::filesystem::path folder_;
};

}  // namespace koine::test

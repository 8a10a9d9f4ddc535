#pragma once
#include <string>

namespace koine {

/// The options that change what is compiled, and how it is checked. Taken once, where a program
/// begins to be compiled, and handed to each pass: what another thread sets meanwhile holds for the
/// next program.
struct CompileOptions {
  bool strict = false;
  bool noopt = false;
  int verify = 1;
  std::string cpu;
};

/// Those of `options()`, now.
CompileOptions compile_options();

}  // namespace koine

#pragma once
#include <string>

#include "koine/ir/uop.hpp"

namespace koine::test {

/// C++ statements that build a graph with the builders of ir/build.hpp, one a node; the last one
/// defines `root`. A Buffer is a name, `bSLOT`, which the code around it defines.
std::string to_cpp(const UOp& root);

}  // namespace koine::test

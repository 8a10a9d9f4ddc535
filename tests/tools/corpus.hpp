#pragma once
#include <string>
#include <vector>

namespace koine::test {

/// Texts of values that use the ops, dtypes and forms of programs, equal in every run.
std::vector<std::string> value_texts();
/// Those texts and the output of every stage of the compiler for them.
std::vector<std::string> stage_texts();

}  // namespace koine::test

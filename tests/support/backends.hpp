#pragma once
#include <string_view>

namespace koine::test {

/// Notes in the results of the running test (the property "backends" of `--gtest_output`) that it
/// has run something on a backend: the kind of a device, such as CPU, or the language of a text that
/// was executed, such as c. Kernels that the engine launches are noted by themselves.
void ran_on(std::string_view backend);

}  // namespace koine::test

#pragma once
#include <cstdint>
#include <functional>
#include <string>

// Running cases in children of this process, so that what a crash or an endless loop takes down is
// one case. The parent starts no threads and compiles nothing.
namespace koine::test {

/// What `action` returns, from a child; a signal in words, with the end of what the child wrote to
/// stderr, where it died or took longer than `seconds`.
std::string in_child(const std::function<std::string()>& action, double seconds = 60);

/// Checks cases 0 to `count` - 1 in children, `batch` of them each, until `report` returns false. A
/// check returns what is wrong, or nothing; a case that crashes is reported like one that is wrong.
void check_isolated(int64_t count, int64_t batch, const std::function<std::string(int64_t)>& check,
                    const std::function<bool(int64_t, const std::string&)>& report);

}  // namespace koine::test

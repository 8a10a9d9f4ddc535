#pragma once
#include <string_view>

// Names of CustomFunctions that are Koine's own: no user registers one.
namespace koine {

/// The function that copies between devices.
constexpr std::string_view copy_function = "copy";
/// The function that a program asks whether it may go on: its result is its argument, one UInt8,
/// and where that is not 0, no launch behind it runs.
constexpr std::string_view check_function = "check positions";

}  // namespace koine

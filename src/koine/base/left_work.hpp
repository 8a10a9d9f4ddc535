#pragma once
#include <atomic>
#include <functional>
#include <string>

// Work that nobody can stop where it is, such as a pass of LLVM over a large kernel.
namespace koine {

/// Gives what `work` gives, on a thread of its own. Where this thread is to stop meanwhile, it
/// throws Interrupted and leaves the work behind, whose result is lost. So `work` owns what it
/// uses.
std::string run_or_leave(std::function<std::string(const std::atomic<bool>& left)> work);
/// To be called by the work here and there: once it is left it does not return. The thread sleeps
/// until the process ends, with all that it holds, which nobody could take apart half made.
void rest_if_left(const std::atomic<bool>& left);
/// Waits until no such work runs: before the process ends or is forked.
void wait_for_left_work();

}  // namespace koine

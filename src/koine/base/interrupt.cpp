#include "koine/base/interrupt.hpp"

#include <utility>

#include "koine/base/timer.hpp"

namespace koine {
namespace {

// Of a thread: what was said last, and whether it holds for what is done now. Without destructors.
thread_local Interruption* said = nullptr;
thread_local Interruption* here = nullptr;

}  // namespace

Interruption::Interruption(std::function<bool()> asked, double seconds)
    : asked_(std::move(asked)),
      seconds_(seconds),
      last_(now_seconds()),
      thread_(std::this_thread::get_id()),
      outer_(std::exchange(said, this)) {}
Interruption::~Interruption() { said = outer_; }

bool Interruption::is_asked() {
  if (stop_.load(std::memory_order_relaxed)) return true;
  if (std::this_thread::get_id() != thread_) return false;
  const double now = now_seconds();
  if (now - last_ < seconds_) return false;
  last_ = now;
  if (!asked_()) return false;
  stop_.store(true, std::memory_order_relaxed);
  return true;
}

Interruptible::Interruptible() : Interruptible(said) {}
Interruptible::Interruptible(Interruption* by) : before_(std::exchange(here, by)) {}
Interruptible::~Interruptible() { here = before_; }

Uninterruptible::Uninterruptible()
    : outer_(std::exchange(said, nullptr)), before_(std::exchange(here, nullptr)) {}
Uninterruptible::~Uninterruptible() {
  said = outer_;
  here = before_;
}

Interruption* interruption_here() { return here; }
bool is_interrupted() { return here != nullptr && here->is_asked(); }

}  // namespace koine

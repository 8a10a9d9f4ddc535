#pragma once
#include <atomic>
#include <functional>
#include <thread>

// Work that its user may stop, as by Ctrl-C. Whoever embeds Koine says how to ask (Interruption);
// the engine says what may be left where it is (Interruptible), and asks on the way.
namespace koine {

/// What is being compiled or run was stopped. Values are as lazy as before, and can be computed.
/// It is no std::exception, so that nobody takes it for a mistake.
class Interrupted {};

/// While one lives, what its thread compiles and runs asks whether to go on: between passes,
/// between launches, and once in a while in between.
class Interruption {
 public:
  /// `asked` is called on this thread, no more than once in so many seconds.
  explicit Interruption(std::function<bool()> asked, double seconds = 0.02);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

 private:
  friend bool is_interrupted();
  bool is_asked();

  std::function<bool()> asked_;
  double seconds_, last_;
  std::thread::id thread_;
  std::atomic<bool> stop_{false};
  Interruption* outer_;
};

/// What this thread does while one lives may be stopped: it throws Interrupted.
class Interruptible {
 public:
  Interruptible();
  /// Of what another thread does for the one that may stop it (`interruption_here`).
  explicit Interruptible(Interruption* by);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  Interruption* before_;
};

/// What this thread does while one lives cannot be taken back, and runs to its end.
class Uninterruptible {
 public:
  Uninterruptible();
  ~Uninterruptible();
  Uninterruptible(const Uninterruptible&) = delete;
  Uninterruptible& operator=(const Uninterruptible&) = delete;

 private:
  Interruption *outer_, *before_;
};

/// What may stop this thread here; null: nothing.
Interruption* interruption_here();
/// Whether it is to stop. It is not where nothing may stop it.
bool is_interrupted();
/// Throws Interrupted where it is.
inline void check_interrupt() {
  if (is_interrupted()) throw Interrupted();
}

}  // namespace koine

#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace koine {

/// What kind of mistake the user made; a language binding maps it to its own exception type.
enum class ErrorKind { Value, Type, Index, Key, Memory, Device, File };

/// The user's mistake: says what, with which shapes and values, and how to mend it.
/// The process stays usable after one.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// Our mistake: an invariant of the compiler does not hold. Carries the graph as paste-able text.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <class... A>
[[noreturn]] void raise(ErrorKind kind, fmt::format_string<A...> format, A&&... args) {
  throw Error(kind, fmt::format(format, std::forward<A>(args)...));
}

template <class... A>
[[noreturn]] void internal_error(fmt::format_string<A...> format, A&&... args) {
  throw InternalError("koine internal error: " + fmt::format(format, std::forward<A>(args)...));
}

}  // namespace koine

/// Refuses a user's input. The message is formatted only on failure.
#define KOINE_REQUIRE(condition, kind, ...)                                  \
  do {                                                                       \
    if (!(condition)) ::koine::raise(::koine::ErrorKind::kind, __VA_ARGS__); \
  } while (false)

/// States an invariant of the compiler itself; checked in every build.
#define KOINE_INVARIANT(condition, ...)                     \
  do {                                                      \
    if (!(condition)) ::koine::internal_error(__VA_ARGS__); \
  } while (false)

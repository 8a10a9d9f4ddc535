#pragma once
#include <string>

#include "koine/base/error.hpp"

namespace koine {

/// What the user called, while one lives: messages about nodes that this thread makes name it, and
/// not the ops that it is made of. Of methods that call each other the outermost one counts.
class Method {
 public:
  Method();
  virtual ~Method();
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;
  /// Its name; with how its operands lie, where there are several, or where they are asked for.
  virtual std::string text(bool with_operands) const = 0;
  /// That of this thread; null: none is being called.
  static const Method* current();

 private:
  bool is_outermost_;
};

/// While one lives, no method is being called: a function of the user's runs, which calls its own.
class OutsideOfMethods {
 public:
  OutsideOfMethods();
  ~OutsideOfMethods();
  OutsideOfMethods(const OutsideOfMethods&) = delete;
  OutsideOfMethods& operator=(const OutsideOfMethods&) = delete;

 private:
  const Method* called_;
};

/// A refusal that begins with what the user called.
class NamedError : public Error {
 public:
  using Error::Error;
};

}  // namespace koine

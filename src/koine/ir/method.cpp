#include "koine/ir/method.hpp"

#include <utility>

namespace koine {
namespace {

const Method*& called() {
  static thread_local const Method* method = nullptr;
  return method;
}

}  // namespace

Method::Method() : is_outermost_(called() == nullptr) {
  if (is_outermost_) called() = this;
}
Method::~Method() {
  if (is_outermost_) called() = nullptr;
}
const Method* Method::current() { return called(); }

OutsideOfMethods::OutsideOfMethods() : called_(std::exchange(called(), nullptr)) {}
OutsideOfMethods::~OutsideOfMethods() { called() = called_; }

}  // namespace koine

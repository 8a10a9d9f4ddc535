#pragma once
#include <vector>

#include "koine/runtime/cl/api.hpp"

namespace koine::cl {

/// Events of what a queue was handed: shared, as OpenCL counts them.
class Events {
 public:
  Events() = default;
  Events(const Events& other) : all_(other.all_) {
    for (const cl_event e : all_) api().clRetainEvent(e);
  }
  Events(Events&& other) noexcept : all_(std::move(other.all_)) { other.all_.clear(); }
  Events& operator=(Events other) noexcept {
    all_.swap(other.all_);
    return *this;
  }
  ~Events() {
    for (const cl_event e : all_) api().clReleaseEvent(e);
  }

  /// Takes over an event.
  void add(cl_event event) { all_.push_back(event); }
  bool empty() const { return all_.empty(); }
  cl_uint count() const { return static_cast<cl_uint>(all_.size()); }
  const cl_event* data() const { return all_.data(); }

  /// Whether all are over, be it by a failure.
  bool over() const;
  /// Throws Error where one of them failed.
  void wait() const;

 private:
  std::vector<cl_event> all_;
};

}  // namespace koine::cl

#pragma once

namespace koine {

/// The calling thread's own T; null once the thread has destroyed it. The main thread does so
/// before the static objects of the program go, and their destructors may still compute.
template <class T>
T* of_thread() {
  static thread_local bool gone = false;  // no destructor: can be read to the end
  struct Holder {
    T value;
    ~Holder() { gone = true; }
  };
  if (gone) return nullptr;
  static thread_local Holder holder;
  return &holder.value;
}

}  // namespace koine

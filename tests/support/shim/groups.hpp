// Groups of threads on the host: what the shims of CUDA, HIP and Metal share. A group runs in one
// of two ways. By default each of its threads is a fiber of one thread of the host, so that a
// barrier that is missing is seen by a wrong value. With KOINE_SHIM_THREADS each is a thread of the
// host, so that ThreadSanitizer sees it, whatever the values are.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <type_traits>

struct uint3 {
  unsigned x, y, z;
};

namespace shim {

inline thread_local uint3 group, item;

/// A kernel with its arguments. No std::function: each text is compiled with these headers, and
/// large ones of the standard take longer than all of its kernels.
struct Work {
  void (*call)(void*);
  void* with;
  void operator()() const { call(with); }
};

inline uint3 item_of(size_t number, const uint32_t* size) {
  return {static_cast<unsigned>(number % size[0]),
          static_cast<unsigned>(number / size[0] % size[1]),
          static_cast<unsigned>(number / size[0] / size[1])};
}

/// Adds to a number of memory, whichever threads do so; what was there.
template <class T>
T add_at_once(T* place, T value) {
  T was, sum;
  __atomic_load(place, &was, __ATOMIC_RELAXED);
  do sum = was + value;
  while (!__atomic_compare_exchange(place, &was, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return was;
}

inline void require_all(size_t ended, size_t count) {
  if (ended == 0 || ended == count) return;
  std::fprintf(stderr, "a divergent barrier: %zu of %zu threads have ended\n", ended, count);
  std::abort();
}

}  // namespace shim

#ifdef KOINE_SHIM_THREADS
#include "threads.hpp"
#else
#include "fibers.hpp"
#endif

namespace shim {

template <class A>
A argument(void**& buffers, const int64_t*& variables, int& indices) {
  if constexpr (std::is_pointer_v<A>)
    return static_cast<A>(*buffers++);
  else if constexpr (std::is_same_v<A, uint3>)
    return indices++ == 0 ? group : item;
  else if constexpr (std::is_reference_v<A>)
    return reinterpret_cast<A>(*variables++);
  else
    return static_cast<A>(*variables++);
}

template <class... A>
void launch(void (*kernel)(A...), void** buffers, const int64_t* variables, const uint32_t* grid,
            const uint32_t* size) {
  auto call = [&] {
    void** b = buffers;
    const int64_t* v = variables;
    int indices = 0;
    std::apply(kernel, std::tuple<A...>{argument<A>(b, v, indices)...});
  };
  using Call = decltype(call);
  run_groups(grid, size, {[](void* c) { (*static_cast<Call*>(c))(); }, &call});
}

}  // namespace shim

#define KOINE_RUN(kernel)                                                                      \
  extern "C" void run_##kernel(void** buffers, const int64_t* variables, const uint32_t* grid, \
                               const uint32_t* size) {                                         \
    shim::launch(kernel, buffers, variables, grid, size);                                      \
  }

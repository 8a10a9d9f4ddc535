// Groups of threads on one thread of the host: each is a fiber, and a barrier lets the others run.
// What the shims of CUDA, HIP and Metal share.
#pragma once
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

struct uint3 {
  unsigned x, y, z;
};

namespace shim {

inline thread_local uint3 group, item;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  uint3 item;
  bool done = false;
};
inline thread_local ucontext_t scheduler;
inline thread_local Fiber* current = nullptr;
inline thread_local const std::function<void()>* body = nullptr;

inline void barrier() {
  if (current != nullptr) swapcontext(&current->context, &scheduler);
}

inline void start() {
  (*body)();
  current->done = true;
  swapcontext(&current->context, &scheduler);
}

// All threads of a group, each up to a barrier before any goes on.
inline void run_group(const uint32_t* size, const std::function<void()>& kernel) {
  const size_t count = size_t{size[0]} * size[1] * size[2];
  item = {0, 0, 0};
  if (count == 1) return kernel();
  constexpr size_t stack_bytes = 256 << 10;
  std::vector<Fiber> fibers(count);
  body = &kernel;
  for (size_t i = 0; i < count; ++i) {
    Fiber& f = fibers[i];
    f.item = {static_cast<unsigned>(i % size[0]), static_cast<unsigned>(i / size[0] % size[1]),
              static_cast<unsigned>(i / size[0] / size[1])};
    f.stack.reset(new char[stack_bytes]);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = stack_bytes;
    f.context.uc_link = nullptr;
    makecontext(&f.context, start, 0);
  }
  for (bool more = true; more;) {
    size_t done = 0;
    for (Fiber& f : fibers) {
      current = &f;
      item = f.item;
      swapcontext(&scheduler, &f.context);
      done += f.done ? 1 : 0;
    }
    current = nullptr;
    more = done == 0;
    if (done != 0 && done != count) {
      std::fprintf(stderr, "a divergent barrier: %zu of %zu threads have ended\n", done, count);
      std::abort();
    }
  }
}

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
  const std::function<void()> thread = [&] {
    void** b = buffers;
    const int64_t* v = variables;
    int indices = 0;
    std::apply(kernel, std::tuple<A...>{argument<A>(b, v, indices)...});
  };
  for (group.z = 0; group.z < grid[2]; ++group.z)
    for (group.y = 0; group.y < grid[1]; ++group.y)
      for (group.x = 0; group.x < grid[0]; ++group.x) run_group(size, thread);
}

}  // namespace shim

#define KOINE_RUN(kernel)                                                                      \
  extern "C" void run_##kernel(void** buffers, const int64_t* variables, const uint32_t* grid, \
                               const uint32_t* size) {                                         \
    shim::launch(kernel, buffers, variables, grid, size);                                      \
  }

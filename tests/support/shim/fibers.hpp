// A group on one thread of the host: its threads are fibers, and a barrier lets the others run.
#pragma once
#include <ucontext.h>

#include <vector>

// Memory of a group: one group at a time runs on a thread of the host.
#define KOINE_SHIM_SHARED static thread_local

namespace shim {

struct Fiber {
  ucontext_t context;
  char* stack = nullptr;
  uint3 item;
  bool done = false;

  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() { delete[] stack; }
};
inline thread_local ucontext_t scheduler;
inline thread_local Fiber* current = nullptr;
inline thread_local const Work* body = nullptr;

inline void barrier() {
  if (current != nullptr) swapcontext(&current->context, &scheduler);
}

inline void start() {
  (*body)();
  current->done = true;
  swapcontext(&current->context, &scheduler);
}

constexpr size_t stack_bytes = 256 << 10;

// The threads of a group; their stacks serve all groups of a launch.
inline std::vector<Fiber> threads_of(const uint32_t* size) {
  std::vector<Fiber> fibers(size_t{size[0]} * size[1] * size[2]);
  for (size_t i = 0; i < fibers.size(); ++i) {
    fibers[i].item = item_of(i, size);
    if (fibers.size() > 1) fibers[i].stack = new char[stack_bytes];
  }
  return fibers;
}

// All threads of a group, each up to a barrier before any goes on.
inline void run_group(std::vector<Fiber>& fibers, const Work& kernel) {
  item = {0, 0, 0};
  if (fibers.size() == 1) return kernel();
  body = &kernel;
  for (Fiber& f : fibers) {
    f.done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
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
    require_all(done, fibers.size());
  }
}

inline void run_groups(const uint32_t* grid, const uint32_t* size, const Work& kernel) {
  std::vector<Fiber> fibers = threads_of(size);
  for (group.z = 0; group.z < grid[2]; ++group.z)
    for (group.y = 0; group.y < grid[1]; ++group.y)
      for (group.x = 0; group.x < grid[0]; ++group.x) run_group(fibers, kernel);
}

}  // namespace shim

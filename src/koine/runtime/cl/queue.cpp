#include "koine/runtime/cl/queue.hpp"

#include "koine/base/error.hpp"
#include "koine/runtime/cl/compiler.hpp"
#include "koine/runtime/cl/memory.hpp"

namespace koine::cl {
namespace {

cl_int status_of(cl_event event) {
  cl_int out = CL_COMPLETE;
  const cl_int asked =
      api().clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof out, &out, nullptr);
  return asked == CL_SUCCESS ? out : asked;
}

bool sees(const Hardware& on, Memory& memory) {
  const auto* own = dynamic_cast<ClMemory*>(&memory);
  return own != nullptr ? &own->on() == &on : memory.data() != nullptr;
}

}  // namespace

bool Events::over() const {
  for (const cl_event e : all_)
    if (status_of(e) > CL_COMPLETE) return false;
  return true;
}

void Events::wait() const {
  if (all_.empty()) return;
  const cl_int status = api().clWaitForEvents(count(), data());
  if (status == CL_SUCCESS) return;
  for (const cl_event e : all_) check(std::min(status_of(e), CL_COMPLETE), "running a kernel");
  check(status, "waiting for kernels");
}

uint64_t ClQueue::submit(std::span<const Command> commands) {
  on_.require_usable();
  const std::lock_guard lock(mutex_);
  Events events;
  if (const cl_event all = recordings_.replay(commands)) {
    events.add(all);
    return add(std::move(events));
  }
  for (const Command& c : commands)
    if (const cl_event e = static_cast<ClProgram*>(c.program)->enqueue(queue_, c.launch))
      events.add(e);
  return add(std::move(events));
}

uint64_t ClQueue::submit(const Transfer& t) {
  on_.require_usable();
  const std::lock_guard lock(mutex_);
  if (!sees(on_, *t.from)) {  // by way of the host, behind what was handed over before
    if (running_.contains(last_)) running_.at(last_).wait();
    copy_bytes(*t.to, t.to_offset, *t.from, t.from_offset, t.bytes);
    return last_;
  }
  Events events;
  if (t.bytes > 0) {
    cl_event event = nullptr;
    check(api().clEnqueueSVMMemcpy(queue_, CL_FALSE, t.to->address() + t.to_offset,
                                   t.from->address() + t.from_offset, static_cast<size_t>(t.bytes),
                                   0, nullptr, &event),
          "copying");
    events.add(event);
  }
  return add(std::move(events));
}

uint64_t ClQueue::add(Events events) {
  if (events.empty()) {  // an event all the same: that what came before has run
    cl_event event = nullptr;
    check(api().clEnqueueBarrierWithWaitList(queue_, 0, nullptr, &event), "marking a place");
    events.add(event);
  }
  check(api().clFlush(queue_), "starting what was handed over");
  running_.emplace(++last_, std::move(events));
  return last_;
}

Events ClQueue::events_of(uint64_t submission) {
  const std::lock_guard lock(mutex_);
  const auto it = running_.find(submission);
  return it == running_.end() ? Events() : it->second;
}

// A queue on other hardware has a context of its own, where its events mean nothing.
bool ClQueue::follow(Queue& other, uint64_t submission) {
  auto* const before = dynamic_cast<ClQueue*>(&other);
  if (before == this) return true;
  if (before == nullptr || &before->on_ != &on_) return other.has_run(submission);
  const Events events = before->events_of(submission);
  if (events.empty()) return true;
  const std::lock_guard lock(mutex_);
  check(api().clEnqueueBarrierWithWaitList(queue_, events.count(), events.data(), nullptr),
        "following another queue");
  return true;
}

bool ClQueue::has_run(uint64_t submission) { return events_of(submission).over(); }

void ClQueue::wait(uint64_t submission) {
  const Events events = events_of(submission);
  events.wait();
  const std::lock_guard lock(mutex_);
  running_.erase(submission);
}

}  // namespace koine::cl

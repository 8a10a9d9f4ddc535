#include "koine/engine/loop_run.hpp"

#include <algorithm>

#include "koine/base/rounding.hpp"
#include "koine/differential/run.hpp"
#include "koine/engine/counting.hpp"

namespace koine {
namespace {

constexpr int64_t alignment = 64;
int64_t aligned(int64_t bytes) { return rounded_up(bytes, alignment); }

}  // namespace

LoopProgram::LoopProgram(const UOp& call, size_t buffers, const std::string& device,
                         const StageChange& change, const CompileOptions& how)
    : loop(call), results(loop_result_count(loop.body, buffers)) {
  const size_t known = buffers + (loop.body.is(Op::While) ? 1 : 0);
  auto runtime_of = [&](const UOp& b) {
    return &device_runtime(b.device() ? b.device() : Device(device));
  };
  for (size_t i = 0; i < loop.carries(); ++i) of_carries.push_back(runtime_of(call.src(i + 1)));
  for (const UOp& f : loop.functions) {
    functions.push_back(std::make_shared<const Executable>(PlannedProgram{f}, device, change, how));
    own.emplace_back();
    for (const Kernel& k : kernels_of(f))
      for (const UOp& b : k.buffers)
        if (b.is(Op::Param) && static_cast<size_t>(b.as<BufferArg>().slot) >= known)
          own.back().emplace(b.as<BufferArg>().slot, Own{runtime_of(b), largest_bytes(b)});
  }
}

LoopRun::LoopRun(std::shared_ptr<const LoopProgram> program, DeviceRuntime& device)
    : program_(std::move(program)),
      device_(device),
      runs_(program_->functions.size()),
      carries_(program_->loop.positions(LoopRole::Carry)) {
  for (size_t f = 0; f < program_->functions.size(); ++f) {
    functions_.emplace_back(program_->functions[f]);
    for (const auto& [slot, memory] : program_->own[f])
      functions_[f].set_place(slot, {memory.device->allocate(memory.bytes), 0, memory.bytes});
  }
  if (program_->loop.body.is(Op::While)) flag_ = {device.allocate(1), 0, 1};
}

void LoopRun::run(const std::vector<Located>& buffers, const VariableValues& variables) {
  for (Submission& f : functions_) {
    for (size_t slot = 0; slot < buffers.size(); ++slot) f.set_place(slot, buffers[slot]);
    for (const auto& [name, value] : variables) f.set_variable(name, value);
  }
  std::fill(runs_.begin(), runs_.end(), 0);
  make_places(buffers);
  const UOp& body = program_->loop.body;
  if (body.is(Op::Scan))
    scan(buffers, variables);
  else if (body.is(Op::While))
    repeat(buffers);
  else
    branch(buffers);
  count_runs();
}

// The result of a carry, and as much memory beside it: a step reads the one and fills the other.
void LoopRun::make_places(const std::vector<Located>& buffers) {
  std::map<DeviceRuntime*, int64_t> bytes, offsets;
  first_.clear();
  for (std::vector<Located>& p : places_) p.clear();
  for (size_t i = 0; i < carries_.size(); ++i) {
    first_.push_back(buffers[program_->results + carries_[i]]);
    places_[0].push_back(buffers[i]);
    bytes[program_->of_carries[i]] += aligned(buffers[i].bytes);
  }
  for (const auto& [device, wanted] : bytes) {
    std::shared_ptr<Memory>& spare = spare_[device];
    if (!spare || spare->bytes() < wanted) spare = device->allocate(wanted);
  }
  for (size_t i = 0; i < carries_.size(); ++i) {
    DeviceRuntime* const device = program_->of_carries[i];
    places_[1].push_back({spare_[device], offsets[device], buffers[i].bytes});
    offsets[device] += aligned(buffers[i].bytes);
  }
}

void LoopRun::pass_carries(Submission& function, const std::vector<Located>& from,
                           const std::vector<Located>& to) const {
  for (size_t i = 0; i < carries_.size(); ++i) {
    function.set_place(program_->results + carries_[i], from[i]);
    function.set_place(i, to[i]);
  }
}

void LoopRun::copy(size_t carry, const Located& to, const Located& from) {
  Queue& queue = program_->of_carries[carry]->queue();
  queue.wait(queue.submit(Transfer{to.memory.get(), to.offset, from.memory.get(), from.offset,
                                   bytes_of_copy(to, from)}));
}

void LoopRun::run_function(size_t number) {
  functions_[number].run_uncounted();
  ++runs_[number];
}

// The last step leaves its carries in the results.
void LoopRun::scan(const std::vector<Located>& buffers, const VariableValues& variables) {
  const Loop& loop = program_->loop;
  const int64_t count = evaluate_index(loop.count, {variables.begin(), variables.end()});
  if (count == 0)
    for (size_t i = 0; i < carries_.size(); ++i) copy(i, buffers[i], first_[i]);
  Submission& step = functions_[0];
  const auto number = step_variable(loop.count).as<BufferArg>().name;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t left = count - 1 - k;
    pass_carries(step, k == 0 ? first_ : place(left + 1), place(left));
    step.set_variable(number, loop.reversed ? left : k);
    run_function(0);
  }
}

void LoopRun::repeat(const std::vector<Located>& buffers) {
  const bool computes = device_.computes();  // else no condition is known
  const size_t flag_slot = buffers.size();
  Submission &condition = functions_[0], &step = functions_[1];
  condition.set_place(flag_slot, flag_);
  std::vector<Located> now = first_;
  for (int64_t turn = 0;; ++turn) {
    for (size_t i = 0; i < carries_.size(); ++i)
      condition.set_place(program_->results + carries_[i], now[i]);
    run_function(0);
    uint8_t holds = 0;
    if (computes) flag_.read(&holds, sizeof holds);
    if ((holds & 1) == 0) break;
    pass_carries(step, now, place(turn + 1));
    run_function(1);
    now = place(turn + 1);
  }
  for (size_t i = 0; i < carries_.size(); ++i)
    if (now[i].address() != buffers[i].address()) copy(i, buffers[i], now[i]);
}

void LoopRun::branch(const std::vector<Located>& buffers) {
  const Located& which = buffers[program_->results];
  int32_t asked = 0;
  if (device_.computes()) which.read(&asked, sizeof asked);
  const auto last = static_cast<int32_t>(functions_.size()) - 1;
  run_function(static_cast<size_t>(std::clamp(asked, 0, last)));
}

void LoopRun::count_runs() {
  count([&](Counters& c) {
    for (size_t f = 0; f < runs_.size(); ++f) program_->functions[f]->add_work(runs_[f], c);
    for (const auto& [device, spare] : spare_)
      c.temporary_bytes = std::max(c.temporary_bytes, spare->bytes());
  });
}

}  // namespace koine

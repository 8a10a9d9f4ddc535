#include "koine/engine/executable.hpp"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "koine/base/error.hpp"
#include "koine/base/hash.hpp"
#include "koine/base/interrupt.hpp"
#include "koine/base/options.hpp"
#include "koine/base/timer.hpp"
#include "koine/differential/run.hpp"
#include "koine/engine/checks.hpp"
#include "koine/engine/compile.hpp"
#include "koine/engine/counting.hpp"
#include "koine/engine/loop_run.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/exchanges.hpp"
#include "koine/lower/plan.hpp"
#include "koine/runtime/ranks/exchange.hpp"
#include "koine/runtime/ranks/ranks.hpp"

namespace koine {
namespace {

std::string lines_of(const UOp& kernel) {
  const std::string lines = origins_below(kernel);
  return lines.empty() ? "" : "  (" + lines + ")";
}

void print_schedule(const std::vector<Kernel>& kernels) {
  if (options().debug < 2) return;
  for (size_t i = 0; i < kernels.size(); ++i) {
    fmt::print(stderr, "kernel  {:3}: {} buffers, {}{}\n", i, kernels[i].buffers.size(),
               kernels[i].reason, lines_of(kernels[i].ast));
    if (options().debug >= 3) fmt::print(stderr, "{}", tree_text(kernels[i].ast));
  }
}

}  // namespace

// --- Executable ----------------------------------------------------------------------------------

Executable::Executable(const UOp& program, const std::string& device, const StageChange& change,
                       const CompileOptions& given)
    : device_(device) {
  const CompileOptions how = options_for(program, device, given);
  variables_ = variables_below(program);
  StageOutputs parts;
  const UOp scheduled =
      with_copies_together(schedule_of(program, change, how, how.verify >= 3 ? &parts : nullptr),
                           [&](const Kernel& k) { return is_between_ranks(k); });
  schedule_ = planned(scheduled, change, how);
  dump_stage("plan", [&] { return to_text(schedule_); });
  if (how.verify >= 3) count_checks(check_scheduled(parts, scheduled, schedule_, change, how));
  make(change, how);
  note_users_code();
}

Executable::Executable(const PlannedProgram& program, const std::string& device,
                       const StageChange& change, const CompileOptions& how)
    : device_(device), schedule_(program.schedule) {
  for (const Kernel& k : kernels_of(schedule_))
    for (const UOp& v : k.variables)
      if (!is_bound(v) && std::find(variables_.begin(), variables_.end(), v) == variables_.end())
        variables_.push_back(v);
  make(change, how);
}

void Executable::make(const StageChange& change, const CompileOptions& how) {
  const std::vector<Kernel> kernels = kernels_of(schedule_);
  print_schedule(kernels);
  lay_out(kernels);
  note_ranks(kernels);
  add_segments(kernels);
  compile(kernels, change, how);
}

DeviceRuntime& Executable::runtime_of(Device device) const {
  return device_runtime(device ? device : Device(device_));
}

bool Executable::is_between_ranks(const Kernel& k) const {
  if (!is_copy(k.ast)) return false;
  const auto to = runtime_of(k.buffers[0].device()).rank();
  const auto from = runtime_of(k.buffers[1].device()).rank();
  return to && from;
}

// A rank runs a loop alone, so nothing in it waits for others, or needs what they have.
void Executable::require_one_rank(const Kernel& loop) const {
  std::set<std::string> devices{runtime_of(loop.device()).name()};
  for (const UOp& u : toposort(loop.call))
    if (u.is(Op::Buffer) || u.is(Op::Param))
      if (const Device device = u.device()) devices.insert(device.name());
  if (devices.size() == 1) return;
  for (const std::string& name : devices)
    KOINE_REQUIRE(!device_runtime(name).rank(), Device,
                  "{}: it has memory of {}, and a loop or branch that a rank runs has all on one "
                  "device: copy to that with to() before, and from it behind",
                  loop.reason, fmt::join(devices, ", "));
}

namespace {

// One of the user's, also in a loop or branch: it may throw.
bool calls_function(const Kernel& k) {
  if (is_kernel_body(k.ast)) return false;
  for (const UOp& u : toposort_with_bodies(k.ast))
    if (u.is(Op::CustomFunction) && !is_copy(u) && !is_check(u)) return true;
  return false;
}

}  // namespace

// All that ranks do together: who sends what to whom, and why, in this order, and of what kernels.
void Executable::note_ranks(const std::vector<Kernel>& kernels) {
  for (size_t k = 0; k < kernels.size(); ++k) {
    if (is_loop(kernels[k].ast)) require_one_rank(kernels[k]);
    if (!is_copy(kernels[k].ast) && !is_check(kernels[k].ast)) continue;
    const UOp &to = kernels[k].buffers[0], &from = kernels[k].buffers[1];
    const auto rank_of = [&](const UOp& b) { return runtime_of(b.device()).rank(); };
    if (!rank_of(from)) continue;
    uint64_t hash = hash_mix(ranks_.value_or(0), hash_text(kernels[k].reason));
    for (const uint64_t word :
         {uint64_t{*rank_of(from)}, uint64_t{rank_of(to).value_or(most_devices)},
          static_cast<uint64_t>(from.dtype()), static_cast<uint64_t>(largest_bytes(from))})
      hash = hash_mix(hash, word);
    ranks_ = hash;
  }
  if (!ranks_) return;
  for (const Kernel& k : kernels)
    if (is_kernel_body(k.ast) && runtime_of(k.device()).rank())
      ranks_ = hash_mix(*ranks_, k.ast.hash());
}

// What one of them may fail in; all are told. The functions of a loop are programs of one rank.
void Executable::note_users_code() {
  for (const Kernel& k : kernels_of(schedule_)) {
    if (!runtime_of(k.device()).rank() || !calls_function(k)) continue;
    one_may_fail_ = true;
    ranks_ = hash_mix(ranks_.value_or(0), hash_text(k.reason));
  }
}

absl::flat_hash_map<const Node*, size_t> Executable::find_arguments(
    const std::vector<Kernel>& kernels) {
  std::map<std::pair<size_t, const std::string*>, size_t> given;  // names of devices are interned
  absl::flat_hash_map<const Node*, size_t> numbers;
  for (const Kernel& k : kernels)
    for (const UOp& b : k.buffers) {
      if (!b.is(Op::Param)) continue;
      const auto slot = static_cast<size_t>(b.as<BufferArg>().slot);
      arguments_ = std::max(arguments_, slot + 1);
      const auto [it, fresh] =
          given.try_emplace({slot, b.device() ? &b.device().name() : nullptr}, given_.size());
      if (fresh) {
        given_.push_back({slot, b.device()});
        given_of_slot_.resize(arguments_);
        given_of_slot_[slot].push_back(it->second);
      }
      numbers.emplace(b.node(), it->second);
    }
  return numbers;
}

void Executable::lay_out(const std::vector<Kernel>& kernels) {
  const auto numbers = find_arguments(kernels);
  absl::flat_hash_map<const Node*, size_t> variables;
  for (size_t i = 0; i < variables_.size(); ++i) variables.emplace(variables_[i].node(), i);
  auto arena_of = [this](const UOp& buffer) {
    const Device device = buffer.device();
    size_t number = 0;
    while (number < arenas_.size() && !(arenas_[number].device == device)) ++number;
    if (number == arenas_.size()) arenas_.push_back({device, arena_bytes(schedule_, device)});
    return given_.size() + number;
  };
  for (const Kernel& k : kernels) {
    Entry entry{&runtime_of(k.device()),
                k.call,
                nullptr,
                nullptr,
                places_.size(),
                k.buffers.size(),
                variable_numbers_.size(),
                k.variables.size(),
                {},
                is_copy(k.ast) && !runtime_of(k.buffers[1].device()).rank(),
                is_between_ranks(k)};
    for (size_t slot = 0; slot < k.buffers.size(); ++slot)
      if (k.buffers[slot].is(Op::Param) && k.stores(slot))
        entry.stored.push_back(static_cast<size_t>(k.buffers[slot].as<BufferArg>().slot));
    for (const UOp& b : k.buffers) {
      const BufferArg& arg = b.as<BufferArg>();
      if (b.is(Op::Param))
        places_.push_back({numbers.at(b.node()), 0, -1});
      else
        places_.push_back({arena_of(b), arg.offset, largest_bytes(b)});
    }
    for (const UOp& v : k.variables) {
      if (is_bound(v)) constants_.push_back(bound_value(v));
      variable_numbers_.push_back(is_bound(v) ? variables_.size() + constants_.size() - 1
                                              : variables.at(v.node()));
    }
    if (!is_check(k.ast) && !is_loop(k.ast)) ++launches_[entry.device->name()];
    entries_.push_back(std::move(entry));
  }
  places_of_.resize(given_.size());
  for (size_t i = 0; i < places_.size(); ++i)
    if (places_[i].memory < given_.size()) places_of_[places_[i].memory].push_back(i);
}

// Whether a launch stores into an arena.
bool fills_temporaries(const Kernel& kernel) {
  for (size_t slot = 0; slot < kernel.buffers.size(); ++slot)
    if (kernel.stores(slot) && kernel.buffers[slot].is(Op::Buffer)) return true;
  return false;
}

void Executable::add_segments(const std::vector<Kernel>& kernels) {
  const std::vector<std::vector<size_t>> needs = dependencies_of(kernels);
  std::vector<size_t> segment_of;
  absl::flat_hash_map<const DeviceRuntime*, size_t> last;  // segment of each queue
  // Copies on the queue of another device that read from an arena: what comes next to its own queue
  // may store to the same place.
  absl::flat_hash_map<const DeviceRuntime*, std::vector<size_t>> readers;
  auto on_queue = [&](size_t k) { return entries_[k].copies || is_kernel_body(kernels[k].ast); };
  for (size_t k = 0; k < kernels.size(); ++k) {
    const DeviceRuntime* device = entries_[k].device;
    const bool alone = !is_kernel_body(kernels[k].ast);
    auto waits_inside = [&] {
      return std::any_of(needs[k].begin(), needs[k].end(),
                         [&](size_t n) { return segment_of[n] + 1 == segments_.size(); });
    };
    const bool goes_on =
        k > 0 &&
        (alone ? entries_[k].between_ranks && entries_[k - 1].between_ranks && !waits_inside()
               : is_kernel_body(kernels[k - 1].ast) && device == entries_[k - 1].device);
    if (!goes_on) segments_.push_back({k, 0, {}});
    Segment& own = segments_.back();
    ++own.count;
    segment_of.push_back(segments_.size() - 1);
    for (const size_t n : needs[k])
      if (segment_of[n] != segment_of[k] && on_queue(n) &&
          (!on_queue(k) || entries_[n].device != device))
        own.waits.push_back(segment_of[n]);
    for (const size_t reader : std::exchange(readers[device], {})) own.waits.push_back(reader);
    if (on_queue(k)) {
      last[device] = segment_of[k];
    } else if (fills_temporaries(kernels[k])) {
      // The host fills a place in an arena that an earlier launch may still use for another.
      for (const UOp& b : kernels[k].buffers)
        if (const auto it = last.find(&runtime_of(b.device())); it != last.end())
          own.waits.push_back(it->second);
    }
    if (!entries_[k].copies || !kernels[k].buffers[1].is(Op::Buffer)) continue;
    const DeviceRuntime* from = &runtime_of(kernels[k].buffers[1].device());
    if (from != device) readers[from].push_back(segment_of[k]);
  }
}

void Executable::compile(const std::vector<Kernel>& kernels, const StageChange& change,
                         const CompileOptions& how) {
  std::vector<CompileRequest> requests;
  for (size_t k = 0; k < kernels.size(); ++k)
    if (is_kernel_body(kernels[k].ast)) requests.push_back({kernels[k].ast, entries_[k].device});
  const auto programs = compile_kernels(requests, change, how);
  size_t next = 0;
  for (size_t k = 0; k < kernels.size(); ++k) {
    if (is_loop(kernels[k].ast))
      entries_[k].loop = std::make_shared<const LoopProgram>(
          kernels[k].call, kernels[k].buffers.size(), entries_[k].device->name(), change, how);
    if (!is_kernel_body(kernels[k].ast)) continue;
    entries_[k].program = programs[next++];
    operations_ += entries_[k].program->kernel().estimate.operations;
    bytes_ += entries_[k].program->kernel().estimate.bytes;
  }
}

void Executable::each_program(
    const std::function<void(const UOp& kernel, DeviceRuntime&, const Program&)>& visit) const {
  for (const Entry& e : entries_) {
    if (e.program) visit(e.call.src(0), *e.device, *e.program);
    if (e.loop)
      for (const auto& function : e.loop->functions)
        if (function) function->each_program(visit);
  }
}

void Executable::add_work(int64_t runs, Counters& counters) const {
  for (const auto& [device, launches] : launches_) {
    counters.kernels += runs * launches;
    counters.kernels_on[device] += runs * launches;
  }
  counters.operations += static_cast<double>(runs) * operations_;
  counters.bytes += static_cast<double>(runs) * bytes_;
  for (const Arena& a : arenas_)
    counters.temporary_bytes = std::max(counters.temporary_bytes, a.bytes);
}

// --- Submission ----------------------------------------------------------------------------------

Submission::Submission(std::shared_ptr<const Executable> executable)
    : executable_(std::move(executable)),
      bound_(executable_->variables_.size()),
      is_bound_(executable_->variables_.size()) {
  const Executable& e = *executable_;
  bound_.insert(bound_.end(), e.constants_.begin(), e.constants_.end());
  is_bound_.resize(bound_.size(), true);
  memory_.resize(e.given_.size() + e.arenas_.size());
  for (size_t a = 0; a < e.arenas_.size(); ++a) {
    const int64_t bytes = e.arenas_[a].bytes;
    memory_[e.given_.size() + a] = {e.runtime_of(e.arenas_[a].device).allocate(bytes), 0, bytes};
  }
}

Submission::Submission(std::shared_ptr<const Executable> executable, std::span<const UOp> arguments,
                       const VariableValues& variables)
    : Submission(std::move(executable)) {
  for (size_t k = 0; k < executable_->arguments_; ++k) set_argument(k, arguments[k]);
  for (const auto& [name, value] : variables) set_variable(name, value);
}

Submission::~Submission() = default;
Submission::Submission(Submission&&) noexcept = default;
Submission& Submission::operator=(Submission&&) noexcept = default;

void Submission::set_argument(size_t slot, const UOp& buffer) {
  KOINE_REQUIRE(slot < executable_->arguments_, Value,
                "the step has {} arguments, there is none at {}", executable_->arguments_, slot);
  for (const size_t i : executable_->given_of_slot_[slot]) {
    std::shared_ptr<Memory> memory = storage::memory_on(buffer, executable_->given_[i].device);
    KOINE_REQUIRE(memory, Value, "buffer {} has no memory: it was never computed",
                  buffer.as<BufferArg>().slot);
    const int64_t bytes = memory->bytes();
    memory_[i] = {std::move(memory), 0, bytes};
  }
  ready_ = false;
}

void Submission::set_place(size_t slot, const Located& place) {
  if (slot >= executable_->given_of_slot_.size()) return;
  for (const size_t i : executable_->given_of_slot_[slot]) {
    if (memory_[i].memory != place.memory) memory_[i].memory = place.memory;
    memory_[i].offset = place.offset;
    memory_[i].bytes = place.bytes;
    if (!ready_) continue;
    for (const size_t p : executable_->places_of_[i]) addresses_[p] = place.address();
  }
}

void Submission::set_variable(const std::string& name, int64_t value) {
  const auto& known = executable_->variables_;
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i].as<BufferArg>().name != name) continue;
    require_in_range(known[i], value);
    bound_[i] = value;
    is_bound_[i] = true;
    if (!ready_) continue;
    for (size_t k = 0; k < values_.size(); ++k)
      if (executable_->variable_numbers_[k] == i) values_[k] = value;
  }
}

void Submission::finish_once_stored(const std::vector<bool>& arguments) {
  const auto& entries = executable_->entries_;
  const auto stores = [&](const Executable::Entry& entry) {
    return std::any_of(entry.stored.begin(), entry.stored.end(),
                       [&](size_t slot) { return arguments[slot]; });
  };
  whole_from_ =
      static_cast<size_t>(std::find_if(entries.begin(), entries.end(), stores) - entries.begin());
}

// The flat lists that launches point into.
void Submission::make_ready() {
  const Executable& e = *executable_;
  addresses_.clear();
  sizes_.clear();
  values_.clear();
  addresses_.reserve(e.places_.size());
  sizes_.reserve(e.places_.size());
  values_.reserve(e.variable_numbers_.size());
  for (const Executable::Place& p : e.places_) {
    addresses_.push_back(memory_[p.memory].address() + p.offset);
    sizes_.push_back(p.bytes < 0 ? memory_[p.memory].bytes : p.bytes);
  }
  for (const size_t i : e.variable_numbers_) {
    KOINE_REQUIRE(is_bound_[i], Key, "Variable '{}' has no value: bind it in realize()",
                  e.variables_[i].as<BufferArg>().name);
    values_.push_back(bound_[i]);
  }
  commands_.clear();
  commands_.reserve(e.entries_.size());
  for (const Executable::Entry& entry : e.entries_)
    commands_.push_back({entry.program.get(), launch_of(entry)});
  submitted_.assign(e.segments_.size(), 0);
  for (size_t k = 0; k < e.entries_.size(); ++k) {
    if (!e.entries_[k].loop) continue;
    loops_.resize(e.entries_.size());
    if (!loops_[k])
      loops_[k] = std::make_unique<LoopRun>(e.entries_[k].loop, *e.entries_[k].device);
  }
  ready_ = true;
}

Launch Submission::launch_of(const Executable::Entry& entry) const {
  return {{addresses_.data() + entry.first_place, entry.places},
          {sizes_.data() + entry.first_place, entry.places},
          {values_.data() + entry.first_variable, entry.variables}};
}

bool Submission::run() {
  const double begin = now_seconds();
  if (!run_uncounted()) return false;
  const double seconds = now_seconds() - begin;
  count([&](Counters& c) {
    executable_->add_work(1, c);
    c.run_seconds += seconds;
  });
  return true;
}

bool Submission::run_uncounted() {
  if (!ready_) make_ready();
  if (!executable_->ranks_) {
    const Interruptible scope;
    return run_segments();
  }
  const Uninterruptible scope;  // others wait for it
  bool goes_on = true;
  Ranks& ranks = Ranks::joined();
  failure_ = nullptr;
  ranks.together("runs a program over ranks", *executable_->ranks_,
                 [&] { goes_on = run_segments(); });
  if (executable_->one_may_fail_) ranks.require_none_failed(failure_);
  return goes_on;
}

// False where a check stops the program.
bool Submission::run_segments() {
  const Executable& e = *executable_;
  std::optional<Uninterruptible> whole;
  for (size_t s = 0; s < e.segments_.size(); ++s) {
    if (!whole && e.segments_[s].first >= whole_from_) whole.emplace();
    try {
      if (!submit(e.segments_[s], s)) {
        wait_for_segments(s);
        return false;
      }
    } catch (...) {  // of a function of the host, or stopped: what runs still uses the memory
      wait_for_segments(s);
      throw;
    }
  }
  wait_for_segments(e.segments_.size());
  return true;
}

void Submission::wait_for_segments(size_t count) {
  const Executable& e = *executable_;
  for (size_t s = 0; s < count; ++s)
    e.entries_[e.segments_[s].first].device->queue().wait(submitted_[s]);
}

// False where a check stops the program.
bool Submission::submit(const Executable::Segment& segment, size_t number) {
  const Executable& e = *executable_;
  const Executable::Entry& first = e.entries_[segment.first];
  for (const size_t earlier : segment.waits) {
    Queue& other = e.entries_[e.segments_[earlier].first].device->queue();
    const bool follows =
        (first.program || first.copies) && first.device->queue().follow(other, submitted_[earlier]);
    if (!follows) other.wait(submitted_[earlier]);
  }
  if (first.copies) {
    submitted_[number] = copy(first);
    return true;
  }
  if (first.between_ranks) {
    exchange_between_ranks(std::span(e.entries_).subspan(segment.first, segment.count));
    return true;
  }
  if (!first.program) return run_on_host(first);
  if (options().debug >= 1) {
    std::optional<Uninterruptible> whole;
    for (size_t k = segment.first; k < segment.first + segment.count; ++k) {
      if (!whole && k >= whole_from_) whole.emplace();
      run_with_report(e.entries_[k]);
    }
    return true;
  }
  submitted_[number] = launch(segment);
  return true;
}

// Apart, what may be stopped and what may not.
uint64_t Submission::launch(const Executable::Segment& segment) {
  Queue& queue = executable_->entries_[segment.first].device->queue();
  const size_t end = segment.first + segment.count;
  const size_t middle = std::clamp(whole_from_, segment.first, end);
  uint64_t number = 0;
  if (middle > segment.first)
    number = queue.submit({commands_.data() + segment.first, middle - segment.first});
  if (middle == end) return number;
  const Uninterruptible whole;
  return queue.submit({commands_.data() + middle, end - middle});
}

uint64_t Submission::copy(const Executable::Entry& entry) {
  const Located to = located(entry, 0), from = located(entry, 1);
  const int64_t bytes = bytes_of_copy(to, from);
  count_copy(entry, bytes);
  return entry.device->queue().submit(
      Transfer{to.memory.get(), to.offset, from.memory.get(), from.offset, bytes});
}

void Submission::count_copy(const Executable::Entry& entry, int64_t bytes) const {
  const Device to = entry.call.src(1).device(), from = entry.call.src(2).device();
  count([&](Counters& c) { c.copied_bytes[{from.name(), to.name()}] += bytes; });
}

// A loop, a check, a copy from a rank, or a function of the user's.
bool Submission::run_on_host(const Executable::Entry& entry) {
  if (is_check(entry.call.src(0))) return check(entry);
  if (is_copy(entry.call.src(0)))
    read_from_rank(entry);
  else
    run_users_code(entry);
  return true;
}

// Where others wait for what comes next, a rank that fails goes on with what is in its memory, and
// all throw in the end.
void Submission::run_users_code(const Executable::Entry& entry) {
  if (failure_) return;
  try {
    if (entry.loop)
      run_loop(entry);
    else
      call_on_host(entry);
  } catch (...) {
    if (!executable_->one_may_fail_) throw;
    failure_ = std::current_exception();
  }
}

void Submission::exchange_between_ranks(std::span<const Executable::Entry> entries) {
  std::vector<Message> messages;
  for (const Executable::Entry& entry : entries) {
    const Located to = located(entry, 0), from = located(entry, 1);
    const int64_t bytes = bytes_of_copy(to, from);
    const DeviceRuntime& sender = executable_->runtime_of(entry.call.src(2).device());
    messages.push_back({*sender.rank(), *entry.device->rank(), from.memory.get(), from.offset,
                        to.memory.get(), to.offset, bytes});
    count_copy(entry, bytes);
  }
  deliver(Ranks::joined().transport(), messages);
}

// Goes to all ranks, so all of them take part, also the one that could read it alone.
void Submission::read_from_rank(const Executable::Entry& entry) {
  const Located to = located(entry, 0), from = located(entry, 1);
  const int64_t bytes = bytes_of_copy(to, from);
  count_copy(entry, bytes);
  if (std::byte* target = to.data()) return from.memory->copy_out(target, from.offset, bytes);
  std::vector<std::byte> between(static_cast<size_t>(bytes));
  from.memory->copy_out(between.data(), from.offset, bytes);
  to.memory->copy_in(between.data(), to.offset, bytes);
}

// The bytes behind a slot of a launch.
Located Submission::located(const Executable::Entry& entry, size_t slot) const {
  const size_t number = entry.first_place + slot;
  const Executable::Place& place = executable_->places_[number];
  const Located& whole = memory_[place.memory];
  return {whole.memory, whole.offset + place.offset, sizes_[number]};
}

// One device is all that a loop needs: that of another rank runs there.
void Submission::run_loop(const Executable::Entry& entry) {
  if (entry.device->rank() && !entry.device->computes()) return;
  std::vector<Located> buffers;
  for (size_t slot = 0; slot < entry.places; ++slot) buffers.push_back(located(entry, slot));
  VariableValues variables;
  for (size_t i = 0; i < entry.variables; ++i) {
    const size_t at = entry.first_variable + i;
    const UOp& v = executable_->variables_[executable_->variable_numbers_[at]];
    variables[v.as<BufferArg>().name] = values_[at];
  }
  loops_[static_cast<size_t>(&entry - executable_->entries_.data())]->run(buffers, variables);
}

// What a device that does not compute holds says nothing.
bool Submission::check(const Executable::Entry& entry) {
  if (!entry.device->has_results()) return true;
  const Located result = located(entry, 0), asked = located(entry, 1);
  uint8_t flag = 0;
  asked.memory->copy_out(&flag, asked.offset, sizeof flag);
  result.memory->copy_in(&flag, result.offset, sizeof flag);
  return flag == 0;
}

void Submission::call_on_host(const Executable::Entry& entry) {
  if (!entry.device->computes()) return;
  const Kernel kernel(entry.call);
  const auto& name = kernel.ast.as<std::string>();
  std::unordered_map<std::string, int64_t> variables;
  for (size_t i = 0; i < kernel.variables.size(); ++i)
    variables[kernel.variables[i].as<BufferArg>().name] = values_[entry.first_variable + i];
  std::vector<HostResult> results;
  std::vector<HostArgument> arguments;
  for (size_t slot = 0; slot < kernel.buffers.size(); ++slot) {
    const UOp& b = kernel.buffers[slot];
    std::byte* const data = located(entry, slot).data();
    KOINE_REQUIRE(data != nullptr, Device,
                  "function '{}' runs on the host, which cannot see the memory of {}: copy its "
                  "arguments to CPU with to()",
                  name, entry.device->name());
    std::vector<int64_t> sizes;
    for (const UOp& d : b.shape().src()) sizes.push_back(evaluate_index(d, variables));
    if (kernel.stores(slot))
      results.push_back({b.dtype(), std::move(sizes), data});
    else
      arguments.push_back({b.dtype(), std::move(sizes), data});
  }
  run_host_function(kernel.ast, results, arguments);
}

void Submission::run_with_report(const Executable::Entry& entry) {
  const double start = now_seconds();
  const Command command{entry.program.get(), launch_of(entry)};
  Queue& queue = entry.device->queue();
  queue.wait(queue.submit({&command, 1}));
  const double seconds = now_seconds() - start;
  const KernelEstimate& e = entry.program->kernel().estimate;
  fmt::print(stderr, "run     {:32} {:9.1f} us {:8.2f} GFLOP/s {:8.2f} GB/s{}\n",
             entry.program->name(), seconds * 1e6, e.operations / seconds * 1e-9,
             e.bytes / seconds * 1e-9, lines_of(entry.call.src(0)));
}

}  // namespace koine

#include "koine/engine/engine.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/base/timer.hpp"
#include "koine/engine/cache.hpp"
#include "koine/engine/checks.hpp"
#include "koine/engine/executable.hpp"
#include "koine/engine/literals.hpp"
#include "koine/engine/promises.hpp"
#include "koine/engine/storage.hpp"
#include "koine/engine/updates.hpp"
#include "koine/engine/variables.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/split_reduce.hpp"
#include "koine/transform/function.hpp"
#include "koine/verify/verify.hpp"

namespace koine {
namespace {

struct CounterState {
  std::mutex mutex;
  Counters counters;
};
CounterState& counter_state() {
  static auto& state = *new CounterState;
  return state;
}

std::string device_of(const UOp& value) {
  const Device d = value.device();
  return d ? d.name() : default_device();
}

int64_t byte_size(const UOp& value) {
  int64_t bytes = 0;
  const int64_t elements = largest_numel(value);
  KOINE_REQUIRE(!__builtin_mul_overflow(elements, item_size(value.dtype()), &bytes), Memory,
                "a tensor of shape {} and dtype {} does not fit into memory", shape_text(value),
                dtype_name(value.dtype()));
  return bytes;
}

UOp make_buffer(const UOp& shape, DType dtype, const std::string& device) {
  const UOp buffer = new_buffer(shape, dtype, Device(device));
  storage::set_memory(buffer, device_runtime(device).allocate(byte_size(buffer)));
  return buffer;
}

bool holds(const UOp& graph, Op op) {
  if ((graph.node()->ops_below & mask_of(op)) == 0) return false;
  const NodeList below = toposort(graph);
  return std::any_of(below.begin(), below.end(), [op](const UOp& u) { return u.is(op); });
}

// Nodes that were computed before become their Buffers, and so do raw bytes, also those in bodies
// of Functions; they follow the device of what reads them (row A5).
UOp with_results(const UOp& request) {
  const bool hidden = holds(request, Op::Function) && holds(request, Op::Binary);
  const UOp graph = hidden ? inline_functions(request) : request;
  Substitution known;
  const std::string device = device_of(graph);
  toposort(graph, [&](const UOp& u) {
    UOp buffer = storage::result(u);
    if (u.is(Op::Binary) && !(buffer && buffer.device().name() == device)) {
      buffer = buffer_from_host(u.shape(), DType::UInt8, device, u.as<std::string>().data());
      storage::set_result(u, buffer);
    }
    if (buffer) known.emplace(u, buffer);
    return !buffer;
  });
  return known.empty() ? graph : substitute(graph, known);
}

// Whether a value's buffer may stand for the value later. What is invalid in it became 0 in the
// buffer, so the two differ; a graph without buffers is part of cached programs, which would keep
// its result alive; and one that reads a Variable has another value next time.
bool worth_remembering(const UOp& value) {
  bool reads = false;
  for (const UOp& u : toposort(value)) {
    if (is_variable(u) && !is_bound(u)) return false;
    reads = reads || u.is(Op::Buffer);
  }
  return reads && !may_be_invalid(value);
}

// Whoever holds a result asks for its size later: the Variables in it bring their values along.
void require_known_size(const UOp& value) {
  const std::vector<UOp> sizes = variables_below(value.shape());
  if (std::all_of(sizes.begin(), sizes.end(), is_bound)) return;
  std::string most;
  for (size_t axis = 0; axis < value.rank(); ++axis)
    most += fmt::format("{}{}", axis > 0 ? ", " : "", value.dim(axis).bounds().high);
  raise(
      ErrorKind::Value,
      "realize: the result has the symbolic shape {}, and its memory needs known sizes: bind() its "
      "Variables, pad() it to its largest shape, ({}{}), reduce it, or store it into a view of a "
      "buffer",
      shape_text(value), most, value.rank() == 1 ? "," : "");
}

UOp base_of(const UOp& after) {
  UOp u = after;
  while (u.is(Op::After)) u = u.src(0);
  return u;
}

struct Prepared {
  std::vector<UOp> values;        // to compute
  std::vector<UOp> destinations;  // null for Afters
  std::vector<size_t> position;   // in the request
};

// Whether the state of memory that a value shows is stored over. Whoever names a state gets that
// state, so a request for it beside what overwrites it gives a copy.
bool is_overwritten(const Versions& versions, const UOp& value) {
  const UOp version = versions.of(value);
  return version && versions.overwritten_by(version);
}
void copy_old_states(const Versions& versions, std::vector<UOp>& out, Prepared& work) {
  for (size_t i = 0; i < out.size(); ++i) {
    if (!out[i] || !is_overwritten(versions, out[i])) continue;
    work.values.push_back(out[i]);
    work.position.push_back(i);
  }
}

GraphCache<Executable>& executables() {
  static auto* cache = new GraphCache<Executable>(1024);
  return *cache;
}

// Programs that store into memory run one after the other: each must see what the others have done.
std::recursive_mutex& writing() {
  static auto& mutex = *new std::recursive_mutex;
  return mutex;
}

// Looks the program up, or makes it, and runs it.
void run_program(const std::vector<UOp>& values, const std::vector<UOp>& destinations,
                 const std::string& device, const VariableValues& variables) {
  const double start = now_seconds();
  Callified program = callify(values, destinations);
  const std::string key = fmt::format("{}/{}{}", device_runtime(device).target().name,
                                      options().cpu, options().noopt ? "/noopt" : "");
  dump_stage("callify", [&] { return to_text(program.body); });
  VariableValues bound = variables;
  std::shared_ptr<Executable> executable = executables().find(program.body, key);
  if (!executable) {
    if (options().verify >= 3) {
      const CheckCounts checks = check_callified(values, destinations, program);
      count([&](Counters& c) {
        c.checked_stages += checks.checked;
        c.unchecked_stages += checks.unchecked;
      });
    }
    program = take_out_literals(program, device, bound);
    executable = executables().find(program.body, key);
  }
  if (!executable) {
    executable = build_executable(program.body, device);
    executables().add(program.body, key, executable);
  }
  count([&](Counters& c) { c.schedule_seconds += now_seconds() - start; });
  executable->run(program.arguments, bound);
}

// The state of memory that an After shows can be its result, where nothing overwrites it.
UOp memory_shown(const Versions& versions, const UOp& value) {
  const UOp base = base_of(value);
  return value.is(Op::After) && base.is(Op::Buffer) && !is_overwritten(versions, value) ? base
                                                                                        : UOp();
}

// Computes values of which none has a result: a Buffer each.
std::vector<UOp> compute(const std::vector<UOp>& request, const VariableValues& variables,
                         bool checked = false) {
  std::vector<UOp> out(request.size());
  Prepared work;
  for (size_t i = 0; i < request.size(); ++i) {
    const UOp value = with_results(request[i]);
    out[i] = realized_buffer(value);
    if (out[i]) continue;
    if (options().verify >= 1) verify(value, VerifyLevel::Tensor, "the request");
    require_known_size(value);
    work.values.push_back(value);
    work.position.push_back(i);
  }
  const Versions versions(sink(work.values));
  copy_old_states(versions, out, work);
  // Before anything is made or written.
  const VariableValues bound = values_of_variables(work.values, variables);
  if (!checked) check_promises(work.values, variables);
  for (size_t k = 0; k < work.values.size(); ++k) {
    const UOp& value = work.values[k];
    const UOp memory = memory_shown(versions, value);
    UOp& result = out[work.position[k]];
    result = memory ? memory : make_buffer(value.shape(), value.dtype(), device_of(value));
    work.destinations.push_back(memory ? UOp() : result);
  }
  if (!work.values.empty())
    run_program(work.values, work.destinations, device_of(out[work.position[0]]), bound);
  return out;
}

void remember(const UOp& value, const UOp& buffer) {
  if (!(buffer == value) && !value.is(Op::Buffer) && worth_remembering(value))
    storage::set_result(value, buffer);
}

std::vector<UOp> compute_with_updates(const std::vector<UOp>& request,
                                      const VariableValues& variables) {
  check_promises(request, variables);  // these may run writes that the request waits for
  const Updates updates(request, worth_remembering);
  std::vector<UOp> out = compute(updates.values(), variables, true);
  updates.commit(out);
  for (size_t k = request.size(); k < out.size(); ++k) remember(updates.original(k), out[k]);
  return out;
}

}  // namespace

UOp buffer_from_host(const UOp& shape, DType dtype, const std::string& device, const void* data) {
  require_no_trace("allocating a tensor");
  const UOp buffer = make_buffer(shape, dtype, device);
  const auto memory = storage::memory(buffer);
  if (data != nullptr && memory->bytes() > 0)
    std::memcpy(memory->data(), data, static_cast<size_t>(memory->bytes()));
  return buffer;
}

std::shared_ptr<Memory> memory_of(const UOp& buffer) { return storage::memory(buffer); }
UOp realized_buffer(const UOp& value) {
  if (value.is(Op::Buffer) && storage::memory(value)) return value;
  const UOp buffer = storage::result(value);
  // What lies on no device follows the default one, which may have changed since.
  return buffer && buffer.device().name() == device_of(value) ? buffer : UOp();
}

std::vector<UOp> realize(const std::vector<UOp>& values, const VariableValues& variables) {
  if (values.empty()) return {};
  require_no_trace(fmt::format("realizing a tensor of shape {}", shape_text(values[0])));
  const bool writes = std::any_of(values.begin(), values.end(), has_effects);
  std::unique_lock lock(writing(), std::defer_lock);
  if (writes) lock.lock();
  std::vector<UOp> out(values.size()), request;
  std::vector<size_t> positions;
  std::unordered_map<UOp, size_t> first;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!first.emplace(values[i], i).second) continue;  // filled below from the first
    out[i] = realized_buffer(values[i]);
    if (out[i] && !writes) continue;  // a state that is written over beside it is copied
    request.push_back(values[i]);
    positions.push_back(i);
  }
  if (!request.empty()) {
    const std::vector<UOp> done =
        writes ? compute_with_updates(request, variables) : compute(request, variables);
    for (size_t k = 0; k < request.size(); ++k) {
      out[positions[k]] = done[k];
      remember(request[k], done[k]);
    }
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (!out[i]) out[i] = out[first.at(values[i])];
  return out;
}

std::vector<Kernel> schedule(const std::vector<UOp>& values) {
  std::vector<UOp> lazy, destinations;
  const Updates updates(values, worth_remembering);
  for (const UOp& v : updates.values()) {
    const UOp value = with_results(v);
    if (realized_buffer(value)) continue;
    lazy.push_back(value);
    destinations.push_back(
        value.is(Op::After) ? UOp()
                            : new_buffer(value.shape(), value.dtype(), Device(device_of(value))));
  }
  if (lazy.empty()) return {};
  return rangeify(split_large_reduces(callify(lazy, destinations).body));
}

void count(const std::function<void(Counters&)>& change) {
  const std::lock_guard lock(counter_state().mutex);
  change(counter_state().counters);
}
Counters counters() {
  const std::lock_guard lock(counter_state().mutex);
  return counter_state().counters;
}
void reset_counters() {
  const std::lock_guard lock(counter_state().mutex);
  counter_state().counters = {};
}
void clear_compile_cache() {
  executables().clear();
  forget_literals();
  clear_program_cache();
}

}  // namespace koine

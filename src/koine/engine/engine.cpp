#include "koine/engine/engine.hpp"

#include <algorithm>
#include <functional>
#include <mutex>

#include "koine/base/error.hpp"
#include "koine/base/options.hpp"
#include "koine/engine/compile.hpp"
#include "koine/engine/counting.hpp"
#include "koine/engine/first_nan.hpp"
#include "koine/engine/literals.hpp"
#include "koine/engine/prepare.hpp"
#include "koine/engine/promises.hpp"
#include "koine/engine/step.hpp"
#include "koine/engine/storage.hpp"
#include "koine/engine/updates.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/callify.hpp"
#include "koine/lower/cost.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/shard.hpp"
#include "koine/lower/split_reduce.hpp"
#include "koine/transform/function.hpp"

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

}  // namespace

UOp buffer_from_host(const UOp& shape, DType dtype, const std::string& device, const void* data,
                     AxisSet axes) {
  require_no_trace("allocating a tensor");
  const UOp buffer = storage::make_buffer(shape, dtype, {Device(device), axes});
  const auto memory = storage::memory(buffer);
  if (data != nullptr) memory->copy_in(data, 0, memory->bytes());
  return buffer;
}

UOp buffer_over(const UOp& shape, DType dtype, const void* data,
                std::shared_ptr<const void> owner) {
  require_no_trace("allocating a tensor");
  const UOp buffer = new_buffer(shape, dtype, Device("CPU"));
  storage::set_memory(buffer,
                      borrowed_memory(data, buffer.numel() * item_size(dtype), std::move(owner)));
  return buffer;
}

std::shared_ptr<Memory> memory_of(const UOp& buffer) { return storage::memory(buffer); }
UOp realized_buffer(const UOp& value) {
  if (value.is(Op::Buffer) && storage::memory(value)) return value;
  const UOp buffer = storage::result(value);
  // What lies on no device follows the default one, which may have changed since.
  return buffer && buffer.device().name() == device_of(value) ? buffer : UOp();
}

bool reads_borrowed(const UOp& value) {
  if (realized_buffer(value)) return false;
  bool found = false;
  toposort(value, [&](const UOp& u) {
    const UOp buffer = realized_buffer(u);
    found = found || (buffer && storage::memory(buffer)->is_borrowed());
    return !found && !buffer;
  });
  return found;
}

// Whoever holds a result asks for its size later: the Variables in it bring their values along.
void require_known_size(const UOp& value) {
  if (has_present_value(value.shape())) return;
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

bool calls_functions(const std::vector<UOp>& values) {
  return (sink(values).node()->ops_below & mask_of(Op::CustomFunction)) != 0;
}

// Whether some of these follow from memory that this request writes.
bool any_written(const std::vector<UOp>& promises) {
  const NodeList below = toposort(sink(promises));
  return std::any_of(below.begin(), below.end(),
                     [](const UOp& u) { return u.is(Op::After) || is_private_copy(u); });
}

// Steps that run once, and what stays of them.
class Realizer {
 public:
  static std::vector<UOp> compute(const std::vector<UOp>& values, const VariableValues& variables,
                                  const BeforeRun& before_run) {
    CapturedStep step(values, variables, CapturedStep::Checks::EachRun);
    if (before_run) before_run(step.skeleton_.reads_results);
    step.run();
    for (size_t i = 0; i < step.values_.size(); ++i)
      if (step.prepared_->outputs[i].lasting) storage::set_result(step.values_[i], step.made_[i]);
    return std::move(step.outputs_);
  }

  // In memory of their own: what they write goes to copies that nobody sees.
  static std::vector<UOp> compute_apart(const std::vector<UOp>& values,
                                        const VariableValues& variables) {
    const Updates updates(values, [](const UOp&) { return false; }, false);
    CapturedStep step(updates.values(), variables, CapturedStep::Checks::None);
    step.run();
    std::vector<UOp> out = std::move(step.outputs_);
    out.resize(values.size());
    return out;
  }

  // Programs that store into memory run one after the other: each sees what the others have done.
  static std::vector<UOp> compute_and_write(const std::vector<UOp>& values,
                                            const VariableValues& variables,
                                            const BeforeRun& before_run) {
    static auto& writing = *new std::recursive_mutex;
    const std::lock_guard lock(writing);
    // Positions that follow from writes of the request: those run, and are looked at, before.
    const bool apart = any_written(promises_of(values));
    if (apart) check_promises(values, variables);
    // A function of the user's may fail halfway: then all contents are still those of before.
    const bool in_place = !calls_functions(values);
    Lasting lasts;
    const Updates updates(values, std::ref(lasts), in_place);
    CapturedStep step(updates.values(), variables,
                      apart ? CapturedStep::Checks::None : CapturedStep::Checks::EachRun);
    if (before_run) before_run(step.skeleton_.reads_results);
    if (updates.write_in_place()) step.finish_what_is_begun();
    step.run();
    std::vector<UOp> out = std::move(step.outputs_);
    updates.commit(out);
    for (size_t k = 0; k < out.size(); ++k) {
      const UOp& value = updates.original(k);
      if (!(out[k] == value) && !value.is(Op::Buffer) && lasts(value))
        storage::set_result(value, out[k]);
    }
    out.resize(values.size());
    return out;
  }
};

// What was asked for where memory does not suffice: the largest value, and where it was made.
[[noreturn]] void raise_too_large(const Error& error, const std::vector<UOp>& values) {
  const UOp& largest =
      *std::max_element(values.begin(), values.end(),
                        [](const UOp& a, const UOp& b) { return elements_of(a) < elements_of(b); });
  const std::string line = origin_text(largest);
  raise(ErrorKind::Memory, "{}; this was to compute {} of shape {}{}{}", error.what(),
        dtype_name(largest.dtype()), shape_text(largest), line.empty() ? "" : ", made at ", line);
}

std::vector<UOp> realize(const std::vector<UOp>& values, const VariableValues& variables,
                         const BeforeRun& before_run) try {
  for (const UOp& v : values)
    if (!v.has_concrete_shape()) require_known_size(v);
  if (options().nan)
    require_finite(values, [&](const std::vector<UOp>& apart) {
      return Realizer::compute_apart(apart, variables);
    });
  const bool writes = std::any_of(values.begin(), values.end(), has_effects);
  return writes ? Realizer::compute_and_write(values, variables, before_run)
                : Realizer::compute(values, variables, before_run);
} catch (const Error& e) {
  if (e.kind() != ErrorKind::Memory || values.empty()) throw;
  raise_too_large(e, values);
}

UOp host_program(const std::vector<UOp>& values, const CompileOptions& given) {
  if (values.empty()) return UOp::make(Op::Linear, {});
  std::vector<UOp> lazy, destinations;
  Lasting lasts;
  const Updates updates(values, std::ref(lasts));
  for (const UOp& value : with_results(updates.values(), device_of(values[0]))) {
    if (realized_buffer(value)) continue;
    lazy.push_back(value);
    const Placement place = placement_of(value);
    destinations.push_back(
        value.is(Op::After) ? UOp()
                            : new_buffer(value.shape(), value.dtype(), place.device, place.axes));
  }
  if (lazy.empty()) return UOp::make(Op::Linear, {});
  const UOp values_program = callify(lazy, destinations, given).body;
  const CompileOptions how = options_for(values_program, device_of(values[0]), given);
  const UOp program = on_each_device(values_program, how);
  return rangeify(split_large_reduces(program, how), how);
}

std::vector<Kernel> schedule(const std::vector<UOp>& values) {
  return kernels_of(host_program(values));
}

std::shared_ptr<Program> program_of(const Kernel& launch) {
  KOINE_REQUIRE(is_kernel_body(launch.ast), Value, "the host runs '{}': it is no kernel",
                launch.reason);
  const Device device = launch.device();
  DeviceRuntime& runtime = device_runtime(device ? device : Device(default_device()));
  return compile_kernels({{launch.ast, &runtime}}, {}, compile_options())[0];
}

void count(const std::function<void(Counters&)>& change) {
  const std::lock_guard lock(counter_state().mutex);
  change(counter_state().counters);
}
void count_checks(const CheckCounts& checks) {
  count([&](Counters& c) {
    c.checked_stages += checks.checked;
    c.unchecked_stages += checks.unchecked;
  });
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
  forget_prepared();
  forget_literals();
  clear_program_cache();
}

}  // namespace koine

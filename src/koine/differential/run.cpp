#include "koine/differential/run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include "koine/base/error.hpp"
#include "koine/interp/bounded.hpp"
#include "koine/interp/host_function.hpp"
#include "koine/interp/loop.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/loop.hpp"

namespace koine {
namespace {

using Variables = std::unordered_map<std::string, int64_t>;  // values by name

template <class Storages>
Storage* find(Storages& storages, const UOp& leaf) {
  for (Storage& s : storages)
    if (s.leaf == leaf) return &s;
  return nullptr;
}

// What nobody has written yet; no value may depend on it.
Array temporary(const UOp& buffer, const Setting& setting) {
  Array out{buffer.dtype(), {}, {}, {}};
  for (const UOp& d : buffer.shape().src())
    out.sizes.push_back(evaluate_index(d, setting.variables));
  const Bits garbage = is_float(out.dtype) ? double_to_bits(out.dtype, 12345) : 1;
  out.data.assign(static_cast<size_t>(out.numel()), garbage);
  return out;
}

Bindings bindings_of(const UOp& graph, const Setting& setting) {
  Bindings out;
  for (const Storage& s : setting.memory) {
    Array a{s.dtype, s.sizes, {}, {}};
    for (int64_t i = 0; i < a.numel(); ++i)
      a.data.push_back(read_element(s.bytes.data(), s.dtype, i));
    out.emplace(s.leaf, std::move(a));
  }
  for (const UOp& u : toposort(graph)) {
    if (is_variable(u)) {
      const int64_t number =
          is_bound(u) ? bound_value(u) : setting.variables.at(u.as<BufferArg>().name);
      out.emplace(u, Array{u.dtype(), {}, {static_cast<Bits>(number)}, {}});
    }
    if (u.is(Op::Buffer) && !out.contains(u)) out.emplace(u, temporary(u, setting));
  }
  return out;
}

UOp base_of(const UOp& effect) {
  UOp base = effect;
  while (base.is(Op::After) || base.is(Op::Store)) base = base.src(0);
  return base;
}

// What a program leaves in a leaf: its last version. An After may store into the memory of others
// than the one that it passes on, which has no version of its own then.
UOp last_version(const Versions& versions, const UOp& leaf) {
  UOp version = leaf;
  while (const UOp writer = versions.overwritten_by(version)) {
    if (!(versions.of(writer) == writer) || !(base_of(writer) == leaf))
      return after(version, writer.src().subspan(1));
    version = writer;
  }
  return version;
}

// Every value sees the memory of before; what it becomes is written afterwards. Two last versions
// of one memory leave open which comes first. With liberties, how far default mode may be from it.
void run_program(const UOp& graph, Setting& setting, const Liberties& liberties) {
  const Bindings bindings = bindings_of(graph, setting);
  const Versions versions(graph);
  std::vector<std::pair<Storage*, UOp>> results;
  for (Storage& s : setting.memory)
    if (const UOp last = last_version(versions, s.leaf); !(last == s.leaf))
      results.emplace_back(&s, last);
  for (const UOp& effect : graph.src()) {
    if (!effect.is(Op::Store)) continue;
    Storage* to = find(setting.memory, base_of(effect));
    KOINE_REQUIRE(to != nullptr, Value, "a program stores to Params, got {}",
                  op_name(base_of(effect).op()));
    for (const auto& [written, value] : results)
      if (written == to) throw Undetermined("two versions of one buffer");
    results.emplace_back(to, effect.src(1));
  }
  std::vector<BoundedArray> values;
  for (const auto& [to, value] : results)
    values.push_back(liberties.any() ? interpret_bounded(value, bindings)
                                     : BoundedArray{interpret(value, bindings), {}});
  for (size_t k = 0; k < results.size(); ++k) {
    Storage& to = *results[k].first;
    const Array& value = values[k].value;
    for (size_t i = 0; i < value.data.size(); ++i)
      write_element(to.bytes.data(), to.dtype, static_cast<int64_t>(i),
                    value.is_valid(i) ? value.data[i] : 0);
    to.deviations = values[k].error;
  }
}

// Runs one kernel on storages, whose deviations go in and out.
void run_on(const UOp& kernel, const std::vector<Storage*>& slots, std::vector<std::byte*> places,
            const Variables& variables, const Liberties& liberties) {
  KernelArguments arguments;
  arguments.variables = variables;
  arguments.buffers = std::move(places);
  Deviations deviations{liberties, {}};
  for (const Storage* s : slots) {
    arguments.buffer_bytes.push_back(s != nullptr ? static_cast<int64_t>(s->bytes.size()) : 0);
    deviations.buffers.push_back(s != nullptr ? s->deviations : std::vector<double>());
  }
  interpret_kernel(kernel, arguments, &deviations);
  for (size_t i = 0; i < slots.size(); ++i)
    if (slots[i] != nullptr) slots[i]->deviations = deviations.buffers[i];
}

// The arenas of a planned schedule: a device's is as large as what lies in it needs.
class Arenas {
 public:
  explicit Arenas(const std::unordered_map<std::string, int64_t>& variables)
      : variables_(variables) {}
  // Null for what has no place in one.
  std::byte* place(const UOp& buffer) {
    const int64_t offset = buffer.as<BufferArg>().offset;
    if (!buffer.is(Op::Buffer) || offset < 0) return nullptr;
    return rooms_[device_name(buffer)].data() + offset;
  }
  int64_t bytes_of(const UOp& buffer) const {
    int64_t bytes = item_size(buffer.dtype());
    for (const UOp& d : buffer.shape().src()) bytes *= evaluate_index(d, variables_);
    return bytes;
  }
  void make_room(const UOp& buffer) {
    const int64_t offset = buffer.as<BufferArg>().offset;
    if (!buffer.is(Op::Buffer) || offset < 0) return;
    auto& room = rooms_[device_name(buffer)];
    room.resize(std::max(room.size(), static_cast<size_t>(offset + bytes_of(buffer))));
  }

 private:
  static std::string device_name(const UOp& buffer) {
    return buffer.device() ? buffer.device().name() : std::string();
  }
  const std::unordered_map<std::string, int64_t>& variables_;
  std::unordered_map<std::string, std::vector<std::byte>> rooms_;
};

// Of what it makes nothing is known where its arguments are not known to the bit.
void run_function(const UOp& call, const std::vector<Storage*>& slots,
                  const std::vector<std::byte*>& places,
                  const std::unordered_map<std::string, int64_t>& variables) {
  std::vector<HostResult> results;
  std::vector<HostArgument> arguments;
  bool exact = true;
  for (size_t k = 0; k < slots.size(); ++k) {
    const UOp& b = call.src(k + 1);
    std::vector<int64_t> sizes;
    for (const UOp& d : b.shape().src()) sizes.push_back(evaluate_index(d, variables));
    const bool stored = k < call.src(0).src().size();
    if (stored)
      results.push_back({b.dtype(), sizes, places[k]});
    else
      arguments.push_back({b.dtype(), sizes, places[k]});
    const auto& deviations = slots[k]->deviations;
    exact = exact && (stored || std::all_of(deviations.begin(), deviations.end(),
                                            [](double d) { return d == 0; }));
  }
  run_host_function(call.src(0), results, arguments);
  for (size_t k = 0; k < results.size(); ++k)
    slots[k]->deviations.assign(exact ? 0 : static_cast<size_t>(results[k].numel()), undetermined);
}

void run_schedule(const UOp& graph, Setting& setting, const Liberties& liberties);

// A loop, on the storages of its Call: what each step finds and leaves is copied in and out.
class LoopRunner {
 public:
  LoopRunner(const UOp& call, std::vector<Storage*> slots,
             const std::unordered_map<std::string, int64_t>& variables, const Liberties& liberties)
      : loop_(call), slots_(std::move(slots)), liberties_(liberties) {
    variables_ = variables;
    results_ = loop_result_count(loop_.body, slots_.size());
    carries_ = loop_.positions(LoopRole::Carry);
  }

  void run() {
    if (loop_.body.is(Op::Switch)) return run_branch();
    for (size_t i = 0; i < carries_.size(); ++i) pass(*slots_[results_ + carries_[i]], *slots_[i]);
    if (loop_.body.is(Op::While)) return repeat();
    const int64_t count = evaluate_index(loop_.count, variables_);
    for (int64_t step = 0; step < count; ++step) {
      variables_[step_variable(loop_.count).as<BufferArg>().name] =
          loop_.reversed ? count - 1 - step : step;
      run_function(loop_.step());
    }
  }

 private:
  static void pass(const Storage& from, Storage& to) {
    std::copy_n(from.bytes.begin(), to.bytes.size(), to.bytes.begin());
    to.deviations = from.deviations;
  }

  // A step finds the carries, which lie in the results here, in the arguments.
  Storage* found_at(size_t slot) {
    for (size_t i = 0; i < carries_.size(); ++i)
      if (slot == results_ + carries_[i]) return slots_[i];
    return slot < slots_.size() ? slots_[slot] : &flag_;
  }
  // Of a While; what lies behind it is a function's own.
  size_t flag_slot() const { return slots_.size() - (loop_.body.is(Op::While) ? 0 : 1); }
  Storage own_memory(const UOp& param) const {
    int64_t bytes = item_size(param.dtype());
    for (const UOp& d : param.shape().src()) bytes *= evaluate_index(d, variables_);
    return {param, param.dtype(), {}, std::vector<std::byte>(static_cast<size_t>(bytes)), {}};
  }

  void run_function(const UOp& function) {
    Setting inside;
    inside.variables = variables_;
    for (const UOp& call : function.src())
      for (const UOp& b : call.src().subspan(1)) {
        if (!b.is(Op::Param) || is_variable(b) || find(inside.memory, b) != nullptr) continue;
        const auto slot = static_cast<size_t>(b.as<BufferArg>().slot);
        Storage s = slot > flag_slot() ? own_memory(b) : *found_at(slot);
        s.leaf = b;
        inside.memory.push_back(std::move(s));
      }
    run_schedule(function, inside, liberties_);
    for (const Storage& s : inside.memory) {
      const auto slot = static_cast<size_t>(s.leaf.as<BufferArg>().slot);
      if (slot < results_)
        pass(s, *slots_[slot]);
      else if (loop_.body.is(Op::While) && slot == flag_slot())
        pass(s, flag_);
    }
  }

  Bits decided(const Storage& s) const {
    if (!s.deviations.empty() && s.deviations[0] != 0)
      throw Undetermined("a condition is not decided");
    return read_element(s.bytes.data(), s.dtype, 0);
  }

  void repeat() {
    for (int64_t steps = 0; steps < most_interpreted_steps; ++steps) {
      run_function(loop_.functions[0]);
      if ((decided(flag_) & 1) == 0) return;
      run_function(loop_.step());
    }
    throw Undetermined("a condition that holds on");
  }

  void run_branch() {
    const int64_t asked = bits_to_int(DType::Int32, decided(*slots_[results_]));
    const auto last = static_cast<int64_t>(loop_.functions.size()) - 1;
    run_function(loop_.functions[static_cast<size_t>(std::clamp<int64_t>(asked, 0, last))]);
  }

  Loop loop_;
  std::vector<Storage*> slots_;
  std::unordered_map<std::string, int64_t> variables_;
  Liberties liberties_;
  size_t results_ = 0;
  std::vector<size_t> carries_;
  Storage flag_{{}, DType::Bool, {}, std::vector<std::byte>(1), {}};
};

// What lies in an arena has its bytes there.
void run_loop(const UOp& call, const std::vector<Storage*>& slots,
              const std::vector<std::byte*>& places,
              const std::unordered_map<std::string, int64_t>& variables,
              const Liberties& liberties) {
  auto each = [&](auto&& copy) {
    for (size_t k = 0; k < slots.size(); ++k)
      if (places[k] != slots[k]->bytes.data()) copy(*slots[k], places[k]);
  };
  each([](Storage& s, const std::byte* place) {
    std::copy_n(place, s.bytes.size(), s.bytes.data());
  });
  LoopRunner(call, slots, variables, liberties).run();
  each([](Storage& s, std::byte* place) { std::copy_n(s.bytes.data(), s.bytes.size(), place); });
}

// Those of the program, with those that a Call binds.
Variables variables_of(const UOp& call, const Variables& of_program) {
  Variables out = of_program;
  for (const UOp& v : call.src().subspan(1))
    if (is_bound(v)) out[v.as<BufferArg>().name] = bound_value(v);
  return out;
}

void run_schedule(const UOp& graph, Setting& setting, const Liberties& liberties) {
  Arenas arenas(setting.variables);
  for (const UOp& call : graph.src())
    for (const UOp& b : call.src().subspan(1))
      if (!is_variable(b)) arenas.make_room(b);
  std::deque<Storage> temporaries;
  for (const UOp& call : graph.src()) {
    std::vector<Storage*> slots;
    std::vector<std::byte*> places;
    for (const UOp& b : call.src().subspan(1)) {
      if (is_variable(b)) continue;
      Storage* s = b.is(Op::Buffer) ? find(temporaries, b) : find(setting.memory, b);
      if (s == nullptr) {
        const auto bytes = static_cast<size_t>(arenas.bytes_of(b));
        temporaries.push_back({b, b.dtype(), {}, std::vector<std::byte>(bytes), {}});
        s = &temporaries.back();
      }
      slots.push_back(s);
      std::byte* const planned = arenas.place(b);
      places.push_back(planned != nullptr ? planned : s->bytes.data());
    }
    const UOp& body = call.src(0);
    if (is_loop(body)) {
      run_loop(call, slots, places, setting.variables, liberties);
    } else if (body.is(Op::CustomFunction) && body.as<std::string>() != copy_function) {
      run_function(call, slots, places, setting.variables);
    } else if (body.is(Op::CustomFunction)) {
      std::memcpy(places[0], places[1], slots[0]->bytes.size());
      slots[0]->deviations = slots[1]->deviations;
    } else {
      run_on(call.src(0), slots, places, variables_of(call, setting.variables), liberties);
    }
  }
}

// The storages of a kernel by slot; null where a slot is not used.
std::vector<Storage*> by_slot(Setting& setting) {
  std::vector<Storage*> out;
  for (Storage& s : setting.memory) {
    const auto slot = static_cast<size_t>(s.leaf.as<BufferArg>().slot);
    if (slot >= out.size()) out.resize(slot + 1);
    out[slot] = &s;
  }
  return out;
}

KernelArguments arguments_of(const std::vector<Storage*>& slots, const Setting& setting) {
  KernelArguments out;
  out.variables = setting.variables;
  for (Storage* s : slots) {
    out.buffers.push_back(s != nullptr ? s->bytes.data() : nullptr);
    out.buffer_bytes.push_back(s != nullptr ? static_cast<int64_t>(s->bytes.size()) : 0);
  }
  return out;
}

Outcome guarded(const Setting& setting, const std::function<void(Setting&)>& run) {
  Outcome out;
  out.after = setting;
  try {
    run(out.after);
  } catch (const Undetermined& e) {
    out.state = Outcome::State::Undetermined;
    out.failure = e.what();
  } catch (const std::exception& e) {
    out.state = Outcome::State::Failed;
    out.failure = e.what();
  }
  return out;
}

bool same_element(DType dtype, Bits a, Bits b, double deviation) {
  if (a == b || deviation == undetermined) return true;
  if (!is_float(dtype)) return false;
  const double x = bits_to_double(dtype, a), y = bits_to_double(dtype, b);
  if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
  if (x == 0 && y == 0) return deviation > 0;
  return std::abs(x - y) <= deviation;
}

double at(const std::vector<double>& list, size_t i) { return i < list.size() ? list[i] : 0; }

}  // namespace

Outcome run_graph(const UOp& graph, Level level, const Setting& setting,
                  const Liberties& liberties) {
  return guarded(setting, [&](Setting& s) {
    switch (level) {
      case Level::Program:
        return run_program(graph, s, liberties);
      case Level::Schedule:
        return run_schedule(graph, s, liberties);
      case Level::Kernel: {
        const std::vector<Storage*> slots = by_slot(s);
        return run_on(graph, slots, arguments_of(slots, s).buffers, s.variables, liberties);
      }
      case Level::Linear: {
        KernelArguments arguments = arguments_of(by_slot(s), s);
        const int64_t threads = signature_of(graph).threads;
        for (; arguments.thread < threads; ++arguments.thread) interpret_linear(graph, arguments);
        return;
      }
    }
  });
}

Outcome run_compiled(const CompiledKernel& kernel, const Setting& setting) {
  return guarded(setting, [&](Setting& s) { kernel(arguments_of(by_slot(s), s)); });
}

std::string difference_of(const Outcome& expected, const Outcome& got) {
  if (got.state == Outcome::State::Failed) return got.failure;
  if (got.state == Outcome::State::Undetermined) return "";
  for (size_t k = 0; k < expected.after.memory.size(); ++k) {
    const Storage &a = expected.after.memory[k], &b = got.after.memory[k];
    if (a.bytes == b.bytes) continue;
    const auto count = static_cast<int64_t>(a.bytes.size()) / item_size(a.dtype);
    for (int64_t i = 0; i < count; ++i) {
      const Bits x = read_element(a.bytes.data(), a.dtype, i),
                 y = read_element(b.bytes.data(), a.dtype, i);
      const auto n = static_cast<size_t>(i);
      const double deviation = std::max(at(a.deviations, n), at(b.deviations, n));
      if (same_element(a.dtype, x, y, deviation)) continue;
      return fmt::format("element {} of slot {} is {} ({:#x}) instead of {} ({:#x}){}", i,
                         a.leaf.as<BufferArg>().slot, bits_to_double(a.dtype, y), y,
                         bits_to_double(a.dtype, x), x,
                         deviation > 0 ? fmt::format(", {:.3g} are allowed", deviation) : "");
    }
  }
  return "";
}

std::string setting_text(const Setting& setting) {
  std::string out;
  for (const auto& [name, value] : setting.variables)
    out += fmt::format("  {} = {}\n", name, value);
  for (const Storage& s : setting.memory) {
    out += fmt::format("  slot {}: {}", s.leaf.as<BufferArg>().slot, dtype_name(s.dtype));
    const auto count = static_cast<int64_t>(s.bytes.size()) / item_size(s.dtype);
    for (int64_t i = 0; i < std::min<int64_t>(count, 64); ++i)
      out += fmt::format(" {}", bits_to_double(s.dtype, read_element(s.bytes.data(), s.dtype, i)));
    out += count > 64 ? fmt::format(" ... ({} elements)\n", count) : "\n";
  }
  return out;
}

}  // namespace koine

#include "koine/engine/compiled_program.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "koine/base/bytes.hpp"
#include "koine/engine/compile.hpp"
#include "koine/engine/step.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// Another number for another form, so that old bytes are refused.
constexpr std::string_view heading = "koine program 1\n";

ProgramPort port_of(const std::string& name, const UOp& value, const UOp& buffer) {
  KOINE_REQUIRE(value.has_concrete_shape(), Value,
                "compile: '{}' has the symbolic shape {}: pad() it to its largest shape", name,
                shape_text(value));
  return {name, value.sizes(), value.dtype(), buffer.device().name()};
}

std::string names_of(const std::vector<ProgramPort>& ports) {
  std::vector<std::string> out;
  for (const ProgramPort& p : ports)
    out.push_back(fmt::format("{} ({} of shape ({}) on {})", p.name, dtype_name(p.dtype),
                              fmt::join(p.sizes, ", "), p.device));
  return out.empty() ? "none" : fmt::format("{}", fmt::join(out, ", "));
}

void write_ports(ByteWriter& write, const std::vector<ProgramPort>& ports) {
  write(uint64_t{ports.size()});
  for (const ProgramPort& p : ports) {
    write(p.name);
    write(uint64_t{p.sizes.size()});
    for (const int64_t n : p.sizes) write(static_cast<uint64_t>(n));
    write(dtype_name(p.dtype));
    write(p.device);
  }
}

DType read_dtype(ByteReader& read) {
  const std::string name = read.text();
  const auto dtype = dtype_from_name(name);
  KOINE_REQUIRE(dtype, Value, "compiled program: it has a dtype '{}'", name);
  return *dtype;
}

std::vector<ProgramPort> read_ports(ByteReader& read) {
  std::vector<ProgramPort> out(read.word());
  for (ProgramPort& p : out) {
    p.name = read.text();
    p.sizes.resize(read.word());
    for (int64_t& n : p.sizes) n = static_cast<int64_t>(read.word());
    p.dtype = read_dtype(read);
    p.device = read.text();
  }
  return out;
}

UOp new_memory(const ProgramPort& port, const void* content) {
  return buffer_from_host(shape_of(port.sizes), port.dtype, port.device, content);
}

std::string bytes_in(const UOp& buffer) {
  const std::shared_ptr<Memory> memory = memory_of(buffer);
  std::string out(static_cast<size_t>(memory->bytes()), '\0');
  memory->copy_out(out.data(), 0, memory->bytes());
  return out;
}

}  // namespace

UOp memory_behind(UOp value) {
  while (value.is(Op::Reshape)) value = UOp(value.src(0));
  return realized_buffer(value);
}

CompiledProgram::CompiledProgram(const std::map<std::string, UOp>& outputs,
                                 const std::map<std::string, UOp>& inputs)
    : how_(compile_options()) {
  KOINE_REQUIRE(!outputs.empty(), Value, "compile: there is no value to compile");
  std::vector<UOp> values;
  for (const auto& [name, value] : outputs) values.push_back(value);
  const CapturedStep step(values);
  device_ = step.outputs_[0].device().name();
  std::map<const Node*, Slot> ports;
  for (const auto& [name, value] : inputs) {
    const UOp buffer = memory_behind(value);
    KOINE_REQUIRE(
        buffer, Value,
        "compile: input '{}' is not in memory: realize() it, or contiguous() of it, first", name);
    ports.emplace(buffer.node(), Slot{Slot::Kind::Input, inputs_.size(), {}});
    inputs_.push_back(port_of(name, value, buffer));
  }
  std::set<const Node*> made;
  for (size_t k = 0; k < step.made_.size(); ++k)
    if (step.prepared_->outputs[k].kind == Prepared::Output::Kind::Made)
      made.insert(step.made_[k].node());
  for (const auto& [name, value] : outputs) {
    const UOp& buffer = step.outputs_[outputs_.size()];
    if (made.contains(buffer.node()))
      ports.emplace(buffer.node(), Slot{Slot::Kind::Output, outputs_.size(), {}});
    outputs_.push_back(port_of(name, value, buffer));
  }
  auto slot_of = [&](const UOp& buffer) {
    const auto it = ports.find(buffer.node());
    return it != ports.end() ? it->second : Slot{Slot::Kind::Own, 0, buffer};
  };
  for (const UOp& buffer : step.arguments_) slots_.push_back(slot_of(buffer));
  for (const UOp& buffer : step.outputs_) results_.push_back(slot_of(buffer));
  for (size_t i = 0; i < inputs_.size(); ++i) {
    auto reads = [&](const Slot& s) { return s.kind == Slot::Kind::Input && s.port == i; };
    KOINE_REQUIRE(std::any_of(slots_.begin(), slots_.end(), reads) ||
                      std::any_of(results_.begin(), results_.end(), reads),
                  Value,
                  "compile: no value reads input '{}': what was computed from it before is a "
                  "constant now; make the values anew",
                  inputs_[i].name);
  }
  executable_ = step.prepared_->program.executable;
  literals_ = step.prepared_->program.literals;
}

std::string CompiledProgram::to_bytes() const {
  ByteWriter write;
  write(uint64_t{how_.strict} | uint64_t{how_.noopt} << 1);
  write(how_.cpu);
  write(device_);
  write_ports(write, inputs_);
  write_ports(write, outputs_);
  write(uint64_t{literals_.size()});
  for (const auto& [name, value] : literals_) {
    write(name);
    write(static_cast<uint64_t>(value));
  }
  std::vector<UOp> own;
  for (const auto* list : {&slots_, &results_}) {
    write(uint64_t{list->size()});
    for (const Slot& s : *list) {
      size_t number = s.port;
      if (s.kind == Slot::Kind::Own) {
        const auto it = std::find(own.begin(), own.end(), s.buffer);
        number = static_cast<size_t>(it - own.begin());
        if (it == own.end()) own.push_back(s.buffer);
      }
      write(static_cast<uint64_t>(s.kind));
      write(uint64_t{number});
    }
  }
  write(uint64_t{own.size()});
  for (const UOp& buffer : own) {
    write_ports(write, {{"", buffer.sizes(), buffer.dtype(), buffer.device().name()}});
    write(bytes_in(buffer));
  }
  write(uint64_t{executable_ ? 1u : 0u});
  if (!executable_) return write.take(heading);
  write(to_text(schedule()));
  std::set<std::pair<const Program*, std::string>> seen;  // equal kernels are one
  std::vector<std::array<std::string, 3>> kernels;
  executable_->each_program([&](const UOp& kernel, DeviceRuntime& device, const Program& program) {
    if (seen.emplace(&program, device.name()).second)
      kernels.push_back({to_text(kernel), device.name(),
                         koine::to_bytes(device.compiler().compile(program.kernel()))});
  });
  write(uint64_t{kernels.size()});
  for (const auto& parts : kernels)
    for (const std::string& part : parts) write(part);
  return write.take(heading);
}

CompiledProgram::CompiledProgram(std::string_view bytes) {
  ByteReader read(bytes, heading, "compiled program");
  const uint64_t flags = read.word();
  how_ = {(flags & 1) != 0, (flags & 2) != 0, compile_options().verify, read.text()};
  device_ = read.text();
  inputs_ = read_ports(read);
  outputs_ = read_ports(read);
  for (uint64_t n = read.word(); n > 0; --n) {
    const std::string name = read.text();
    literals_[name] = static_cast<int64_t>(read.word());
  }
  for (auto* list : {&slots_, &results_}) {
    list->resize(read.word());
    for (Slot& s : *list) {
      s.kind = static_cast<Slot::Kind>(read.word());
      s.port = read.word();
    }
  }
  std::vector<UOp> own;
  for (uint64_t n = read.word(); n > 0; --n) {
    const ProgramPort port = read_ports(read).at(0);
    const std::string content = read.text();
    own.push_back(new_memory(port, content.data()));
  }
  for (auto* list : {&slots_, &results_})
    for (Slot& s : *list)
      if (s.kind == Slot::Kind::Own) s.buffer = own.at(s.port);
  if (read.word() == 0) return;
  const UOp schedule = parse(read.text());
  for (uint64_t n = read.word(); n > 0; --n) {
    const UOp kernel = parse(read.text());
    DeviceRuntime& device = device_runtime(read.text());
    add_program({kernel, &device}, how_, device.compiler().load(blob_from(read.text())));
  }
  executable_ =
      std::make_shared<const Executable>(PlannedProgram{schedule}, device_, StageChange{}, how_);
}

namespace {

// The memory of an input.
UOp fitting(const ProgramPort& port, const UOp& value) {
  const UOp buffer = memory_behind(value);
  KOINE_REQUIRE(buffer, Value, "compiled program: input '{}' is not in memory: realize() it first",
                port.name);
  const bool fits = value.has_concrete_shape() && value.sizes() == port.sizes &&
                    value.dtype() == port.dtype && buffer.device().name() == port.device;
  KOINE_REQUIRE(fits, Value,
                "compiled program: input '{}' is {} of shape ({}) on {}, not {} of shape {} on {}",
                port.name, dtype_name(port.dtype), fmt::join(port.sizes, ", "), port.device,
                dtype_name(value.dtype()), shape_text(value), buffer.device().name());
  return buffer;
}

}  // namespace

std::map<std::string, UOp> CompiledProgram::run(const std::map<std::string, UOp>& inputs,
                                                const VariableValues& variables) {
  for (const auto& [name, buffer] : inputs)
    KOINE_REQUIRE(std::any_of(inputs_.begin(), inputs_.end(),
                              [&, &n = name](const ProgramPort& p) { return p.name == n; }),
                  Key, "compiled program: it has no input '{}'; its inputs are {}", name,
                  names_of(inputs_));
  std::vector<UOp> given, made;
  for (const ProgramPort& p : inputs_) {
    const auto it = inputs.find(p.name);
    KOINE_REQUIRE(it != inputs.end(), Key,
                  "compiled program: input '{}' is missing; its inputs are {}", p.name,
                  names_of(inputs_));
    given.push_back(fitting(p, it->second));
  }
  for (const ProgramPort& p : outputs_) made.push_back(new_memory(p, nullptr));
  auto memory_at = [&](const Slot& s) -> const UOp& {
    return s.kind == Slot::Kind::Input    ? given.at(s.port)
           : s.kind == Slot::Kind::Output ? made.at(s.port)
                                          : s.buffer;
  };
  if (executable_) {
    if (!submission_) submission_.emplace(executable_);
    for (size_t k = 0; k < slots_.size(); ++k) submission_->set_argument(k, memory_at(slots_[k]));
    VariableValues all = literals_;
    all.insert(variables.begin(), variables.end());
    for (const auto& [name, value] : all) submission_->set_variable(name, value);
    KOINE_REQUIRE(submission_->run(), Index,
                  "compiled program: a position that an input holds is out of range");
  }
  std::map<std::string, UOp> out;
  for (size_t i = 0; i < outputs_.size(); ++i)
    out.emplace(outputs_[i].name, memory_at(results_[i]));
  return out;
}

const UOp& CompiledProgram::schedule() const {
  static const auto& nothing = *new const UOp(UOp::make(Op::Linear, {}));
  return executable_ ? executable_->schedule() : nothing;
}

std::string CompiledProgram::source() const {
  std::string out;
  std::set<const Program*> seen;
  if (executable_)
    executable_->each_program([&](const UOp&, DeviceRuntime&, const Program& program) {
      if (seen.insert(&program).second) out += program.source() + "\n";
    });
  return out;
}

}  // namespace koine

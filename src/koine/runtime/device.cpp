#include "koine/runtime/device.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "koine/base/error.hpp"
#include "koine/base/interrupt.hpp"
#include "koine/base/options.hpp"
#include "koine/interp/interp.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/render/cstyle.hpp"
#include "koine/runtime/allocator.hpp"
#include "koine/runtime/cl/device.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "koine/runtime/ranks/ranks.hpp"

namespace koine {
namespace {

std::array<UOp, 3> with_ones(std::array<UOp, 3> sizes) {
  for (UOp& size : sizes)
    if (!size) size = index_const(1);
  return sizes;
}

}  // namespace

int64_t Program::threads() const { return signature_of(kernel_.linear).threads; }
std::array<UOp, 3> Program::grid() const { return with_ones(signature_of(kernel_.linear).grid); }
std::array<UOp, 3> Program::group() const { return with_ones(signature_of(kernel_.linear).group); }

std::vector<std::string> Program::variables() const {
  return signature_of(kernel_.linear).variables;
}

namespace {

// INTERP runs linear programs in the reference interpreter, SIMT those that are shaped for a GPU;
// NULL compiles and runs nothing, so that the whole compiler is tested without a machine.
enum class Interpreted : uint8_t { Plain, Simt, Not };

class InterpProgram : public Program {
 public:
  InterpProgram(LoweredKernel kernel, Interpreted how) : Program(std::move(kernel)), how_(how) {}
  std::string_view device() const override {
    return how_ == Interpreted::Plain ? "INTERP" : how_ == Interpreted::Simt ? "SIMT" : "NULL";
  }
  void run(const Launch& launch) override {
    if (how_ == Interpreted::Not) return;
    KernelArguments arguments;
    arguments.buffers.assign(launch.buffers.begin(), launch.buffers.end());
    arguments.buffer_bytes.assign(launch.buffer_bytes.begin(), launch.buffer_bytes.end());
    const Signature signature = signature_of(kernel_.linear);
    for (size_t i = 0; i < signature.variables.size(); ++i)
      arguments.variables[signature.variables[i]] = launch.variables[i];
    for (arguments.thread = 0; arguments.thread < signature.threads; ++arguments.thread)
      interpret_linear(kernel_.linear, arguments);
  }
  std::string source() const override {
    return render(how_ == Interpreted::Simt ? "cuda" : "c", kernel_.name, kernel_.linear, false);
  }

 private:
  Interpreted how_;
};

// The linear program is the code.
class InterpCompiler : public Compiler {
 public:
  explicit InterpCompiler(Interpreted how)
      : plain_(target_of(how, false)), strict_(target_of(how, true)), how_(how) {}
  const Target& target(const CompileOptions& how) const override {
    return how.strict ? strict_ : plain_;
  }
  Blob compile(LoweredKernel kernel) override {
    std::string made_for = blob_target(target(kernel.how));
    return {std::move(kernel), std::move(made_for), {}};
  }
  std::shared_ptr<Program> load(Blob blob) override {
    require_target(blob, target(blob.kernel.how));
    return std::make_shared<InterpProgram>(std::move(blob.kernel), how_);
  }

 private:
  static Target target_of(Interpreted how, bool strict) {
    return how == Interpreted::Simt ? simt_target(strict) : generic_target(strict);
  }

  Target plain_, strict_;
  Interpreted how_;
};

class InterpDevice : public DeviceRuntime {
 public:
  InterpDevice(std::string name, Interpreted how)
      : name_(std::move(name)), allocator_(name_), compiler_(how), runs_(how != Interpreted::Not) {}
  const std::string& name() const override { return name_; }
  Allocator& allocator() override { return allocator_; }
  Compiler& compiler() override { return compiler_; }
  Queue& queue() override { return queue_; }
  bool computes() const override { return runs_; }

 private:
  std::string name_;
  CachingAllocator allocator_;
  InterpCompiler compiler_;
  HostQueue queue_;
  bool runs_;
};

template <Interpreted how>
std::unique_ptr<DeviceRuntime> make_interp_device(const std::string& name) {
  return std::make_unique<InterpDevice>(name, how);
}

struct DeviceKind {
  std::string name, description;
  DeviceFactory make;
};

struct Devices {
  std::mutex mutex;
  std::vector<DeviceKind> kinds{
      {"CPU", "this machine, compiled by LLVM in process", make_cpu_device},
      {"INTERP", "the reference interpreter: slow, strict floating point",
       make_interp_device<Interpreted::Plain>},
      {"SIMT", "the same, of kernels shaped for a GPU: groups of threads, barriers, races found",
       make_interp_device<Interpreted::Simt>},
      {"NULL", "compiles everything and runs nothing", make_interp_device<Interpreted::Not>},
      {"CL", "what OpenCL offers", make_cl_device},
      {"RANK", "", make_rank_device}};
  std::map<std::string, std::unique_ptr<DeviceRuntime>> runtimes;
};

// Never destroyed: tensors in static storage may still free memory at exit.
Devices& devices() {
  static auto& instance = *new Devices;
  return instance;
}

std::unique_ptr<DeviceRuntime> make_device(const std::string& name) {
  KOINE_REQUIRE(name.find(',') == name.npos, Device,
                "'{}' names several devices, and one is needed here, such as {}", name,
                Device(name).part(0).name());
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  if (colon != std::string::npos) {
    size_t number = most_devices;
    const char *begin = name.data() + colon + 1, *end = name.data() + name.size();
    const auto [stop, code] = std::from_chars(begin, end, number);
    KOINE_REQUIRE(code == std::errc() && stop == end && number < most_devices, Device,
                  "device '{}': the number must be 0 to {}", name, most_devices - 1);
  }
  for (const DeviceKind& k : devices().kinds)
    if (k.name == kind) return k.make(name);
  std::string known;
  for (const DeviceKind& k : devices().kinds)
    if (!k.description.empty()) known += (known.empty() ? "" : ", ") + k.name;
  raise(ErrorKind::Device,
        "unknown device '{}': known devices are {} (each also with a number, like CPU:1)", name,
        known);
}

}  // namespace

void Memory::copy_in(const void* from, int64_t offset, int64_t bytes) {
  if (bytes > 0) std::memcpy(data() + offset, from, static_cast<size_t>(bytes));
}
void Memory::copy_out(void* to, int64_t offset, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, data() + offset, static_cast<size_t>(bytes));
}

// By way of the host where it cannot see one of them.
void copy_bytes(Memory& to, int64_t to_offset, Memory& from, int64_t from_offset, int64_t bytes) {
  if (std::byte* source = from.data()) return to.copy_in(source + from_offset, to_offset, bytes);
  if (std::byte* target = to.data()) return from.copy_out(target + to_offset, from_offset, bytes);
  std::vector<std::byte> between(static_cast<size_t>(bytes));
  from.copy_out(between.data(), from_offset, bytes);
  to.copy_in(between.data(), to_offset, bytes);
}

std::vector<std::shared_ptr<Program>> Compiler::make(std::vector<LoweredKernel> kernels) {
  std::vector<std::shared_ptr<Program>> out;
  for (LoweredKernel& kernel : kernels) out.push_back(load(compile(std::move(kernel))));
  return out;
}

uint64_t HostQueue::submit(std::span<const Command> commands) {
  for (const Command& c : commands) {
    check_interrupt();
    c.program->run(c.launch);
  }
  return 0;
}
uint64_t HostQueue::submit(const Transfer& t) {
  copy_bytes(*t.to, t.to_offset, *t.from, t.from_offset, t.bytes);
  return 0;
}

void register_device(std::string kind, std::string description, DeviceFactory make) {
  const std::lock_guard lock(devices().mutex);
  auto& kinds = devices().kinds;
  std::erase_if(kinds, [&](const DeviceKind& k) { return k.name == kind; });
  kinds.push_back({std::move(kind), std::move(description), make});
}

DeviceRuntime& device_runtime(Device device) {
  const std::string& name = device.name();
  const std::lock_guard lock(devices().mutex);
  auto& runtimes = devices().runtimes;
  if (const auto it = runtimes.find(name); it != runtimes.end()) return *it->second;
  return *runtimes.emplace(name, make_device(name)).first->second;
}
DeviceRuntime& device_runtime(const std::string& name) { return device_runtime(Device(name)); }

namespace {

// With all that a machine may have, for targets to restrict.
CompileOptions unrestricted(CompileOptions how) {
  how.multiprocessors = INT64_MAX;
  how.tensor_cores = true;
  return how;
}

}  // namespace

CompileOptions options_for(const Target& target, CompileOptions how) {
  how = unrestricted(std::move(how));
  target.restrict(how);
  return how;
}

CompileOptions options_for(const UOp& program, const std::string& device, CompileOptions how) {
  std::set<std::string> names{device};
  for (const UOp& u : toposort_with_bodies(program))
    if (u.device()) names.insert(u.device().name());
  CompileOptions all = unrestricted(how);
  for (const std::string& name : names)
    for (size_t i = 0; i < Device(name).count(); ++i)
      device_runtime(Device(name).part(i)).target(how).restrict(all);
  if (how.multiprocessors > 0) {  // those of a target were given
    how.row_bytes = all.row_bytes;
    return how;
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> device_list() {
  const std::lock_guard lock(devices().mutex);
  std::vector<std::pair<std::string, std::string>> out;
  for (const DeviceKind& k : devices().kinds)
    if (!k.description.empty()) out.emplace_back(k.name, k.description);
  return out;
}

std::string default_device() { return options().device.empty() ? "CPU" : options().device; }

}  // namespace koine

#include "koine/lower/schedule.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <optional>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/validity.hpp"

namespace koine {
namespace {

// Those of a kernel, or of a loop and all that it holds but for the number of the step, which it
// counts itself.
std::vector<UOp> variables_in(const UOp& ast) {
  std::vector<UOp> out;
  for (const UOp& u : is_loop(ast) ? toposort_with_bodies(ast) : toposort(ast))
    if (is_variable(u) && !(is_loop(ast) && is_step_variable(u))) out.push_back(u);
  std::sort(out.begin(), out.end(), [](const UOp& a, const UOp& b) {
    return a.as<BufferArg>().name < b.as<BufferArg>().name;
  });
  return out;
}

// The kernel over the slots that it uses alone, and the buffers of these.
std::pair<UOp, std::vector<UOp>> without_unused(const UOp& ast, std::span<const UOp> buffers) {
  Substitution renumbered;
  std::vector<UOp> used;
  int64_t last = -1;
  for (const UOp& p : slots_of(ast)) {
    const int64_t slot = p.as<BufferArg>().slot;
    if (slot != last) used.push_back(buffers[static_cast<size_t>(slot)]);
    last = slot;
    renumbered.emplace(p, with_slot(p, static_cast<int64_t>(used.size()) - 1));
  }
  if (used.size() == buffers.size()) return {ast, used};
  return {substitute(ast, renumbered), used};
}

// Which buffers of a Call its body stores into, of those that it has slots for. A copy stores into
// its first one, a function of the host or a loop into those of its results.
std::vector<bool> stored_slots(const UOp& ast, size_t buffers) {
  if (!is_kernel_body(ast)) {
    std::vector<bool> out(buffers);
    const size_t results = is_copy(ast)   ? 1
                           : is_loop(ast) ? loop_result_count(ast, buffers)
                                          : ast.src().size();
    std::fill_n(out.begin(), std::min(results, buffers), true);
    return out;
  }
  size_t slots = 0;
  std::vector<bool> out(buffers);
  for (const UOp& u : toposort(ast)) {
    if (u.is(Op::Param) && !is_variable(u))
      slots = std::max(slots, static_cast<size_t>(u.as<BufferArg>().slot) + 1);
    if (!u.is(Op::Store) && !u.is(Op::AtomicAdd)) continue;
    const UOp& buffer = accessed_buffer(u);
    if (buffer.is(Op::Param)) out[static_cast<size_t>(buffer.as<BufferArg>().slot)] = true;
  }
  out.resize(std::min(slots, buffers));
  return out;
}

// A function of the host is told the shapes of its buffers.
UOp sizes_of(std::span<const UOp> buffers) {
  std::vector<UOp> sizes;
  for (const UOp& b : buffers)
    for (const UOp& d : b.shape().src()) sizes.push_back(d);
  return stack(sizes);
}

bool is_temporary_nowhere(const UOp& b) { return b.is(Op::Buffer) && !b.device(); }

UOp placed(const UOp& buffer, Device device) {
  if (!is_temporary_nowhere(buffer)) return buffer;
  BufferArg arg = buffer.as<BufferArg>();
  arg.device = device;
  return UOp::make(Op::Buffer, buffer.src(), arg);
}

}  // namespace

Kernel::Kernel(UOp shown) : call(std::move(shown)), ast(call.src(0)) {
  const std::span<const UOp> rest = call.src().subspan(1);
  const auto first = std::find_if(rest.begin(), rest.end(), is_variable);
  stored_ = stored_slots(ast, static_cast<size_t>(first - rest.begin()));
  buffers = rest.first(stored_.size());
  waits = {buffers.end(), first};
  variables = {first, rest.end()};
  if (const auto* text = std::get_if<std::string>(&call.arg())) reason = *text;
}

bool is_transfer(const UOp& value) {
  return value.is(Op::Load) && value.src().size() < 3 && !goes_to_local(value);
}
bool is_copy(const UOp& ast) {
  return ast.is(Op::CustomFunction) && ast.as<std::string>() == copy_function;
}
bool is_check(const UOp& ast) {
  return ast.is(Op::CustomFunction) && ast.as<std::string>() == check_function;
}
bool is_kernel_body(const UOp& ast) { return ast.is(Op::Sink); }
bool Kernel::stores(size_t slot) const { return stored_[slot]; }

std::vector<UOp> slots_of(const UOp& ast) {
  std::vector<UOp> out;
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Param) && !is_variable(u)) out.push_back(u);
  std::sort(out.begin(), out.end(), [](const UOp& a, const UOp& b) {
    return a.as<BufferArg>().slot < b.as<BufferArg>().slot;
  });
  return out;
}
UOp with_slot(const UOp& param, int64_t slot) {
  return koine::param(slot, param.src(0), param.dtype());
}

std::vector<Kernel> kernels_of(const UOp& schedule) {
  KOINE_INVARIANT(schedule.is(Op::Linear), "a host program is a Linear of Calls, got {}",
                  op_name(schedule.op()));
  std::vector<Kernel> out;
  for (const UOp& call : schedule.src()) out.emplace_back(call);
  return out;
}

UOp kernel_call(const UOp& ast, std::span<const UOp> buffers, std::string_view reason,
                std::span<const UOp> values, std::span<const UOp> waits) {
  std::vector<UOp> src{ast};
  src.insert(src.end(), buffers.begin(), buffers.end());
  if (is_kernel_body(ast)) {
    const auto [kernel, used] = without_unused(ast, buffers);
    src = {kernel};
    src.insert(src.end(), used.begin(), used.end());
    for (const UOp& b : waits)
      if (std::find(src.begin(), src.end(), b) == src.end()) src.push_back(b);
  }
  const bool told = ast.is(Op::CustomFunction) && !is_copy(ast);
  for (const UOp& v : variables_in(told ? sizes_of(buffers) : ast)) {
    const auto bound = std::find_if(values.begin(), values.end(), [&](const UOp& value) {
      return is_bound(value) && without_values(value) == v;
    });
    src.push_back(bound == values.end() ? v : *bound);
  }
  return UOp::make(Op::Call, src, reason.empty() ? Arg() : Arg(std::string(reason)));
}

std::vector<std::vector<size_t>> dependencies_of(const std::vector<Kernel>& kernels) {
  struct Use {
    std::vector<size_t> stored;  // by the last that did, or nobody
    std::vector<size_t> read;    // since then
  };
  absl::flat_hash_map<const Node*, Use> uses;
  std::vector<std::vector<size_t>> out(kernels.size());
  std::optional<size_t> check;  // the last one, which all later launches wait for
  for (size_t k = 0; k < kernels.size(); ++k) {
    const Kernel& kernel = kernels[k];
    if (check) out[k].push_back(*check);
    if (is_check(kernel.ast)) check = k;
    for (size_t slot = 0; slot < kernel.buffers.size(); ++slot) {
      Use& use = uses[kernel.buffers[slot].node()];
      out[k].insert(out[k].end(), use.stored.begin(), use.stored.end());
      if (kernel.stores(slot)) out[k].insert(out[k].end(), use.read.begin(), use.read.end());
    }
    for (const UOp& b : kernel.waits) {
      const Use& use = uses[b.node()];
      out[k].insert(out[k].end(), use.stored.begin(), use.stored.end());
    }
    for (size_t slot = 0; slot < kernel.buffers.size(); ++slot) {
      Use& use = uses[kernel.buffers[slot].node()];
      if (kernel.stores(slot))
        use = {{k}, {}};
      else
        use.read.push_back(k);
    }
    std::sort(out[k].begin(), out[k].end());
    out[k].erase(std::unique(out[k].begin(), out[k].end()), out[k].end());
    std::erase(out[k], k);
  }
  return out;
}

UOp without_unread(const UOp& schedule) {
  absl::flat_hash_set<const Node*> wanted;  // by later launches
  std::vector<UOp> backwards;
  for (auto it = schedule.src().rbegin(); it != schedule.src().rend(); ++it) {
    const Kernel kernel(*it);
    bool needed = false;
    for (size_t slot = 0; slot < kernel.buffers.size(); ++slot) {
      const UOp& b = kernel.buffers[slot];
      needed = needed || (kernel.stores(slot) && (!b.is(Op::Buffer) || wanted.contains(b.node())));
    }
    if (!needed) continue;
    for (const UOp& b : kernel.buffers) wanted.insert(b.node());
    backwards.push_back(*it);
  }
  std::reverse(backwards.begin(), backwards.end());
  return UOp::make(Op::Linear, backwards);
}

namespace {

// Where the step of a loop has the arguments of its launch, by slot; nowhere where that is its own
// device.
std::vector<Device> devices_in_steps(const Kernel& launch) {
  std::vector<Device> out(launch.buffers.size());
  if (!is_loop(launch.ast) || !launch.ast.src(0).is(Op::Tuple)) return out;
  const size_t results = loop_results(launch.ast).size();
  for (const UOp& function : launch.ast.src())
    if (function.is(Op::Tuple))
      for (const auto& [slot, param] : params_of(function))
        if (const size_t k = results + static_cast<size_t>(slot); k < out.size())
          out[k] = param.device();
  return out;
}

}  // namespace

UOp on_devices(const UOp& schedule) {
  absl::flat_hash_map<const Node*, std::vector<Device>> wanted;  // of a temporary that is nowhere
  std::vector<UOp> backwards;
  for (auto it = schedule.src().rbegin(); it != schedule.src().rend(); ++it) {
    const Kernel kernel(*it);
    if (std::none_of(kernel.buffers.begin(), kernel.buffers.end(), is_temporary_nowhere)) {
      backwards.push_back(*it);
      continue;
    }
    std::vector<Device> devices;
    if (kernel.device()) {
      devices.push_back(kernel.device());
    } else {
      for (size_t slot = 0; slot < kernel.buffers.size(); ++slot)
        if (kernel.stores(slot))
          for (const Device& d : wanted[kernel.buffers[slot].node()])
            if (std::find(devices.begin(), devices.end(), d) == devices.end()) devices.push_back(d);
    }
    if (devices.empty()) devices.emplace_back();  // the program's own
    const std::vector<Device> in_steps = devices_in_steps(kernel);
    for (const Device& own : devices) {
      std::vector<UOp> buffers;
      for (size_t slot = 0; slot < kernel.buffers.size(); ++slot) {
        const UOp& b = kernel.buffers[slot];
        const Device device = in_steps[slot] ? in_steps[slot] : own;
        buffers.push_back(placed(b, device));
        if (!is_temporary_nowhere(b) || !device) continue;
        std::vector<Device>& at = wanted[b.node()];
        if (std::find(at.begin(), at.end(), device) == at.end()) at.push_back(device);
      }
      backwards.push_back(
          kernel_call(kernel.ast, buffers, kernel.reason, kernel.variables, kernel.waits));
    }
  }
  std::reverse(backwards.begin(), backwards.end());
  return UOp::make(Op::Linear, backwards);
}

int64_t largest_bytes(const UOp& buffer) {
  const auto elements = static_cast<int64_t>(product(buffer.shape()).bounds().high);
  const int64_t bytes = item_size(buffer.dtype());
  return elements > INT64_MAX / bytes ? INT64_MAX : elements * bytes;
}

}  // namespace koine

// Host programs: what is launched, in order.
#include <absl/container/flat_hash_set.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/own_functions.hpp"
#include "koine/verify/demand.hpp"

namespace koine {
namespace {

bool is_argument(const UOp& u) {
  return (u.is(Op::Buffer) || is_argument_param(u)) && u.as<BufferArg>().space == AddrSpace::Global;
}

// The bytes of memory of constant sizes.
std::optional<uint64_t> bytes_of(const UOp& memory) {
  if (!memory.has_concrete_shape()) return std::nullopt;
  return static_cast<uint64_t>(memory.numel()) * static_cast<uint64_t>(item_size(memory.dtype()));
}

// Each slot of the kernel is a buffer of as many bytes. It may be seen with another dtype than it
// was made with.
int check_slots(const UOp& call, std::span<const UOp> buffers) {
  for (const UOp& u : toposort(call.src(0))) {
    if (!u.is(Op::Param) || is_variable(u)) continue;
    const BufferArg& slot = u.as<BufferArg>();
    const auto k = static_cast<size_t>(slot.slot);
    if (slot.slot < 0 || k >= buffers.size()) return 0;
    const auto seen = bytes_of(u), held = bytes_of(buffers[k]);
    if (seen && held && *seen != *held) return static_cast<int>(k) + 1;
  }
  return fine;
}

// The host programs of a loop; Params behind the buffers of its Call are its own.
std::optional<Violation> check_loop(const UOp& call, std::span<const UOp> buffers) {
  const Loop loop(call);
  const size_t results = loop_result_count(loop.body, buffers.size());
  if (results < loop.carries() || loop.roles.size() + results != buffers.size())
    return Violation{call, -1, "a loop has memory for its results and arguments"};
  if (loop.count && (loop.count.dtype() != DType::Index || !loop.count.is_scalar()))
    return Violation{loop.body, 1, "how often is an index scalar"};
  for (const UOp& function : loop.functions) {
    const auto inside = function.is(Op::Tuple) ? find_violation(function, VerifyLevel::Tensor)
                                               : check_schedule(function);
    if (inside) return inside;
  }
  return std::nullopt;
}

std::optional<Violation> check_call(const UOp& call) {
  if (!call.is(Op::Call) || call.src().empty())
    return Violation{call, -1, "a host program holds Calls"};
  const std::span<const UOp> rest = call.src().subspan(1);
  const auto first = std::find_if(rest.begin(), rest.end(), is_variable);
  const std::span<const UOp> buffers{rest.begin(), first};
  for (size_t k = 0; k < rest.size(); ++k) {
    const bool known = k < buffers.size() ? is_argument(rest[k]) : is_bounded_variable(rest[k]);
    if (!known)
      return Violation{call, static_cast<int>(k) + 1,
                       "a Call takes Params and Buffers, then Variables"};
  }
  const UOp& body = call.src(0);
  if (body.is(Op::CustomFunction)) {
    const bool copies = body.as<std::string>() == copy_function;
    if (copies && buffers.size() != 2) return Violation{call, -1, "a copy has two buffers"};
    if (buffers.size() >= std::max<size_t>(body.src().size(), 1)) return std::nullopt;
    return Violation{call, -1, "a CustomFunction has memory for each of its results"};
  }
  if (is_loop(body)) return check_loop(call, buffers);
  if (const auto inside = find_violation(body, VerifyLevel::Kernel)) return inside;
  if (const int at = check_slots(call, buffers); at != fine)
    return Violation{call, at, "each slot of a kernel has a buffer of its size"};
  for (size_t k = 1; k < buffers.size(); ++k)
    if (!(buffers[k].device() == buffers[0].device()))
      return Violation{call, static_cast<int>(k) + 1, "the buffers of a kernel lie on one device"};
  return std::nullopt;
}

}  // namespace

std::optional<Violation> check_schedule(const UOp& schedule) {
  if (!schedule.is(Op::Linear)) return Violation{schedule, -1, "a host program is a Linear"};
  for (const UOp& call : schedule.src())
    if (const auto violation = check_call(call)) return violation;
  return std::nullopt;
}

}  // namespace koine

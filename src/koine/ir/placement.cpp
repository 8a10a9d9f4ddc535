// Where a value lives. A value on n devices either is whole on each of them, or one of its axes is
// split among them in n equal parts: `axis`. A leaf on n devices says its axis, a copy to n devices
// is split along axis 0; the other ops carry the axis along. What would cut across the parts is an
// error here, since a guess would silently compute something else (amendment C22).
#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/derive.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/method.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

using Sources = std::span<const UOp>;
constexpr int32_t whole = -1;

int32_t axis_of(const UOp& u) { return u.node()->placement.axis; }

// What a GetTuple takes out of a Tuple, or of a Function's.
const UOp& element_of(const UOp& from, const Arg& arg) {
  const UOp& tuple = from.is(Op::Function) ? from.src(0) : from;
  return tuple.src(static_cast<size_t>(std::get<int64_t>(arg)));
}

// Where a result of a Call lies: what a loop's step says, else where the Call does.
Placement result_of_call(const UOp& call, const Arg& arg) {
  return is_loop(call.src(0))
             ? placement_of_result(call.src(0), static_cast<size_t>(std::get<int64_t>(arg)))
             : Placement{};
}

size_t rank_of(const Derived& value, Sources src) {
  if (value.scalar_stack) return src.empty() ? 0 : 1;
  return value.shape ? value.shape.src().size() : 0;
}

bool splits_evenly(const UOp& size, const Device& device) {
  const auto parts = index_const(static_cast<int64_t>(device.count()));
  return is_const(simplify_index(mod(size, parts)), 0);
}

std::string advice(const Device& device) {
  return fmt::format(
      "copy it to one device first, such as {}, or split it along another axis with shard()",
      device.part(0).name());
}

// Refuses in the name of what the user called, where that is known: `reason` is about its operands.
// It names the shape that is split, where `with_operands` does not ask for them.
[[noreturn]] void refuse_as_called(Op op, ErrorKind kind, const std::string& reason,
                                   bool with_operands = false) {
  const Method* method = Method::current();
  if (method != nullptr)
    throw NamedError(kind, fmt::format("{}: {}", method->text(with_operands), reason));
  raise(kind, "{}: {}", op_name(op), reason);
}

// The axis of a value that is new on these devices.
int32_t split_along(Op op, int32_t axis, Sources src, const Derived& value, const Device& device) {
  if (axis == whole) return whole;
  const size_t rank = rank_of(value, src);
  KOINE_REQUIRE(
      rank > 0, Value,
      "{}: a scalar cannot be split over the {} devices {}: reshape and expand it to ({},) "
      "and drop that axis with Replicated, as shard() without an axis does",
      op_name(op), device.count(), device.name(), device.count());
  const auto at = static_cast<size_t>(axis);
  KOINE_REQUIRE(axis >= 0 && at < rank, Index, "{}: the devices {} cannot split axis {} of {} axes",
                op_name(op), device.name(), axis, rank);
  const UOp size =
      value.scalar_stack ? index_const(static_cast<int64_t>(src.size())) : value.shape.src(at);
  KOINE_REQUIRE(splits_evenly(size, device), Value,
                "{}: axis {} of size {} does not split evenly over the {} devices {}: pad it to a "
                "multiple of {}",
                op_name(op), axis, dim_text(size), device.count(), device.name(), device.count());
  return axis;
}

// The axis of the new shape that begins where the split one begins, and that splits as evenly.
int32_t reshaped(const UOp& value, const Derived& result, const Device& device) {
  UOp wanted = index_const(1), before = index_const(1);
  for (int32_t i = 0; i < axis_of(value); ++i)
    wanted = simplify_index(mul(wanted, value.dim(static_cast<size_t>(i))));
  const size_t rank = result.shape ? result.shape.src().size() : 0;
  for (size_t i = 0; i < rank; ++i) {
    const UOp& size = result.shape.src(i);
    if (before == wanted && splits_evenly(size, device)) return static_cast<int32_t>(i);
    before = simplify_index(mul(before, size));
  }
  refuse_as_called(Op::Reshape, ErrorKind::Value,
                   fmt::format("the devices {} split axis {} of shape {}, and no axis of the new "
                               "shape keeps their parts whole: {}",
                               device.name(), axis_of(value), shape_text(value), advice(device)));
}

[[noreturn]] void refuse(Op op, const UOp& value, const Device& device) {
  refuse_as_called(op, ErrorKind::Value,
                   fmt::format("the devices {} split axis {} of shape {}, which it changes: {}",
                               device.name(), axis_of(value), shape_text(value), advice(device)));
}

// The one axis that the sources are split along, each moved by `shift(k)`; whole ones adapt.
template <class Shift>
int32_t joined(Op op, Sources src, Shift&& shift) {
  int32_t axis = whole;
  for (size_t k = 0; k < src.size(); ++k) {
    if (axis_of(src[k]) == whole) continue;
    const auto moved = static_cast<int32_t>(axis_of(src[k]) + shift(k));
    if (axis != whole && axis != moved)
      refuse_as_called(
          op, ErrorKind::Value,
          fmt::format("its operands are split along axis {} and axis {} of {}: {}", axis, moved,
                      Method::current() == nullptr ? "the result" : "what it combines",
                      advice(src[k].device())),
          true);
    axis = moved;
  }
  return axis;
}

int32_t indexed(Sources src, const Device& device) {
  const auto indices = static_cast<int32_t>(src.size() - 1);
  if (axis_of(src[0]) != whole && axis_of(src[0]) < indices) refuse(Op::Index, src[0], device);
  std::vector<size_t> begins(src.size());  // of the axes that each source gives to the result
  size_t next = 0;
  for (size_t k = 1; k < src.size(); ++k) {
    begins[k] = next;
    next += src[k].rank();
  }
  return joined(Op::Index, src, [&](size_t k) {
    return static_cast<int64_t>(k == 0 ? next : begins[k]) - (k == 0 ? indices : 0);
  });
}

int32_t split_axis(Op op, Sources src, const Arg& arg, const Derived& value, const Device& device) {
  auto aligned = [&](size_t k) {  // on the right
    return static_cast<int64_t>(rank_of(value, src)) - static_cast<int64_t>(src[k].rank());
  };
  const int32_t axis = src.empty() ? whole : axis_of(src[0]);
  const auto at = static_cast<size_t>(axis);
  const bool split = axis != whole;
  switch (op) {
    case Op::Param:
    case Op::Buffer:
      return split_along(op, std::get<BufferArg>(arg).axis, src, value, device);
    case Op::Recip:
    case Op::Trunc:
    case Op::Cast:
    case Op::Exp2:
    case Op::Log2:
    case Op::Sin:
    case Op::Sqrt:
    case Op::Add:
    case Op::Mul:
    case Op::Max:
    case Op::Mod:
    case Op::Idiv:
    case Op::CmpLt:
    case Op::CmpNe:
    case Op::Xor:
    case Op::Or:
    case Op::And:
    case Op::Shr:
    case Op::Shl:
    case Op::Fdiv:
    case Op::Pow:
    case Op::Threefry:
    case Op::Where:
    case Op::Mulacc:
      return joined(op, src, aligned);
    case Op::Load:
      return std::get<LoadArg>(arg).device ? split_along(op, 0, src, value, device)
                                           : joined(op, src, aligned);
    case Op::Stack:
      return joined(op, src, [](size_t) { return 1; });
    case Op::Index:
      return indexed(src, device);
    case Op::Store:
      if (axis_of(src[1]) != whole && axis_of(src[1]) != axis)
        refuse_as_called(
            op, ErrorKind::Value,
            fmt::format("the value is split along axis {} of {}, and the buffer otherwise: {}",
                        axis_of(src[1]), shape_text(src[1]), advice(device)));
      return whole;
    case Op::GetTuple:
      return src[0].is(Op::Call) ? result_of_call(src[0], arg).axis
                                 : axis_of(element_of(src[0], arg));
    case Op::Permute: {
      const Ints& order = std::get<Ints>(arg);
      const auto moved = std::find(order.begin(), order.end(), axis) - order.begin();
      return split ? static_cast<int32_t>(moved) : whole;
    }
    case Op::Flip:
      if (split && std::get<Ints>(arg)[at] != 0) refuse(op, src[0], device);
      return axis;
    case Op::Reshape:
      return split ? reshaped(src[0], value, device) : whole;
    case Op::Pad:
    case Op::Shrink:
      if (split && (!is_const(src[1].src(at), 0) || !(src[2].src(at) == src[0].dim(at))))
        refuse(op, src[0], device);
      return axis;
    case Op::Bitcast:
      if (split && !splits_evenly(value.shape.src(at), device)) refuse(op, src[0], device);
      return axis;
    case Op::Reduce: {
      const Ints& axes = std::get<ReduceArg>(arg).axes;
      return std::find(axes.begin(), axes.end(), axis) == axes.end() ? axis : whole;
    }
    case Op::Expand:
    case Op::After:
    case Op::Contiguous:
    case Op::ContiguousBackward:
    case Op::Assume:
    case Op::Fence:
    case Op::Detach:
      return axis;
    case Op::Replicated:  // drops it
    case Op::Const:
    case Op::Binary:
    case Op::Function:
    case Op::Call:
    case Op::Scan:
    case Op::While:
    case Op::Switch:
    case Op::Tuple:
    case Op::Range:
    case Op::End:
    case Op::Group:
    case Op::Sink:
    case Op::Linear:
    case Op::Barrier:
    case Op::Special:
    case Op::If:
    case Op::Endif:
    case Op::Wmma:
    case Op::Ins:
    case Op::Custom:
    case Op::AtomicAdd:
    case Op::CustomFunction:
    case Op::Program:
    case Op::Source:
      return whole;
  }
  return whole;
}

// Ops that compute with all their sources at once, so these must lie on one device.
bool combines(Op op, Sources src) {
  return is_elementwise(op) || op == Op::Stack || op == Op::Index || op == Op::Store ||
         (op == Op::Load && src.size() > 1);
}

// What a body says of its results holds for arguments that lie as its Params do.
void require_params(Sources src) {
  for (const UOp& u : toposort_outside_bodies(src[0])) {
    if (!is_argument_param(u) || u.as<BufferArg>().slot < 0) continue;
    const size_t k = static_cast<size_t>(u.as<BufferArg>().slot) + 1;
    if (k >= src.size() || src[k].device().count() == 1) continue;
    KOINE_REQUIRE(
        u.device() == src[k].device() && axis_of(u) == axis_of(src[k]), Value,
        "Function: argument {} of shape {} lies on the devices {}, which the Param of the "
        "body does not say: make it with argument_param()",
        k - 1, shape_text(src[k]), src[k].device().name());
  }
}

}  // namespace

Placement derive_placement(Op op, Sources src, const Arg& arg, const Derived& value) {
  Placement placement;
  if (const auto* buffer = std::get_if<BufferArg>(&arg)) placement.device = buffer->device;
  if (const auto* moved = std::get_if<LoadArg>(&arg)) placement.device = moved->device;
  // Results of a body may lie apart: a loss on several devices, and its gradient on one.
  if (op == Op::GetTuple)
    placement.device =
        src[0].is(Op::Call) ? result_of_call(src[0], arg).device : element_of(src[0], arg).device();
  const size_t placing = op == Op::Fence ? 1 : src.size();  // it only waits for the others
  for (size_t i = 0; i < placing; ++i) {
    const Device device = src[i].device();
    if (!placement.device) placement.device = device;
    if (device && !(device == placement.device) && combines(op, src))
      refuse_as_called(
          op, ErrorKind::Device,
          fmt::format("{} {} of shape {} is on {}, but an earlier one is on {}: copy one of them "
                      "to the other's device with to(){}",
                      Method::current() == nullptr ? "source" : "operand", i, shape_text(src[i]),
                      device.name(), placement.device.name(),
                      device.count() > 1 || placement.device.count() > 1
                          ? ", or to all of them with shard()"
                          : ""));
  }
  if (placement.device.count() > 1 && op == Op::Function) require_params(src);
  if (placement.device.count() > 1)
    placement.axis = split_axis(op, src, arg, value, placement.device);
  return placement;
}

}  // namespace koine

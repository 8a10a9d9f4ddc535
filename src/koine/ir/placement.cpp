// Where a value lives. A value on n devices either is whole on each of them, or one of its axes is
// split among them in n equal parts: `axes`. A leaf on n devices says its axis, a copy to n devices
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

AxisSet axes_of(const UOp& u) { return u.node()->placement.axes; }

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

// The axes of a value that is new on these devices.
AxisSet split_along(Op op, AxisSet axes, Sources src, const Derived& value, const Device& device) {
  if (axes.empty()) return {};
  const size_t rank = rank_of(value, src);
  KOINE_REQUIRE(
      rank > 0, Value,
      "{}: a scalar cannot be split over the {} devices {}: reshape and expand it to ({},) "
      "and drop that axis with Replicated, as shard() without an axis does",
      op_name(op), device.count(), device.name(), device.count());
  KOINE_REQUIRE(axes.size() == 1, Value,
                "{}: the devices {} cannot split {}: a value is split along one axis", op_name(op),
                device.name(), axes_text(axes));
  const size_t axis = *axes.first();
  KOINE_REQUIRE(axis < rank, Index, "{}: the devices {} cannot split axis {} of {} axes",
                op_name(op), device.name(), axis, rank);
  const UOp size =
      value.scalar_stack ? index_const(static_cast<int64_t>(src.size())) : value.shape.src(axis);
  KOINE_REQUIRE(splits_evenly(size, device), Value,
                "{}: axis {} of size {} does not split evenly over the {} devices {}: pad it to a "
                "multiple of {}",
                op_name(op), axis, dim_text(size), device.count(), device.name(), device.count());
  return axes;
}

// The axis of the new shape that begins where the split one begins, and that splits as evenly.
size_t reshaped(const UOp& value, size_t axis, const Derived& result, const Device& device) {
  UOp wanted = index_const(1), before = index_const(1);
  for (size_t i = 0; i < axis; ++i) wanted = simplify_index(mul(wanted, value.dim(i)));
  const size_t rank = result.shape ? result.shape.src().size() : 0;
  for (size_t i = 0; i < rank; ++i) {
    const UOp& size = result.shape.src(i);
    if (before == wanted && splits_evenly(size, device)) return i;
    before = simplify_index(mul(before, size));
  }
  refuse_as_called(Op::Reshape, ErrorKind::Value,
                   fmt::format("the devices {} split axis {} of shape {}, and no axis of the new "
                               "shape keeps their parts whole: {}",
                               device.name(), axis, shape_text(value), advice(device)));
}

[[noreturn]] void refuse(Op op, const UOp& value, const Device& device) {
  refuse_as_called(
      op, ErrorKind::Value,
      fmt::format("the devices {} split {} of shape {}, which it changes: {}", device.name(),
                  axes_text(axes_of(value)), shape_text(value), advice(device)));
}

// What the sources are split along, each moved by `shift(k)`: all alike; whole ones adapt.
template <class Shift>
AxisSet joined(Op op, Sources src, Shift&& shift) {
  AxisSet axes;
  for (size_t k = 0; k < src.size(); ++k) {
    if (axes_of(src[k]).empty()) continue;
    const AxisSet moved = axes_of(src[k]).shifted(shift(k));
    if (!axes.empty() && !(axes == moved))
      refuse_as_called(op, ErrorKind::Value,
                       fmt::format("its operands are split along {} and {} of {}: {}",
                                   axes_text(axes), axes_text(moved),
                                   Method::current() == nullptr ? "the result" : "what it combines",
                                   advice(src[k].device())),
                       true);
    axes = moved;
  }
  return axes;
}

AxisSet indexed(Sources src, const Device& device) {
  const size_t indices = src.size() - 1;
  if (axes_of(src[0]).first().value_or(indices) < indices) refuse(Op::Index, src[0], device);
  std::vector<size_t> begins(src.size());  // of the axes that each source gives to the result
  size_t next = 0;
  for (size_t k = 1; k < src.size(); ++k) {
    begins[k] = next;
    next += src[k].rank();
  }
  return joined(Op::Index, src, [&](size_t k) {
    return k == 0 ? static_cast<int64_t>(next) - static_cast<int64_t>(indices)
                  : static_cast<int64_t>(begins[k]);
  });
}

AxisSet split_axes(Op op, Sources src, const Arg& arg, const Derived& value, const Device& device) {
  auto aligned = [&](size_t k) {  // on the right
    return static_cast<int64_t>(rank_of(value, src)) - static_cast<int64_t>(src[k].rank());
  };
  const AxisSet axes = src.empty() ? AxisSet() : axes_of(src[0]);
  auto require_kept = [&](auto&& kept) {  // of each axis that is split
    axes.each([&](size_t axis) {
      if (!kept(axis)) refuse(op, src[0], device);
    });
    return axes;
  };
  switch (op) {
    case Op::Param:
    case Op::Buffer:
      return split_along(op, std::get<BufferArg>(arg).axes, src, value, device);
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
      if (!axes_of(src[1]).empty() && !(axes_of(src[1]) == axes))
        refuse_as_called(
            op, ErrorKind::Value,
            fmt::format("the value is split along {} of {}, and the buffer otherwise: {}",
                        axes_text(axes_of(src[1])), shape_text(src[1]), advice(device)));
      return {};
    case Op::GetTuple:
      return src[0].is(Op::Call) ? result_of_call(src[0], arg).axes
                                 : axes_of(element_of(src[0], arg));
    case Op::Permute: {
      const Ints& order = std::get<Ints>(arg);
      return axes.moved([&](size_t axis) {
        return std::find(order.begin(), order.end(), static_cast<int64_t>(axis)) - order.begin();
      });
    }
    case Op::Flip:
      return require_kept([&](size_t axis) { return std::get<Ints>(arg)[axis] == 0; });
    case Op::Reshape:
      return axes.moved([&](size_t axis) { return reshaped(src[0], axis, value, device); });
    case Op::Pad:
    case Op::Shrink:
      return require_kept([&](size_t axis) {
        return is_const(src[1].src(axis), 0) && src[2].src(axis) == src[0].dim(axis);
      });
    case Op::Bitcast:
      return require_kept(
          [&](size_t axis) { return splits_evenly(value.shape.src(axis), device); });
    case Op::Reduce: {
      const Ints& folded = std::get<ReduceArg>(arg).axes;
      return axes.moved([&](size_t axis) {
        const auto own = static_cast<int64_t>(axis);
        return std::find(folded.begin(), folded.end(), own) == folded.end() ? own : -1;
      });
    }
    case Op::Expand:
    case Op::After:
    case Op::Contiguous:
    case Op::ContiguousBackward:
    case Op::Assume:
    case Op::Fence:
    case Op::Detach:
      return axes;
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
      return {};
  }
  return {};
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
        u.device() == src[k].device() && axes_of(u) == axes_of(src[k]), Value,
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
    placement.axes = split_axes(op, src, arg, value, placement.device);
  return placement;
}

}  // namespace koine

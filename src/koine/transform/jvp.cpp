// The column of forward mode: the tangent of an op's result.
#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/table.hpp"
#include "koine/transform/written.hpp"

namespace koine {
namespace {

UOp or_zero(const UOp& tangent, const UOp& value) {
  return tangent ? tangent : filled_like(value, 0);
}

UOp plus(const UOp& sum, const UOp& term) { return sum ? add(sum, term) : term; }

// An elementwise op has one slope an element and source, so what takes a cotangent to a source
// takes the tangent of that source to the result.
UOp elementwise_jvp(const ForwardStep& s) {
  const VjpRule vjp = vjp_cell(s.node.op()).rule();
  UOp sum;
  for (size_t k = 0; k < s.carried.size(); ++k) {
    if (!s.carried[k]) continue;
    const UOp part = vjp(s.node, broadcast_to(s.carried[k], s.node.shape()))[k];
    if (part) sum = plus(sum, part);
  }
  return sum;
}

UOp fdiv_jvp(const ForwardStep& s) {
  const UOp &a = s.carried[0], &b = s.carried[1], &divisor = s.node.src(1);
  UOp sum = a ? broadcast_to(a, s.node.shape()) : UOp();
  if (b) sum = plus(sum, neg(mul(s.node, broadcast_to(b, s.node.shape()))));
  return fdiv(sum, divisor);
}

UOp where_jvp(const ForwardStep& s) {
  if (!s.carried[1] && !s.carried[2]) return {};
  auto either = [&](size_t k) { return s.carried[k] ? s.carried[k] : like(s.node, 0); };
  return broadcast_to(where(where_condition(s.node), either(1), either(2)), s.node.shape());
}

UOp cast_jvp(const ForwardStep& s) {
  return is_float(s.node.src(0).dtype()) ? cast(s.carried[0], s.node.dtype()) : UOp();
}

// An op that is linear in its first source alone.
UOp linear_jvp(const ForwardStep& s) {
  return s.carried[0] ? with_source(s.node, 0, s.carried[0]) : UOp();
}

UOp pad_jvp(const ForwardStep& s) {
  const bool fills = s.node.src().size() == 4 && s.carried[3];
  const UOp fill = fills ? s.carried[3] : like(s.node, 0);
  return pad(or_zero(s.carried[0], s.node.src(0)), s.node.src(1), s.node.shape(), fill);
}

UOp stack_jvp(const ForwardStep& s) {
  std::vector<UOp> parts;
  for (size_t k = 0; k < s.carried.size(); ++k)
    parts.push_back(or_zero(s.carried[k], s.node.src(k)));
  return stack(parts);
}

UOp reduce_jvp(const ForwardStep& s) {
  const UOp &n = s.node, &x = n.src(0), &t = s.carried[0];
  const ReduceArg& arg = n.as<ReduceArg>();
  if (!t) return {};
  if (arg.op == Op::Add) return reduce(Op::Add, t, arg.axes);
  if (arg.op == Op::Mul) return reduce(Op::Add, mul(t, product_of_others(x, arg.axes)), arg.axes);
  // Of equal largest elements each has its share (amendment C40).
  const UOp hit = eq(x, expand(n, x.shape()));
  const UOp count = reduce(Op::Add, cast(hit, x.dtype()), arg.axes);
  return fdiv(reduce(Op::Add, where(hit, t, like(t, 0)), arg.axes), count);
}

UOp after_jvp(const ForwardStep& s) {
  std::vector<UOp> stored;
  for (size_t k = 1; k < s.carried.size(); ++k)
    stored.push_back(or_zero(s.carried[k], s.node.src(k).src(s.node.src(k).is(Op::Store) ? 1 : 0)));
  return after_value(s.node, or_zero(s.carried[0], s.node.src(0)), stored);
}
// A Store carries what the stored value does.
UOp store_jvp(const ForwardStep& s) { return s.carried[1]; }

UOp load_jvp(const ForwardStep& s) {
  KOINE_REQUIRE(s.carried.size() == 1, Type, "jvp: a gated Load is a part of kernels");
  return linear_jvp(s);
}

}  // namespace

ForwardCell jvp_cell(Op op) {
  using C = ForwardCell;
  switch (op) {
    case Op::Add:
    case Op::Mul:
    case Op::Mulacc:
    case Op::Max:
    case Op::Pow:
    case Op::Mod:
    case Op::Recip:
    case Op::Sqrt:
    case Op::Exp2:
    case Op::Log2:
    case Op::Sin:
      return C::by(elementwise_jvp);
    case Op::Cast:
      return C::by(cast_jvp);
    case Op::Fdiv:
      return C::by(fdiv_jvp);
    case Op::Where:
      return C::by(where_jvp);
    case Op::Reshape:
    case Op::Permute:
    case Op::Expand:
    case Op::Flip:
    case Op::Shrink:
    case Op::Index:
    case Op::Replicated:
    case Op::Contiguous:
    case Op::ContiguousBackward:
    case Op::Fence:
      return C::by(linear_jvp);
    case Op::Pad:
      return C::by(pad_jvp);
    case Op::Stack:
      return C::by(stack_jvp);
    case Op::Reduce:
      return C::by(reduce_jvp);
    case Op::After:
      return C::by(after_jvp);
    case Op::Store:
      return C::by(store_jvp);
    case Op::Load:
      return C::by(load_jvp);
    case Op::While:
      return C::nothing("the driver goes through calls");
    default:
      break;
  }
  // Where reverse mode has nothing to do, or refuses, so has forward mode.
  const VjpCell reverse = vjp_cell(op);
  if (reverse.rule() != nullptr) return C::refused("it has a rule for cotangents alone");
  return reverse.is_refused() ? C::refused(reverse.words()) : C::nothing(reverse.words());
}

}  // namespace koine

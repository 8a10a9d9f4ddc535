// The column of reverse mode: the cotangents of an op's sources.
#include <algorithm>
#include <numbers>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/float_layout.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/table.hpp"
#include "koine/transform/written.hpp"

namespace koine {
namespace {

// Where one number divides many, as in a softmax, what they give is summed before it is divided.
Cotangents fdiv_vjp(const UOp& n, const UOp& g) {
  const UOp &a = n.src(0), &b = n.src(1), share = fdiv(g, b);
  if (b.shape() == n.shape()) return {share, neg(fdiv(mul(g, n), b))};
  return {share, neg(fdiv(sum_to(mul(share, a), b.shape()), b))};
}

// Of equal copies the first has the whole cotangent, so that the sum over them is that.
Cotangents replicated_vjp(const UOp& n, const UOp& g) {
  const UOp& copies = n.src(0);
  const auto axis = static_cast<size_t>(n.as<int64_t>());
  std::vector<UOp> one;
  for (size_t k = 0; k < copies.rank(); ++k)
    one.push_back(k == axis ? index_const(1) : copies.dim(k));
  const UOp first = reshape(g, stack(one));
  if (n.device().count() == 1) return {first};
  const UOp all = pad(first, shape_of(Ints(copies.rank(), 0)), copies.shape(), like(g, 0));
  return {copy_to(all, copies.node()->placement)};
}

// A movement whose first source is its value.
Cotangents first(const UOp& node, UOp g) {
  Cotangents out(node.src().size());
  out[0] = std::move(g);
  return out;
}

UOp mask_of(const UOp& condition, const UOp& g) { return where(condition, g, like(g, 0)); }

// What is less has none. NaN is not less, so what follows from it goes on.
Cotangents max_vjp(const UOp& n, const UOp& g) {
  const UOp &a = n.src(0), &b = n.src(1);
  const UOp share = where(eq(a, b), mul(g, like(g, 0.5)), g);
  return {where(lt(a, b), like(g, 0), share), where(lt(b, a), like(g, 0), share)};
}

Cotangents pow_vjp(const UOp& n, const UOp& g) {
  const UOp &a = n.src(0), &b = n.src(1);
  // What is not chosen is finite where a is, and chosen last: 0 inf of a second derivative is NaN.
  const UOp flat = eq(b, like(b, 0)), one = like(b, 1);
  const UOp lower = binary(Op::Pow, a, where(flat, one, sub(b, one)));
  const UOp da = where(flat, like(g, 0), mul(g, mul(b, lower)));
  const UOp log_a = logarithm(a, Base::E);
  const UOp db = where(eq(a, like(a, 0)), like(n, 0), mul(n, log_a));
  return {da, mul(g, db)};
}

// a - b floor(a/b), of which the last is a whole number that the difference gives back. Where that
// may be infinite, of halves: next to such a dividend these lose nothing.
Cotangents mod_vjp(const UOp& n, const UOp& g) {
  if (!is_float(n.dtype())) return {UOp(), UOp()};
  const UOp &a = n.src(0), &b = n.src(1), half = like(n, 0.5);
  const UOp large = like(n, largest_float(n.dtype()) / 2);
  const UOp halved = bit_or(lt(large, a), lt(a, neg(large)));
  auto part = [&](const UOp& u) { return where(halved, mul(u, half), u); };
  const UOp ratio = fdiv(sub(part(a), part(n)), part(b));
  const UOp rounded = unary(Op::Trunc, add(ratio, where(lt(ratio, like(n, 0)), neg(half), half)));
  return {g, neg(mul(g, rounded))};
}

Cotangents cast_vjp(const UOp& n, const UOp& g) {
  if (!is_float(n.dtype()) || !is_float(n.src(0).dtype())) return {UOp()};
  return {cast(g, n.src(0).dtype())};
}

Cotangents permute_vjp(const UOp& n, const UOp& g) { return {permute_back(g, n.as<Ints>())}; }

Cotangents stack_vjp(const UOp& n, const UOp& g) {
  Cotangents out;
  for (size_t i = 0; i < n.src().size(); ++i)
    out.push_back(index(g, {index_const(static_cast<int64_t>(i))}));
  return out;
}

// Index sends each element's cotangent back to where it was read: a one-hot sum over the index
// positions, which the compiler turns into a load or a scatter.
Cotangents index_vjp(const UOp& n, const UOp& g) {
  const UOp& source = n.src(0);
  const size_t indexed = n.src().size() - 1;
  std::vector<UOp>
      target;  // sizes of the indexed source axes, then of the index axes, then the rest
  for (size_t k = 0; k < indexed; ++k) target.push_back(index_const(1));
  for (size_t k = 0; k < g.rank(); ++k) target.push_back(g.dim(k));
  UOp value = reshape(g, stack(target));
  for (size_t k = 0; k < indexed; ++k) target[k] = source.dim(k);
  value = expand(value, stack(target));
  size_t position = indexed;
  Ints summed;
  UOp mask;
  const size_t total = target.size();
  for (size_t k = 0; k < indexed; ++k) {
    const UOp& which = n.src(k + 1);
    std::vector<UOp> pos_shape(total, index_const(1)), which_shape(total, index_const(1));
    pos_shape[k] = source.dim(k);
    for (size_t d = 0; d < which.rank(); ++d) {
      summed.push_back(static_cast<int64_t>(position));
      which_shape[position++] = which.dim(d);
    }
    const DType dtype = which.dtype() == DType::Index ? DType::Int64 : which.dtype();
    const UOp here = reshape(iota(source.dim(k), dtype), stack(pos_shape));
    const UOp equal = eq(here, reshape(cast(which, dtype), stack(which_shape)));
    mask = mask ? bit_and(mask, equal) : equal;
  }
  UOp out = where(mask, value, like(value, 0));
  if (!summed.empty()) out = reduce(Op::Add, out, summed);
  return first(n, reshape(out, source.shape()));
}

Cotangents reduce_vjp(const UOp& n, const UOp& g) {
  const UOp& x = n.src(0);
  const ReduceArg& arg = n.as<ReduceArg>();
  const UOp wide = expand(g, x.shape());
  if (arg.op == Op::Add) return {wide};
  if (arg.op == Op::Max) {
    const UOp hit = eq(x, expand(n, x.shape()));
    const UOp count = reduce(Op::Add, cast(hit, x.dtype()), arg.axes);
    return {where(hit, expand(fdiv(g, count), x.shape()), like(x, 0))};
  }
  return {mul(wide, product_of_others(x, arg.axes))};
}

// The value takes what lies inside, the fill the sum of what lies around it.
Cotangents pad_vjp(const UOp& n, const UOp& g) {
  const UOp &offset = n.src(1), &inner = n.src(0).shape();
  Cotangents out = first(n, shrink(g, offset, inner));
  if (n.src().size() < 4 || n.src(3).is(Op::Const)) return out;
  const UOp inside =
      pad(spread(constant_bool(true), inner), offset, n.shape(), constant_bool(false));
  const UOp around = where(inside, like(g, 0), g);
  out[3] = reshape(reduce(Op::Add, around, all_axes(around)), shape_of({}));
  return out;
}

Cotangents add_vjp(const UOp&, const UOp& g) { return {g, g}; }
Cotangents mul_vjp(const UOp& n, const UOp& g) { return {times(g, n.src(1)), times(g, n.src(0))}; }
Cotangents mulacc_vjp(const UOp& n, const UOp& g) {
  return {times(g, n.src(1)), times(g, n.src(0)), g};
}
Cotangents recip_vjp(const UOp& n, const UOp& g) { return {neg(mul(g, mul(n, n)))}; }
Cotangents sqrt_vjp(const UOp& n, const UOp& g) { return {fdiv(g, mul(n, like(n, 2)))}; }
Cotangents exp_vjp(const UOp& n, const UOp& g) {
  if (base_of(n.arg()) == Base::E) return {mul(g, n)};
  return {mul(g, mul(n, like(n, std::numbers::ln2)))};
}
Cotangents log_vjp(const UOp& n, const UOp& g) {
  if (base_of(n.arg()) == Base::E) return {fdiv(g, n.src(0))};
  return {fdiv(mul(g, like(g, std::numbers::log2e)), n.src(0))};
}
Cotangents sin_vjp(const UOp& n, const UOp& g) {
  return {mul(g, sine(n.src(0), quarter_turns_of(n.arg()) + 1))};
}
Cotangents where_vjp(const UOp& n, const UOp& g) {
  const UOp condition = where_condition(n);
  return {UOp(), mask_of(condition, g), where(condition, like(g, 0), g)};
}
Cotangents reshape_vjp(const UOp& n, const UOp& g) {
  return first(n, in_shape(g, n.src(0).shape()));
}
Cotangents expand_vjp(const UOp& n, const UOp& g) { return first(n, sum_to(g, n.src(0).shape())); }
Cotangents flip_vjp(const UOp& n, const UOp& g) { return {flip(g, n.as<Ints>())}; }
Cotangents shrink_vjp(const UOp& n, const UOp& g) {
  return first(n, pad(g, n.src(1), n.src(0).shape(), like(g, 0)));
}
Cotangents fence_vjp(const UOp& n, const UOp& g) { return first(n, g); }
Cotangents same_vjp(const UOp&, const UOp& g) { return {g}; }
Cotangents contiguous_backward_vjp(const UOp&, const UOp& g) { return {contiguous(g)}; }
Cotangents load_vjp(const UOp& n, const UOp& g) {
  KOINE_REQUIRE(n.src().size() == 1, Value, "gradient: a gated Load has no gradient rule");
  return {copy_to(g, n.src(0).node()->placement)};
}

}  // namespace

VjpCell vjp_cell(Op op) {
  using C = VjpCell;
  switch (op) {
    case Op::Add:
      return C::by(add_vjp);
    case Op::Mul:
      return C::by(mul_vjp);
    case Op::Mulacc:
      return C::by(mulacc_vjp);
    case Op::Max:
      return C::by(max_vjp);
    case Op::Fdiv:
      return C::by(fdiv_vjp);
    case Op::Pow:
      return C::by(pow_vjp);
    case Op::Mod:
      return C::by(mod_vjp);
    case Op::Recip:
      return C::by(recip_vjp);
    case Op::Sqrt:
      return C::by(sqrt_vjp);
    case Op::Exp2:
      return C::by(exp_vjp);
    case Op::Log2:
      return C::by(log_vjp);
    case Op::Sin:
      return C::by(sin_vjp);
    case Op::Where:
      return C::by(where_vjp);
    case Op::Cast:
      return C::by(cast_vjp);
    case Op::Reshape:
      return C::by(reshape_vjp);
    case Op::Permute:
      return C::by(permute_vjp);
    case Op::Expand:
      return C::by(expand_vjp);
    case Op::Flip:
      return C::by(flip_vjp);
    case Op::Pad:
      return C::by(pad_vjp);
    case Op::Shrink:
      return C::by(shrink_vjp);
    case Op::Stack:
      return C::by(stack_vjp);
    case Op::Index:
      return C::by(index_vjp);
    case Op::Replicated:
      return C::by(replicated_vjp);
    case Op::Reduce:
      return C::by(reduce_vjp);
    case Op::After:
      return C::by(after_vjp);
    case Op::Store:
      return C::by(stored_vjp);
    case Op::Load:
      return C::by(load_vjp);
    case Op::Fence:
      return C::by(fence_vjp);
    case Op::Contiguous:
      return C::by(same_vjp);
    case Op::ContiguousBackward:
      return C::by(contiguous_backward_vjp);
    case Op::Trunc:
      return C::nothing("it is constant between whole numbers");
    case Op::CmpLt:
    case Op::CmpNe:
      return C::nothing("a bool has no slope");
    case Op::Idiv:
    case Op::Xor:
    case Op::Or:
    case Op::And:
    case Op::Shl:
    case Op::Shr:
    case Op::Assume:
      return C::nothing("integers have no slope");
    case Op::Threefry:
      return C::nothing("random bits are integers");
    case Op::Bitcast:
      return C::nothing("bits are integers");
    case Op::Detach:
      return C::nothing("it stops the gradient");
    case Op::Param:
    case Op::Buffer:
    case Op::Const:
      return C::nothing("it has no sources");
    case Op::Binary:
      return C::nothing("bytes have no slope");
    case Op::Function:
    case Op::Call:
    case Op::Scan:
    case Op::Switch:
    case Op::Tuple:
    case Op::GetTuple:
      return C::nothing("the driver goes through calls");
    case Op::While:
      return C::refused(
          "a while_loop has no gradient: how often it steps is known when it has ended");
    case Op::Group:
      return C::refused(of_groups);
    case Op::Range:
    case Op::End:
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
      return C::refused(of_kernels_alone);
  }
  return C::refused(of_kernels_alone);
}

}  // namespace koine

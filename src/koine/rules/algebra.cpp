#include <cmath>

#include "koine/ir/build.hpp"
#include "koine/ir/eval.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

UOp fold_constants(const Match& m) {
  const UOp& node = m.root();
  Bits operands[3] = {};
  for (size_t i = 0; i < node.src().size(); ++i) {
    const UOp& s = node.src(i);
    if (!s.is(Op::Const) || is_invalid(s)) return {};
    operands[i] = s.as<ConstArg>().bits;
  }
  const DType in = node.src(node.is(Op::Where) ? 1 : 0).dtype();
  if (!can_evaluate(node.op(), in)) return {};
  // Index arithmetic is unbounded: its own rules fold it with overflow checks.
  if (node.dtype() == DType::Index && is_elementwise(node.op()) && in == DType::Index &&
      !node.is(Op::Where))
    return {};
  return constant_bits(node.dtype(), evaluate(node.op(), node.dtype(), in,
                                              std::span<const Bits>(operands, node.src().size())));
}

UOp fold_bitcast(const Match& m) {
  const UOp& source = m[0];
  if (item_size(source.dtype()) != item_size(m.root().dtype()) || source.dtype() == DType::Bool ||
      m.root().dtype() == DType::Bool)
    return {};
  return constant_bits(m.root().dtype(), source.as<ConstArg>().bits);
}

OpSet elementwise_ops() {
  OpSet set;
  for (int i = 0; i < op_count; ++i)
    if (is_elementwise(static_cast<Op>(i))) set.set(static_cast<size_t>(i));
  return set;
}

// A scalar known by its bounds: the constant. Floats must exclude NaN and both zeros.
UOp by_bounds(const Match& m) {
  const UOp& u = m.root();
  if (!u.is_scalar() || is_float(u.dtype())) return {};
  const Interval& b = u.bounds();
  if (!b.is_constant()) return {};
  return constant_bits(u.dtype(), u.dtype() == DType::UInt64
                                      ? static_cast<Bits>(b.low)
                                      : int_to_bits(u.dtype(), static_cast<int64_t>(b.low)));
}

bool lossless(DType from, DType to) {
  if (from == to || from == DType::Bool) return true;
  if (to == DType::Bool || from == DType::Index) return false;
  if (is_float(from)) return is_float(to) && promote(from, to) == to;
  if (to == DType::Index) return from != DType::UInt64;
  if (is_float(to)) return dtype_info(from).bits <= significant_bits(to);
  return promote(from, to) == to;
}

UOp cast_of_cast(const Match& m) {
  const UOp& inner = m[0];  // the Cast
  const UOp& x = inner.src(0);
  const DType a = x.dtype(), b = inner.dtype(), c = m.root().dtype();
  if (b == DType::Index && is_integer(c) && c != a) return {};  // comparisons want the index
  // Floats saturate where integers wrap: a float between two integers must not matter.
  const bool rounds_between = is_float(b) && !is_float(a) && is_integer(c);
  if (lossless(a, b) && (!rounds_between || lossless(a, c))) return cast(x, c);
  // Integer truncations compose.
  if (is_integer(a) && is_integer(b) && is_integer(c) && b != DType::Index && c != DType::Index &&
      a != DType::Index && item_size(c) <= item_size(b))
    return cast(x, c);
  return {};
}

bool is_zero(const UOp& u) { return is_const(u, 0); }
bool commutes(const UOp& u) {
  // Max of two zeros gives the left one: order matters there for floats.
  return !u.is(Op::Max) || !is_float(u.dtype());
}

// Whether every value of an index is one of the integer dtype.
bool holds(DType dtype, const UOp& index) {
  const IntegerRange r = integer_range(dtype);
  return index.bounds().low >= r.low && index.bounds().high <= r.high;
}
bool exact_integer(const UOp& u) { return !is_float(u.dtype()) && u.dtype() != DType::Index; }

// Of where(c, f(x), f(y)), where all but one operand of f agree, the choice between these. Not of a
// float product, which the sum behind it might take unrounded then, nor of a sum of one, which
// takes it unrounded now: the same sum elsewhere is to have the same value.
UOp choice_within(const Match& m) {
  const UOp &root = m.root(), &a = root.src(1), &b = root.src(2);
  auto rounds = [](const UOp& u) {
    return u.is(Op::Mul) && is_float(u.dtype()) && !is_rounded_product(u);
  };
  if (a == b || a.op() != b.op() || !(a.arg() == b.arg()) || a.tag() != b.tag() ||
      (a.is(Op::Mul) && is_float(a.dtype())) || !is_elementwise(a.op()) || a.is(Op::Where) ||
      a.is(Op::Mulacc) || !root.is_scalar() || a.dtype() == DType::Index ||
      a.dtype() == DType::Bool)
    return {};
  const bool turned =
      is_commutative(a.op()) && commutes(a) && (a.src(0) == b.src(1) || a.src(1) == b.src(0));
  auto other = [&](size_t i) -> const UOp& { return b.src(turned ? 1 - i : i); };
  size_t differing = 0, count = 0;
  for (size_t i = 0; i < a.src().size(); ++i)
    if (!(a.src(i) == other(i))) differing = i, ++count;
  const UOp &left = a.src(differing), &right = other(differing);
  if (count != 1 || left.dtype() != right.dtype() || left.dtype() == DType::Index ||
      left.is(Op::Const) || right.is(Op::Const) || rounds(left) || rounds(right))
    return {};
  return with_source(a, differing, where(root.src(0), left, right));
}

// Where one of two elements is loaded, each at a place that memory says: one load of it.
UOp place_within(const Match& m) {
  const UOp &choice = m[2], &a = m[0], &b = m[1];
  auto gated = [](const UOp& u) { return u.src().size() == 3 && u.src(0).is(Op::Index); };
  if (!gated(a) || !gated(b) || !(a.arg() == b.arg()) || !(a.src(1) == b.src(1))) return {};
  const UOp &first = a.src(0), &second = b.src(0);
  const bool known = first.src().size() != 2 || second.src().size() != 2 ||
                     (first.src(1).node()->ops_below & mask_of(Op::Load)) == 0;
  if (known || !(first.src(0) == second.src(0)) || !(a.src(2) == choice) ||
      !(b.src(2) == logical_not(choice)))
    return {};
  const UOp place = where(choice, first.src(1), second.src(1));
  return UOp::make(Op::Load, {with_source(first, 1, place)}, a.arg());
}

RuleSet<> make_algebra() {
  const Pat x = any(0), y = any(1), z = any(2), c1 = any_const(3), c2 = any_const(4);
  return {
      // --- constants to the right
      rule("const-right",
           node(ops({Op::Add, Op::Mul, Op::Max, Op::CmpNe, Op::Xor, Op::Or, Op::And}), {c1, x}),
           [](const Match& m) {
             if (m[0].is(Op::Const) || !is_commutative(m.root().op()) || !commutes(m.root()))
               return UOp();
             return with_sources(m.root(), std::vector<UOp>{m[0], m[3]});
           }),
      // --- Add
      rule("x+0", x + c1,
           [](const Match& m) {
             if (is_float(m[0].dtype()))  // only -0.0 is neutral
               return m[3].as<ConstArg>().bits == double_to_bits(m[0].dtype(), -0.0) ? m[0] : UOp();
             return is_zero(m[3]) ? m[0] : UOp();
           }),
      rule("(x+c1)+c2", (x + c1) + c2,
           [](const Match& m) { return exact_integer(m[0]) ? add(m[0], add(m[3], m[4])) : UOp(); }),
      rule("(x+c1)+y", (x + c1) + y,
           [](const Match& m) {
             return exact_integer(m[0]) && !m[1].is(Op::Const) ? add(add(m[0], m[1]), m[3]) : UOp();
           }),
      rule("x+(-x)", x + x * -1,
           [](const Match& m) {
             return is_float(m[0].dtype()) || !m[0].is_scalar() ? UOp() : constant_like(m[0], 0);
           }),
      // --- Mul
      rule("x*1", x * 1, [](const Match& m) { return m[0]; }),
      rule("x*0", x * 0,
           [](const Match& m) {
             return is_float(m[0].dtype()) || !m[0].is_scalar() ? UOp() : constant_like(m[0], 0);
           }),
      rule("(x*-1)*-1", (x * -1) * -1, [](const Match& m) { return m[0]; }),
      rule("(x*c1)*c2", (x * c1) * c2,
           [](const Match& m) { return exact_integer(m[0]) ? mul(m[0], mul(m[3], m[4])) : UOp(); }),
      rule("int x*mask", x * pat_cast(y),
           [](const Match& m) {
             if (is_float(m[0].dtype()) || m[1].dtype() != DType::Bool ||
                 m[0].dtype() == DType::Bool)
               return UOp();
             return m[0].is_scalar() ? where(m[1], m[0], constant_int(m[0].dtype(), 0)) : UOp();
           }),
      rule("x//-1", node(Op::Idiv, {x, Pat(-1)}).of(DTypeClass::Integer),
           [](const Match& m) -> UOp {
             return is_signed(m.root().dtype()) ? mul(m[0], m.root().src(1)) : UOp();
           }),
      rule("x/1", node(Op::Fdiv, {x, Pat(1)}), [](const Match& m) { return m[0]; }),
      // --- Max, logic
      rule("max(x,x)", pat_max(x, x), [](const Match& m) { return m[0]; }),
      rule("x&x", node(ops({Op::And, Op::Or}), {x, x}), [](const Match& m) { return m[0]; }),
      rule("x^0 x|0", node(ops({Op::Xor, Op::Or}), {x, Pat(0)}),
           [](const Match& m) { return m[0]; }),
      rule("x&0", x & 0,
           [](const Match& m) { return m[0].is_scalar() ? constant_like(m[0], 0) : UOp(); }),
      rule("x&true", (x & 1).of(DTypeClass::Bool), [](const Match& m) { return m[0]; }),
      rule("x|true", (x | 1).of(DTypeClass::Bool),
           [](const Match& m) { return m[0].is_scalar() ? constant_bool(true) : UOp(); }),
      rule("(x&y)&x", (x & y).as(2) & x, [](const Match& m) { return m[2]; }),
      rule("(x&y)&y", (x & y).as(2) & y, [](const Match& m) { return m[2]; }),
      rule("x^x", x ^ x,
           [](const Match& m) { return m[0].is_scalar() ? constant_like(m[0], 0) : UOp(); }),
      rule("shift 0", node(ops({Op::Shl, Op::Shr}), {x, Pat(0)}),
           [](const Match& m) { return m[0]; }),
      rule("-1>>x", node(Op::Shr, {Pat(-1), x}),
           [](const Match& m) -> UOp {
             const UOp& root = m.root();
             return root.is_scalar() && is_signed(root.dtype()) ? root.src(0) : UOp();
           }),
      rule("shift all out", node(ops({Op::Shl, Op::Shr}), {x, any_const(1)}),
           [](const Match& m) {
             const int64_t width = 8 * item_size(m[0].dtype());
             const auto by = static_cast<uint64_t>(const_int(m[1]));
             if (by < static_cast<uint64_t>(width) || !m[0].is_scalar()) return UOp();
             if (m.root().is(Op::Shl) || !is_signed(m[0].dtype())) return constant_like(m[0], 0);
             return binary(Op::Shr, m[0], constant_like(m[1], width - 1));
           }),
      // --- comparisons
      rule("x!=x", x != x,
           [](const Match& m) {
             return is_float(m[0].dtype()) || !m[0].is_scalar() ? UOp() : constant_bool(false);
           }),
      rule("x<x", x < x,
           [](const Match& m) { return m[0].is_scalar() ? constant_bool(false) : UOp(); }),
      rule("not not x", (x != 1) != 1,
           [](const Match& m) { return m[0].dtype() == DType::Bool ? m[0] : UOp(); }),
      rule("bool x != false", x != 0,
           [](const Match& m) { return m[0].dtype() == DType::Bool ? m[0] : UOp(); }),
      rule("cast(bool) != 0", pat_cast(x) != 0,
           [](const Match& m) { return m[0].dtype() == DType::Bool ? m[0] : UOp(); }),
      rule("cast(bool) != 1", pat_cast(x) != 1,
           [](const Match& m) { return m[0].dtype() == DType::Bool ? logical_not(m[0]) : UOp(); }),
      // --- Where
      rule("where(c,x,x)", pat_where(y, x, x),
           [](const Match& m) { return m[1].rank() <= m[0].rank() ? m[0] : UOp(); }),
      rule("where(const)", pat_where(any_const(3), x, y),
           [](const Match& m) {
             const UOp& chosen = is_zero(m[3]) ? m[1] : m[0];
             return chosen.shape() == m.root().shape() ? chosen : UOp();
           }),
      rule("where(not c)", pat_where(z != 1, x, y),
           [](const Match& m) {
             return m[2].dtype() == DType::Bool ? where(m[2], m[1], m[0]) : UOp();
           }),
      rule("where(c, where(c,x,_), y)", pat_where(z, pat_where(z, x, any(3)), y),
           [](const Match& m) { return where(m[2], m[0], m[1]); }),
      rule("where(c, x, where(c,_,y))", pat_where(z, x, pat_where(z, any(3), y)),
           [](const Match& m) { return where(m[2], m[0], m[1]); }),
      rule("where(a, where(b,x,y), y)", pat_where(z, pat_where(any(3), x, y), y),
           [](const Match& m) { return where(bit_and(m[2], m[3]), m[0], m[1]); }),
      rule("where(c,true,false)", pat_where(z, Pat(1), Pat(0)).of(DTypeClass::Bool),
           [](const Match& m) { return m[2]; }),
      rule("where(c,false,true)", pat_where(z, Pat(0), Pat(1)).of(DTypeClass::Bool),
           [](const Match& m) { return logical_not(m[2]); }),
      rule("where(c,f(x),f(y))", node(Op::Where), choice_within),
      rule("where(c,load,load)", pat_where(z, node(Op::Load).as(0), node(Op::Load).as(1)),
           place_within),
      // --- casts
      rule("cast to itself", pat_cast(x),
           [](const Match& m) { return m[0].dtype() == m.root().dtype() ? m[0] : UOp(); }),
      rule("cast(cast(x))", pat_cast(node(Op::Cast).as(0)), cast_of_cast),
      rule("trunc(int)", node(Op::Trunc, {x}),
           [](const Match& m) { return is_float(m[0].dtype()) ? UOp() : m[0]; }),
      rule("bitcast(bitcast(x))", node(Op::Bitcast, {node(Op::Bitcast, {x}).as(1)}),
           [](const Match& m) {
             return item_size(m[1].dtype()) == item_size(m[0].dtype())
                        ? bitcast(m[0], m.root().dtype())
                        : UOp();
           }),
      // --- wrapping integers that hold an index: compute in index where nothing can wrap
      rule("cast(index)+c", node(ops({Op::Add, Op::Mul}), {pat_cast(x), any_const(3)}),
           [](const Match& m) {
             if (m[0].dtype() != DType::Index || is_float(m.root().dtype()) ||
                 m.root().dtype() == DType::UInt64)
               return UOp();
             const UOp exact = binary(m.root().op(), m[0], index_const(const_int(m[3])));
             const DType d = m.root().dtype();
             return holds(d, m[0]) && holds(d, exact) ? cast(exact, d) : UOp();
           }),
      rule("cast(index)*cast(index)", node(ops({Op::Add, Op::Mul}), {pat_cast(x), pat_cast(y)}),
           [](const Match& m) {
             if (m[0].dtype() != DType::Index || m[1].dtype() != DType::Index ||
                 is_float(m.root().dtype()) || m.root().dtype() == DType::UInt64)
               return UOp();
             const UOp exact = binary(m.root().op(), m[0], m[1]);
             const DType d = m.root().dtype();
             return holds(d, m[0]) && holds(d, m[1]) && holds(d, exact) ? cast(exact, d) : UOp();
           }),
      rule("cast(index) < y", node(ops({Op::CmpLt, Op::CmpNe}), {pat_cast(x), y}),
           [](const Match& m) {
             const DType dtype = m[1].dtype();
             if (m[0].dtype() != DType::Index || is_float(dtype) || dtype == DType::UInt64)
               return UOp();
             if (!holds(dtype, m[0])) return UOp();
             return binary(m.root().op(), m[0], cast(m[1], DType::Index));
           }),
      rule("y < cast(index)", node(ops({Op::CmpLt, Op::CmpNe}), {y, pat_cast(x)}),
           [](const Match& m) {
             const DType dtype = m[1].dtype();
             if (m[0].dtype() != DType::Index || is_float(dtype) || dtype == DType::UInt64)
               return UOp();
             if (!holds(dtype, m[0])) return UOp();
             return binary(m.root().op(), cast(m[1], DType::Index), m[0]);
           }),
      rule("cast(cast(index))", pat_cast(pat_cast(x).as(1)),
           [](const Match& m) {
             if (m[0].dtype() != DType::Index || is_float(m[1].dtype()) ||
                 m[1].dtype() == DType::Bool)
               return UOp();
             return holds(m[1].dtype(), m[0]) ? cast(m[0], m.root().dtype()) : UOp();
           }),
  };
}

}  // namespace

const RuleSet<>& fold_rules() {
  static const auto& rules = *new const RuleSet<>{
      rule("fold", node(elementwise_ops()), fold_constants),
      rule("fold-bitcast", node(Op::Bitcast, {any_const(0)}), fold_bitcast),
      rule(
          "by-bounds",
          node(ops({Op::CmpLt, Op::CmpNe, Op::And, Op::Or, Op::Where, Op::Mod, Op::Idiv, Op::Max})),
          by_bounds),
      rule("range-of-one", node(Op::Range, {Pat(1)}), [](const Match&) { return index_const(0); }),
  };
  return rules;
}

const RuleSet<>& algebra_rules() {
  static const auto& rules = *new const RuleSet<>(make_algebra());
  return rules;
}

const RuleSet<>& forward_rules() {
  const Pat x = any(0), c = any_const(1);
  static const auto& rules = *new const RuleSet<>{
      rule("detach", node(Op::Detach, {x}), [](const Match& m) { return m[0]; }),
      rule("relu", pat_where(c < x, x, pat_max(x, c).as(2)), [](const Match& m) { return m[2]; }),
      rule("abs", pat_where(c < x, x, (x + any_const(3)).as(2)),
           [](const Match& m) { return is_zero(m[1]) && is_zero(m[3]) ? m[2] : UOp(); }),
  };
  return rules;
}

}  // namespace koine

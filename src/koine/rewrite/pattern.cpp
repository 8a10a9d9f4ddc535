#include "koine/rewrite/pattern.hpp"

#include "koine/ir/build.hpp"

namespace koine {

Pat::Pat(int64_t literal) {
  PatNode n;
  n.ops = koine::ops({Op::Const});
  n.literal = true;
  n.value = literal;
  node_ = std::make_shared<const PatNode>(std::move(n));
}

Pat Pat::as(int slot) const {
  PatNode n = *node_;
  n.slot = slot;
  return Pat(std::move(n));
}
Pat Pat::of(DTypeClass dtype) const {
  PatNode n = *node_;
  n.dtype = dtype;
  return Pat(std::move(n));
}

Pat any(int slot) {
  PatNode n;
  n.slot = slot;
  return Pat(std::move(n));
}
Pat any_const(int slot) {
  PatNode n;
  n.ops = ops({Op::Const});
  n.slot = slot;
  return Pat(std::move(n));
}

Pat node(OpSet set, const std::vector<Pat>& sources) {
  PatNode n;
  n.ops = set;
  for (const Pat& p : sources) n.sources.push_back(p.shared());
  if (set.count() == 1 && sources.size() == 2)
    for (int i = 0; i < op_count; ++i)
      if (set[static_cast<size_t>(i)]) n.commutative = is_commutative(static_cast<Op>(i));
  return Pat(std::move(n));
}
Pat node(Op op, const std::vector<Pat>& sources) { return node(ops({op}), sources); }
Pat node_with(Op op, const std::vector<Pat>& sources) {
  PatNode n = node(op, sources).node();
  n.more_sources = true;
  n.commutative = false;
  return Pat(std::move(n));
}

Pat operator+(const Pat& a, const Pat& b) { return node(Op::Add, {a, b}); }
Pat operator*(const Pat& a, const Pat& b) { return node(Op::Mul, {a, b}); }
Pat operator<(const Pat& a, const Pat& b) { return node(Op::CmpLt, {a, b}); }
Pat operator!=(const Pat& a, const Pat& b) { return node(Op::CmpNe, {a, b}); }
Pat operator&(const Pat& a, const Pat& b) { return node(Op::And, {a, b}); }
Pat operator|(const Pat& a, const Pat& b) { return node(Op::Or, {a, b}); }
Pat operator^(const Pat& a, const Pat& b) { return node(Op::Xor, {a, b}); }
Pat pat_max(const Pat& a, const Pat& b) { return node(Op::Max, {a, b}); }
Pat pat_idiv(const Pat& a, const Pat& b) { return node(Op::Idiv, {a, b}); }
Pat pat_mod(const Pat& a, const Pat& b) { return node(Op::Mod, {a, b}); }
Pat pat_where(const Pat& p, const Pat& a, const Pat& b) { return node(Op::Where, {p, a, b}); }
Pat pat_cast(const Pat& a) { return node(Op::Cast, {a}); }

namespace {

bool dtype_fits(DTypeClass wanted, DType dtype) {
  switch (wanted) {
    case DTypeClass::Any:
      return true;
    case DTypeClass::Index:
      return dtype == DType::Index;
    case DTypeClass::Integer:
      return is_integer(dtype);
    case DTypeClass::Float:
      return is_float(dtype);
    case DTypeClass::Bool:
      return dtype == DType::Bool;
  }
  return false;
}

}  // namespace

bool match(const PatNode& pattern, const UOp& node, Match& m) {
  if (pattern.ops.any() && !pattern.ops[static_cast<size_t>(node.op())]) return false;
  if (pattern.dtype != DTypeClass::Any && !dtype_fits(pattern.dtype, node.dtype())) return false;
  if (node.is(Op::Const) && is_invalid(node) && pattern.ops.any()) return false;
  if (pattern.literal && !is_const(node, pattern.value)) return false;
  if (pattern.slot >= 0 && !m.capture(pattern.slot, node)) return false;
  const auto& wanted = pattern.sources;
  if (wanted.empty()) return true;
  const auto src = node.src();
  if (pattern.more_sources ? src.size() < wanted.size() : src.size() != wanted.size()) return false;
  if (!pattern.commutative) {
    for (size_t i = 0; i < wanted.size(); ++i)
      if (!match(*wanted[i], src[i], m)) return false;
    return true;
  }
  const Match before = m;
  if (match(*wanted[0], src[0], m) && match(*wanted[1], src[1], m)) return true;
  m = before;
  return match(*wanted[0], src[1], m) && match(*wanted[1], src[0], m);
}

}  // namespace koine

#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

UOp stack_sum(const UOp& a, const UOp& b) {
  std::vector<UOp> dims;
  for (size_t i = 0; i < a.src().size(); ++i)
    dims.push_back(simplify_index(add(a.src(i), b.src(i))));
  return stack(dims);
}

bool all_zero(const UOp& offsets) {
  for (const UOp& o : offsets.src())
    if (!is_const(o, 0)) return false;
  return true;
}

RuleSet<> make_movement() {
  const Pat x = any(0), s = any(1), t = any(2), o = any(3), q = any(4);
  return {
      rule("reshape to itself", node(Op::Reshape, {x, s}),
           [](const Match& m) { return m[0].shape() == m[1] ? m[0] : UOp(); }),
      rule("expand to itself", node(Op::Expand, {x, s}),
           [](const Match& m) { return m[0].shape() == m[1] ? m[0] : UOp(); }),
      rule("reshape(reshape)", node(Op::Reshape, {node(Op::Reshape, {x, s}), t}),
           [](const Match& m) { return reshape(m[0], m[2]); }),
      rule("expand(expand)", node(Op::Expand, {node(Op::Expand, {x, s}), t}),
           [](const Match& m) { return expand(m[0], m[2]); }),
      rule("permute identity", node(Op::Permute, {x}),
           [](const Match& m) {
             const Ints& order = m.root().as<Ints>();
             for (size_t i = 0; i < order.size(); ++i)
               if (order[i] != static_cast<int64_t>(i)) return UOp();
             return m[0];
           }),
      rule("permute(permute)", node(Op::Permute, {node(Op::Permute, {x}).as(1)}),
           [](const Match& m) {
             Ints order;
             for (const int64_t axis : m.root().as<Ints>())
               order.push_back(m[1].as<Ints>()[static_cast<size_t>(axis)]);
             return permute(m[0], order);
           }),
      rule("flip nothing", node(Op::Flip, {x}),
           [](const Match& m) {
             for (const int64_t f : m.root().as<Ints>())
               if (f != 0) return UOp();
             return m[0];
           }),
      rule("flip(flip)", node(Op::Flip, {node(Op::Flip, {x}).as(1)}),
           [](const Match& m) {
             Ints flags = m.root().as<Ints>();
             for (size_t i = 0; i < flags.size(); ++i)
               flags[i] = (flags[i] != 0) != (m[1].as<Ints>()[i] != 0);
             return flip(m[0], flags);
           }),
      rule("shrink to itself", node(Op::Shrink, {x, o, s}),
           [](const Match& m) { return m[0].shape() == m[1] && all_zero(m[3]) ? m[0] : UOp(); }),
      rule("pad to itself", node_with(Op::Pad, {x, o, s}),
           [](const Match& m) { return m[0].shape() == m[1] && all_zero(m[3]) ? m[0] : UOp(); }),
      rule("shrink(pad)", node(Op::Shrink, {node_with(Op::Pad, {x, o, s}), o, t}),
           [](const Match& m) { return m[0].shape() == m[2] ? m[0] : UOp(); }),
      // A marked one copies in any case (Tensor.clone).
      rule("contiguous(contiguous)",
           node(Op::Contiguous, {node(ops({Op::Contiguous, Op::Load})).as(0)}),
           [](const Match& m) { return m.root().is_marked() ? UOp() : m[0]; }),
      rule("shrink(shrink)", node(Op::Shrink, {node(Op::Shrink, {x, o, s}), q, t}),
           [](const Match& m) { return shrink(m[0], stack_sum(m[3], m[4]), m[2]); }),
  };
}

}  // namespace

const RuleSet<>& movement_rules() {
  static const auto& rules = *new const RuleSet<>(make_movement().remembered());
  return rules;
}

}  // namespace koine

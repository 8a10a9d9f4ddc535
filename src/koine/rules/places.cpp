#include "koine/rules/places.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {

UOp flat_index(const UOp& shape, const Indices& at) {
  UOp flat = index_const(0);
  for (size_t i = 0; i < at.size(); ++i) flat = add(mul(flat, shape.src(i)), at[i]);
  return simplify_index(flat);
}

Indices unflatten(const UOp& flat, const UOp& shape) {
  Indices at(shape.src().size());
  UOp rest = flat;
  for (size_t i = at.size(); i-- > 0;) {
    const UOp& size = shape.src(i);
    if (is_const(size, 1)) {
      at[i] = index_const(0);
    } else if (i == 0) {
      at[i] = rest;  // in bounds, so the outermost axis needs no mod
    } else {
      at[i] = simplify_index(mod(rest, size));
      rest = simplify_index(idiv(rest, size));
    }
  }
  return at;
}

UOp conjunction(const UOp& a, const UOp& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  return simplify(bit_and(a, b));
}

std::vector<Choice> choices_of(const UOp& stack, const UOp& which) {
  const auto last = static_cast<int64_t>(stack.src().size()) - 1;
  if (which.is(Op::Const) && last >= 0)
    return {{stack.src(static_cast<size_t>(std::clamp<int64_t>(const_int(which), 0, last))), {}}};
  std::vector<Choice> out;
  absl::flat_hash_map<const Node*, size_t> known;
  for (int64_t k = 0; k <= last; ++k) {
    const UOp& source = stack.src(static_cast<size_t>(k));
    const UOp here = simplify(eq(which, index_const(k)));
    const auto [it, fresh] = known.try_emplace(source.node(), out.size());
    if (fresh)
      out.push_back({source, here});
    else
      out[it->second].here = simplify(bit_or(out[it->second].here, here));
  }
  if (out.size() == 1) out[0].here = {};
  return out;
}

UOp guard_of(const Indices& at, const UOp& condition) {
  if (!condition) return condition;
  std::vector<const Node*> known;
  auto reach = [&](const UOp& u) {
    known.insert(known.end(), u.ranges().begin(), u.ranges().end());
  };
  for (const UOp& i : at) reach(i);
  const std::vector<UOp> parts = conjuncts(condition);
  std::vector<bool> kept(parts.size(), false);
  for (bool again = true; again;) {
    again = false;
    for (size_t k = 0; k < parts.size(); ++k) {
      const auto& its = parts[k].ranges();
      if (kept[k] || (!its.empty() && std::find_first_of(its.begin(), its.end(), known.begin(),
                                                         known.end()) == its.end()))
        continue;
      kept[k] = again = true;
      reach(parts[k]);
    }
  }
  if (std::find(kept.begin(), kept.end(), false) == kept.end()) return condition;
  UOp out;
  for (size_t k = 0; k < parts.size(); ++k)
    if (kept[k]) out = conjunction(out, parts[k]);
  return out;
}

bool is_true(const UOp& u) { return !u || is_const(u, 1); }
bool is_false(const UOp& u) { return u && is_const(u, 0); }

void keep_within(UOp& at, const UOp& size, UOp& inside) {
  const UOp low = simplify(logical_not(lt(at, index_const(0)))), high = simplify(lt(at, size));
  const UOp both = conjunction(low, high);
  if (is_true(both)) return;
  inside = conjunction(inside, both);
  if (!is_false(both))
    at = UOp::make(Op::Assume, {at, index_const(0), simplify_index(sub(size, index_const(1)))});
}

Indices aligned(const UOp& source, const Indices& at) {
  const size_t rank = source.rank();
  Indices out(at.end() - static_cast<std::ptrdiff_t>(rank), at.end());
  for (size_t i = 0; i < rank; ++i)
    if (is_const(source.dim(i), 1)) out[i] = index_const(0);
  return out;
}

UOp without_promises(const UOp& value) {
  static const auto& rules = *new const RuleSet<>{
      rule("keep promise", node(Op::Assume), [](const Match& m) { return m.root().src(0); })};
  return rewrite(value, rules);
}

Indices open_loops(const UOp& value, int64_t& next_range, std::vector<UOp>& loops) {
  Indices at;
  loops.clear();
  for (size_t i = 0; i < value.rank(); ++i) {
    const UOp size = value.dim(i);
    if (is_const(size, 1)) {
      at.push_back(index_const(0));
      continue;
    }
    loops.push_back(range(next_range++, size, AxisType::Loop));
    at.push_back(loops.back());
  }
  return at;
}

Indices indexed(const UOp& node, const Indices& at, UOp& inside,
                const std::function<UOp(const UOp& which, const Indices& at)>& fetch) {
  const UOp& source = node.src(0);
  Indices out;
  auto next = at.begin();
  for (size_t k = 0; k < source.rank(); ++k) {
    if (k + 1 >= node.src().size()) {
      out.push_back(*next++);
      continue;
    }
    const UOp& which = node.src(k + 1);
    const Indices its(next, next + static_cast<std::ptrdiff_t>(which.rank()));
    next += static_cast<std::ptrdiff_t>(which.rank());
    const UOp value = fetch(which, its);
    out.push_back(value ? simplify(cast(value, DType::Index)) : index_const(0));
    keep_within(out.back(), source.dim(k), inside);
  }
  return out;
}

Indices moved(const UOp& node, const Indices& at, UOp& inside) {
  const UOp& source = node.src(0);
  Indices out(source.rank());
  switch (node.op()) {
    case Op::Permute: {
      const Ints& order = node.as<Ints>();
      for (size_t i = 0; i < order.size(); ++i) out[static_cast<size_t>(order[i])] = at[i];
      return out;
    }
    case Op::Flip:
      for (size_t i = 0; i < at.size(); ++i)
        out[i] = node.as<Ints>()[i] == 0
                     ? at[i]
                     : simplify_index(sub(sub(source.dim(i), index_const(1)), at[i]));
      return out;
    case Op::Expand:
      for (size_t i = 0; i < at.size(); ++i)
        out[i] = is_const(source.dim(i), 1) ? index_const(0) : at[i];
      return out;
    case Op::Reshape:
      return unflatten(flat_index(node.shape(), at), source.shape());
    case Op::Replicated: {  // on one device: an axis of size 1
      const auto axis = static_cast<size_t>(node.as<int64_t>());
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = i == axis ? index_const(0) : at[i < axis ? i : i - 1];
      return out;
    }
    case Op::Shrink:
      for (size_t i = 0; i < at.size(); ++i)
        out[i] = simplify_index(add(at[i], node.src(1).src(i)));
      return out;
    case Op::Pad:
      for (size_t i = 0; i < at.size(); ++i) {
        out[i] = simplify_index(sub(at[i], node.src(1).src(i)));
        keep_within(out[i], source.dim(i), inside);
      }
      return out;
    default:
      internal_error("{} does not move", op_name(node.op()));
  }
}

}  // namespace koine

#include "koine/transform/gradient.hpp"

#include <bit>
#include <functional>
#include <numbers>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/transform/call_gradient.hpp"
#include "koine/transform/written.hpp"

namespace koine {

UOp sum_to(const UOp& value, const UOp& shape) {
  if (value.shape() == shape) return value;
  const size_t extra = value.rank() - shape.src().size();
  Ints axes;
  for (size_t i = 0; i < value.rank(); ++i)
    if (i < extra || !(value.dim(i) == shape.src(i - extra)))
      axes.push_back(static_cast<int64_t>(i));
  return reshape(reduce(Op::Add, value, axes), shape);
}

UOp iota(int64_t n, DType dtype) {
  if (n == 0)
    return shrink(reshape(constant_int(dtype, 0), shape_of({1})), shape_of({0}), shape_of({0}));
  constexpr int64_t row = int64_t{1} << 30;  // whose windows have fewer than 2^63 elements
  if (n > row) {
    const int64_t rows = (n + row - 1) / row;
    const UOp start =
                  mul(reshape(iota(rows, dtype), shape_of({rows, 1})), constant_int(dtype, row)),
              along = reshape(iota(row, dtype), shape_of({1, row}));
    const UOp whole =
        add(expand(start, shape_of({rows, row})), expand(along, shape_of({rows, row})));
    return shrink(reshape(whole, shape_of({rows * row})), shape_of({0}), shape_of({n}));
  }
  // prefix_sum(ones) - 1: windows of a padded, tiled row of ones.
  UOp x = expand(reshape(constant_int(dtype, 1), shape_of({1})), shape_of({n}));
  x = pad(x, shape_of({n - 1}), shape_of({2 * n - 1}), constant_int(dtype, 0));
  x = expand(reshape(x, shape_of({1, 2 * n - 1})), shape_of({n + 1, 2 * n - 1}));
  x = shrink(reshape(x, shape_of({(n + 1) * (2 * n - 1)})), shape_of({0}), shape_of({2 * n * n}));
  x = shrink(reshape(x, shape_of({n, 2 * n})), shape_of({0, 0}), shape_of({n, n}));
  x = reshape(reduce(Op::Add, x, {1}), shape_of({n}));
  return add(x, constant_int(dtype, -1));
}

UOp iota(const UOp& size, DType dtype) {
  if (size.is(Op::Const)) return iota(const_int(size), dtype);
  // The first of the longest sequence.
  const UOp most = iota(static_cast<int64_t>(size.bounds().high), dtype);
  return shrink(most, shape_of({0}), stack(std::vector<UOp>{size}));
}

namespace {

UOp like(const UOp& x, double v) { return constant(x.dtype(), v); }
UOp zeros_like(const UOp& g) { return like(g, 0); }

Ints all_axes(const UOp& x) {
  Ints axes(x.rank());
  std::iota(axes.begin(), axes.end(), int64_t{0});
  return axes;
}

// A scalar in every place of a shape.
UOp spread(const UOp& scalar, const UOp& shape) {
  return expand(reshape(scalar, shape_of(Ints(shape.src().size(), 1))), shape);
}

// The same elements, each as often as the shape has it.
UOp broadcast_to(const UOp& x, const UOp& shape) {
  if (x.shape() == shape) return x;
  std::vector<UOp> wide(shape.src().size() - x.rank(), index_const(1));
  for (size_t k = 0; k < x.rank(); ++k) wide.push_back(x.dim(k));
  return expand(reshape(x, stack(wide)), shape);
}

// g x, which is x where the cotangent is 1 in every place, as that of a sum is.
UOp times(const UOp& g, const UOp& x) {
  UOp base = g;
  while (base.is(Op::Expand) || base.is(Op::Reshape)) base = UOp(base.src(0));
  return is_const(base, 1) ? broadcast_to(x, g.shape()) : mul(g, x);
}

// Where several devices split a value, its cotangent lies as it does; beside a target in any case.
UOp placed_as(const UOp& value, const UOp& g, bool target) {
  const bool both = value.device().count() > 1 && g.device() == value.device();
  return both && (target || value.axis()) ? copy_to(g, value.node()->placement) : g;
}

using Cotangents = std::vector<UOp>;  // one a source; null: no gradient
using Vjp = std::function<Cotangents(const UOp& node, const UOp& g)>;

// Where one number divides many, as in a softmax, what they give is summed before it is divided.
Cotangents fdiv_vjp(const UOp& n, const UOp& g) {
  const UOp &a = n.src(0), &b = n.src(1), share = fdiv(g, b);
  if (b.shape() == n.shape()) return {share, neg(fdiv(mul(g, n), b))};
  return {share, neg(fdiv(sum_to(mul(share, a), b.shape()), b))};
}

Cotangents none(const UOp& node, const UOp&) { return Cotangents(node.src().size()); }

// Of equal copies the first has the whole cotangent, so that the sum over them is that.
Cotangents replicated_vjp(const UOp& n, const UOp& g) {
  const UOp& copies = n.src(0);
  const auto axis = static_cast<size_t>(n.as<int64_t>());
  std::vector<UOp> one;
  for (size_t k = 0; k < copies.rank(); ++k)
    one.push_back(k == axis ? index_const(1) : copies.dim(k));
  const UOp first = reshape(g, stack(one));
  if (n.device().count() == 1) return {first};
  const UOp all = pad(first, shape_of(Ints(copies.rank(), 0)), copies.shape(), zeros_like(g));
  return {copy_to(all, copies.node()->placement)};
}

// A movement whose first source is its value.
Cotangents first(const UOp& node, UOp g) {
  Cotangents out(node.src().size());
  out[0] = std::move(g);
  return out;
}

UOp mask_of(const UOp& condition, const UOp& g) { return where(condition, g, zeros_like(g)); }

// Of where(x > 0, x, max(detach(x), 0)) the condition is read from the result: x > 0 exactly where
// the result is, and then nothing has to keep x.
UOp relu_condition(const UOp& n) {
  const UOp &condition = n.src(0), &x = n.src(1), &rest = n.src(2);
  const bool relu = condition.is(Op::CmpLt) && condition.src(1) == x && rest.is(Op::Max) &&
                    rest.src(0).is(Op::Detach) && rest.src(0).src(0) == x &&
                    rest.src(1) == condition.src(0);
  return relu ? lt(condition.src(0), n) : condition;
}

Cotangents max_vjp(const UOp& n, const UOp& g) {
  const UOp &a = n.src(0), &b = n.src(1);
  const UOp half = mask_of(eq(a, b), mul(g, like(g, 0.5)));
  return {where(lt(b, a), g, half), where(lt(a, b), g, half)};
}

Cotangents pow_vjp(const UOp& n, const UOp& g) {
  const UOp &a = n.src(0), &b = n.src(1);
  const UOp lower = binary(Op::Pow, a, sub(b, like(b, 1)));
  const UOp da = where(eq(b, like(b, 0)), zeros_like(n), mul(b, lower));
  const UOp log_a = logarithm(a, Base::E);
  const UOp db = where(eq(a, like(a, 0)), zeros_like(n), mul(n, log_a));
  return {mul(g, da), mul(g, db)};
}

// a - b floor(a/b), of which the last is a whole number that the difference gives back.
Cotangents mod_vjp(const UOp& n, const UOp& g) {
  if (!is_float(n.dtype())) return {UOp(), UOp()};
  const UOp &a = n.src(0), &b = n.src(1);
  const UOp ratio = fdiv(sub(a, n), b), half = like(n, 0.5);
  const UOp rounded =
      unary(Op::Trunc, add(ratio, where(lt(ratio, zeros_like(n)), neg(half), half)));
  return {g, neg(mul(g, rounded))};
}

Cotangents cast_vjp(const UOp& n, const UOp& g) {
  if (!is_float(n.dtype()) || !is_float(n.src(0).dtype())) return {UOp()};
  return {cast(g, n.src(0).dtype())};
}

Cotangents permute_vjp(const UOp& n, const UOp& g) {
  const Ints& order = n.as<Ints>();
  Ints back(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return {permute(g, back)};
}

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
  UOp out = where(mask, value, zeros_like(value));
  if (!summed.empty()) out = reduce(Op::Add, out, summed);
  return first(n, reshape(out, source.shape()));
}

// For each element the product of the others along `axes`: of each pair of neighbouring blocks of
// 1, 2, 4, ... elements the product of the other one. Nothing is divided, so zeros are no special
// case, in derivatives of no order.
UOp product_of_others(const UOp& x, const Ints& axes) {
  Ints order, back(x.rank());
  UOp rows = index_const(1), count = index_const(1);
  for (size_t k = 0; k < x.rank(); ++k)
    if (std::ranges::count(axes, static_cast<int64_t>(k)) == 0) {
      order.push_back(static_cast<int64_t>(k));
      rows = simplify_index(mul(rows, x.dim(k)));
    }
  for (const int64_t axis : axes) {
    order.push_back(axis);
    count = simplify_index(mul(count, x.dim(static_cast<size_t>(axis))));
  }
  for (size_t k = 0; k < order.size(); ++k)
    back[static_cast<size_t>(order[k])] = static_cast<int64_t>(k);
  const UOp turned = permute(x, order);
  auto shape = [](std::initializer_list<UOp> dims) { return stack(std::vector<UOp>(dims)); };
  const UOp one = like(x, 1), row = shape({rows, count}), start = shape_of({0, 0});
  // A power of two that holds every size that `count` may have.
  const auto most = static_cast<uint64_t>(std::max<int64_t>(1, int64_t(count.bounds().high)));
  const auto total = static_cast<int64_t>(std::bit_ceil(most));
  const UOp whole = shape({rows, index_const(total)});
  const UOp padded = pad(reshape(turned, row), start, whole, one);
  UOp others = spread(one, whole);
  for (int64_t size = 1; size < total; size *= 2) {
    const UOp blocks = reshape(
        padded, shape({rows, index_const(total / size / 2), index_const(2), index_const(size)}));
    const UOp other = flip(reduce(Op::Mul, blocks, {3}), {0, 0, 1, 0});
    others = mul(others, reshape(expand(other, blocks.shape()), whole));
  }
  return permute(reshape(shrink(others, start, row), turned.shape()), back);
}

Cotangents reduce_vjp(const UOp& n, const UOp& g) {
  const UOp& x = n.src(0);
  const ReduceArg& arg = n.as<ReduceArg>();
  const UOp wide = expand(g, x.shape());
  if (arg.op == Op::Add) return {wide};
  if (arg.op == Op::Max) {
    const UOp hit = eq(x, expand(n, x.shape()));
    const UOp count = reduce(Op::Add, cast(hit, x.dtype()), arg.axes);
    return {where(hit, fdiv(wide, expand(count, x.shape())), zeros_like(x))};
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
  const UOp around = where(inside, zeros_like(g), g);
  out[3] = reshape(reduce(Op::Add, around, all_axes(around)), shape_of({}));
  return out;
}

// The table: one row an op. jvp and vmap will be further columns.
const std::unordered_map<Op, Vjp>& table() {
  static const auto& rows = *new const std::unordered_map<Op, Vjp>{
      {Op::Add, [](const UOp&, const UOp& g) { return Cotangents{g, g}; }},
      {Op::Mul, [](const UOp& n,
                   const UOp& g) { return Cotangents{times(g, n.src(1)), times(g, n.src(0))}; }},
      {Op::Mulacc,
       [](const UOp& n, const UOp& g) {
         return Cotangents{times(g, n.src(1)), times(g, n.src(0)), g};
       }},
      {Op::Max, max_vjp},
      {Op::Fdiv, fdiv_vjp},
      {Op::Pow, pow_vjp},
      {Op::Recip, [](const UOp& n, const UOp& g) { return Cotangents{neg(mul(g, mul(n, n)))}; }},
      {Op::Sqrt,
       [](const UOp& n, const UOp& g) { return Cotangents{fdiv(g, mul(n, like(n, 2)))}; }},
      {Op::Exp2,
       [](const UOp& n, const UOp& g) {
         if (base_of(n.arg()) == Base::E) return Cotangents{mul(g, n)};
         return Cotangents{mul(g, mul(n, like(n, std::numbers::ln2)))};
       }},
      {Op::Log2,
       [](const UOp& n, const UOp& g) {
         if (base_of(n.arg()) == Base::E) return Cotangents{fdiv(g, n.src(0))};
         return Cotangents{fdiv(mul(g, like(g, std::numbers::log2e)), n.src(0))};
       }},
      {Op::Sin,
       [](const UOp& n, const UOp& g) {
         return Cotangents{mul(g, sine(n.src(0), quarter_turns_of(n.arg()) + 1))};
       }},
      {Op::Where,
       [](const UOp& n, const UOp& g) {
         const UOp condition = relu_condition(n);
         return Cotangents{UOp(), mask_of(condition, g), where(condition, zeros_like(g), g)};
       }},
      {Op::Cast, cast_vjp},
      {Op::Trunc, none},
      {Op::CmpLt, none},
      {Op::CmpNe, none},
      {Op::Mod, mod_vjp},
      {Op::Idiv, none},
      {Op::Xor, none},
      {Op::Or, none},
      {Op::And, none},
      {Op::Shl, none},
      {Op::Shr, none},
      {Op::Threefry, none},
      {Op::Bitcast, none},
      {Op::Detach, none},
      {Op::Assume, none},
      {Op::Reshape,
       [](const UOp& n, const UOp& g) { return first(n, reshape(g, n.src(0).shape())); }},
      {Op::Permute, permute_vjp},
      {Op::Expand,
       [](const UOp& n, const UOp& g) { return first(n, sum_to(g, n.src(0).shape())); }},
      {Op::Flip, [](const UOp& n, const UOp& g) { return Cotangents{flip(g, n.as<Ints>())}; }},
      {Op::Pad, pad_vjp},
      {Op::Replicated, replicated_vjp},
      {Op::Shrink,
       [](const UOp& n, const UOp& g) {
         return first(n, pad(g, n.src(1), n.src(0).shape(), zeros_like(g)));
       }},
      {Op::Stack, stack_vjp},
      {Op::Index, index_vjp},
      {Op::Reduce, reduce_vjp},
      {Op::After, after_vjp},
      {Op::Store, stored_vjp},
      {Op::Contiguous, [](const UOp&, const UOp& g) { return Cotangents{g}; }},
      {Op::ContiguousBackward, [](const UOp&, const UOp& g) { return Cotangents{contiguous(g)}; }},
      {Op::Load,
       [](const UOp& n, const UOp& g) {
         KOINE_REQUIRE(n.src().size() == 1, Value, "gradient: a gated Load has no gradient rule");
         return Cotangents{copy_to(g, n.src(0).node()->placement)};
       }},
  };
  return rows;
}

// A call is differentiated as a second Function over its arguments and the cotangents of its
// outputs (row B12).
Cotangents function_vjp(const UOp& call, const std::vector<UOp>& output_cotangents) {
  const UOp& body = call.src(0);
  std::vector<UOp> params, seeds, outputs, arguments(call.src().begin() + 1, call.src().end());
  const std::map<int64_t, UOp> by_slot = params_of(body);
  for (size_t k = 0; k < arguments.size(); ++k) {
    const auto it = by_slot.find(static_cast<int64_t>(k));
    params.push_back(it != by_slot.end() ? it->second
                                         : argument_param(static_cast<int64_t>(k), arguments[k]));
  }
  for (size_t i = 0; i < body.src().size(); ++i) {
    if (!output_cotangents[i]) continue;
    outputs.push_back(body.src(i));
    const auto slot = static_cast<int64_t>(arguments.size());
    const UOp& seed = output_cotangents[i];  // on several devices it may lie otherwise
    seeds.push_back(argument_param(slot, seed.device().count() > 1 ? seed : body.src(i)));
    arguments.push_back(output_cotangents[i]);
  }
  std::vector<UOp> grads = gradient(outputs, seeds, params);
  for (size_t k = 0; k < grads.size(); ++k)
    if (!grads[k]) grads[k] = spread(constant_int(params[k].dtype(), 0), params[k].shape());
  const UOp second = function(tuple(grads), arguments, resolve_of(call));
  Cotangents out;
  for (size_t k = 0; k < grads.size(); ++k)
    out.push_back(get_tuple(second, static_cast<int64_t>(k)));
  return out;
}

// A GetTuple of a Tuple is the element.
UOp without_tuples(const UOp& graph) {
  if ((graph.node()->ops_below & mask_of(Op::GetTuple)) == 0) return graph;
  return transform_graph(graph, [](const UOp&, const UOp& node) {
    const bool packed = node.is(Op::GetTuple) && node.src(0).is(Op::Tuple);
    return packed ? node.src(0).src(static_cast<size_t>(node.as<int64_t>())) : node;
  });
}

// What is made of constants alone becomes part of the bodies that use it, and is no argument.
void refuse_constants_of_bodies(const UOp& root, const std::vector<UOp>& targets,
                                const std::vector<UOp>& found) {
  if ((root.node()->ops_below & mask_of(Op::Function)) == 0) return;
  const NodeList outside = toposort_outside_bodies(root), all = toposort(root);
  std::unordered_set<UOp> inside(all.begin(), all.end());
  for (const UOp& u : outside) inside.erase(u);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (found[i] || targets[i].is(Op::Param)) continue;
    KOINE_REQUIRE(
        !inside.contains(targets[i]), Value,
        "gradient: target {} of shape {} is a constant expression that a traced function "
        "made part of its body: make it an argument of the function, or clone() it before",
        i, shape_text(targets[i]));
  }
}

}  // namespace

bool has_gradient_rule(Op op) { return table().contains(op); }

std::vector<UOp> gradient(std::span<const UOp> outputs, std::span<const UOp> cotangents,
                          std::span<const UOp> targets) {
  const UOp root = without_tuples(sink(outputs));
  // Bodies of Functions are not entered: a call is one node.
  const NodeList order = toposort(root, [](const UOp& u) { return !u.is(Op::Tuple); });
  std::vector<UOp> bare;
  for (const UOp& t : targets) bare.push_back(without_tuples(t));
  std::unordered_set<UOp> wanted(bare.begin(), bare.end()), leads;
  for (const UOp& u : order) {
    bool on_path = wanted.contains(u);
    const bool passes = !u.is(Op::Detach) && (is_float(u.dtype()) || u.dtype() == DType::Void);
    for (const UOp& s : u.src()) on_path = on_path || (passes && leads.contains(s));
    if (on_path) leads.insert(u);
  }
  // What is invalid counts for nothing: its cotangent is 0 (amendment C27).
  InvalidElements invalid;
  for (const UOp& u : order) invalid.visit(u);
  auto of_valid = [&](const UOp& node, const UOp& g) {
    const UOp bad = invalid.of(node);
    return bad && g ? where(bad, zeros_like(g), g) : g;
  };
  std::unordered_map<UOp, UOp> total;
  std::unordered_map<UOp, std::vector<UOp>> call_cotangents;
  auto accumulate = [&](const UOp& node, const UOp& g) {
    UOp& slot = total[node];
    const UOp placed = placed_as(node, g, wanted.contains(node));
    const bool meet = !slot || !slot.axis() || !placed.axis() || slot.axis() == placed.axis();
    const UOp other = meet ? placed : copy_to(placed, slot.node()->placement);
    slot = slot ? add(slot, other) : other;
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    const UOp& output = root.src(i);
    KOINE_REQUIRE(is_float(output.dtype()), Type,
                  "gradient: the output is {}, only floats have gradients",
                  dtype_name(output.dtype()));
    accumulate(output, cotangents[i]);
  }
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& node = order[i];
    if (!leads.contains(node) || node == root) continue;
    if (node.is(Op::Function) || node.is(Op::Call)) {
      const auto it = call_cotangents.find(node);
      if (it == call_cotangents.end()) continue;
      const Cotangents parts =
          node.is(Op::Call) ? call_vjp(node, it->second) : function_vjp(node, it->second);
      for (size_t k = 1; k < node.src().size(); ++k)
        if (parts[k - 1] && leads.contains(node.src(k)) && is_float(node.src(k).dtype()))
          accumulate(node.src(k), parts[k - 1]);
      continue;
    }
    const auto found = total.find(node);
    if (found == total.end()) continue;
    const UOp g = found->second = of_valid(node, found->second);
    if (node.is(Op::GetTuple)) {
      auto& list = call_cotangents[node.src(0)];
      const auto k = static_cast<size_t>(node.as<int64_t>());
      list.resize(std::max({list.size(), k + 1, node.src(0).src(0).src().size()}));
      list[k] = g;
      continue;
    }
    bool below = false;
    for (const UOp& s : node.src()) below = below || leads.contains(s);
    if (!below) continue;
    const auto row = table().find(node.op());
    KOINE_REQUIRE(
        row != table().end(), Type,
        "gradient: {} has no gradient rule; detach() its input, or call it outside of what is "
        "differentiated",
        op_name(node.op()));
    const Cotangents parts = row->second(node, g);
    for (size_t k = 0; k < parts.size(); ++k)
      if (parts[k] && leads.contains(node.src(k)))
        accumulate(node.src(k), is_elementwise(node.op())
                                    ? sum_to(of_valid(node, parts[k]), node.src(k).shape())
                                    : parts[k]);
  }
  std::vector<UOp> out;
  for (const UOp& t : bare) {
    const auto it = total.find(t);
    out.push_back(it == total.end() ? UOp() : it->second);
  }
  refuse_constants_of_bodies(root, bare, out);
  return out;
}

}  // namespace koine

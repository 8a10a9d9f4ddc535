#include "koine/lower/scatter.hpp"

#include <algorithm>

#include "koine/base/options.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

std::optional<ScatterSum> match_sum(const UOp& reduce, const UOp& k) {
  const UOp& body = reduce.src(0);
  UOp condition, value;
  if (body.is(Op::Where) && is_const(body.src(2), 0)) {
    condition = body.src(0);
    value = body.src(1);
  } else if (body.is(Op::Where) && is_const(body.src(1), 0)) {
    condition = logical_not(body.src(0));
    value = body.src(2);
  } else if (body.is(Op::Mul) && !options().strict) {  // a product with a cast mask (amendment C31)
    for (size_t side = 0; side < 2 && !condition; ++side)
      if (body.src(side).is(Op::Cast) && body.src(side).src(0).dtype() == DType::Bool) {
        condition = body.src(side).src(0);
        value = body.src(1 - side);
      }
  }
  if (!condition || depends_on(value, k)) return std::nullopt;
  ScatterSum out{reduce, k, {}, {}, value};
  for (const UOp& part : conjuncts(condition)) {
    const UOp at = out.at ? UOp() : equal_to(part, k);
    const bool moves = at && std::any_of(reduce.src().begin() + 1, reduce.src().end(),
                                         [&](const UOp& d) { return depends_on(at, d); });
    if (moves)
      out.at = at;
    else if (depends_on(part, k))
      return std::nullopt;
    else
      out.gate = out.gate ? bit_and(out.gate, part) : part;
  }
  return out.at ? std::optional<ScatterSum>(out) : std::nullopt;
}

}  // namespace

std::optional<ScatterSum> find_scatter(const UOp& ast) {
  const NodeList order = toposort(ast);
  std::vector<UOp> loops;
  for (const UOp& u : order)
    if (u.is(Op::End)) loops.assign(u.src().begin() + 1, u.src().end());
  for (const UOp& u : order) {
    if (!u.is(Op::Reduce) || u.as<ReduceArg>().op != Op::Add) continue;
    for (const UOp& k : loops)
      if (depends_on(u.src(0), k))
        if (auto sum = match_sum(u, k)) return sum;
  }
  return std::nullopt;
}

UOp scatter_kernel(const UOp& ast, const ScatterSum& sum) {
  UOp stored, closing;
  for (const UOp& u : toposort(ast)) {
    if (u.is(Op::Store)) stored = u;
    if (u.is(Op::End)) closing = u;
  }
  const std::vector<UOp> loops(closing.src().begin() + 1, closing.src().end());
  const UOp zeroed = end(store(stored.src(0), constant_int(sum.value.dtype(), 0)), loops);
  // The second nest has ranges of its own: the d of the sum, then the loops other than k.
  int64_t next = 0;
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Range)) next = std::max(next, u.as<RangeArg>().id + 1);
  Substitution fresh;
  std::vector<UOp> nest;
  auto renew = [&](const UOp& r) {
    nest.push_back(range(next++, r.src(0), AxisType::Loop));
    fresh.emplace(r, nest.back());
  };
  for (const UOp& d : sum.reduce.src().subspan(1)) renew(d);
  for (const UOp& r : loops)
    if (!(r == sum.axis)) renew(r);
  const UOp at = substitute(sum.at, fresh);
  UOp gate = bit_and(logical_not(lt(at, index_const(0))), lt(at, sum.axis.src(0)));
  if (sum.gate) gate = bit_and(gate, substitute(sum.gate, fresh));
  Substitution place = fresh;
  place.emplace(sum.axis, at);
  const UOp index_of_sum = substitute(stored.src(0).src(1), place);
  const UOp address = index(after(stored.src(0).src(0), {zeroed}), {index_of_sum});
  const UOp value = substitute(sum.value, fresh);
  const UOp total = add(load(address, constant_int(value.dtype(), 0), gate), value);
  return sink(std::vector<UOp>{zeroed, end(store(address, total, gate), nest)});
}

}  // namespace koine

#include "koine/lower/scatter.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

// Whether folding `miss` in changes nothing.
bool is_neutral(Op op, const UOp& miss, const UOp& value) {
  if (op == Op::Add) return is_const(miss, 0);
  if (op != Op::Max || !miss.is(Op::Const) || is_float(miss.dtype())) return false;
  const int64_t low = const_int(miss);
  return value.bounds().low >= low && (is_signed(miss.dtype()) || low >= 0);
}

std::optional<Scatter> match_scatter(const UOp& reduce, const UOp& k) {
  const UOp& body = reduce.src(0);
  const Op op = reduce.as<ReduceArg>().op;
  UOp condition, value, miss = constant_int(body.dtype(), 0);
  if (body.is(Op::Where) && is_neutral(op, body.src(2), body.src(1))) {
    condition = body.src(0);
    value = body.src(1);
    miss = body.src(2);
  } else if (body.is(Op::Where) && is_neutral(op, body.src(1), body.src(2))) {
    condition = logical_not(body.src(0));
    value = body.src(2);
    miss = body.src(1);
  }
  if (!condition || depends_on(value, k)) return std::nullopt;
  // The maximum of nothing is not the miss.
  for (const UOp& d : reduce.src().subspan(1))
    if (op == Op::Max && d.src(0).bounds().low < 1) return std::nullopt;
  Scatter out{reduce, k, {}, {}, value, miss};
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
  return out.at ? std::optional<Scatter>(out) : std::nullopt;
}

}  // namespace

std::optional<Scatter> find_scatter(const UOp& ast) {
  const NodeList order = toposort(ast);
  std::vector<UOp> loops;
  for (const UOp& u : order)
    if (u.is(Op::End)) loops.assign(u.src().begin() + 1, u.src().end());
  for (const UOp& u : order) {
    if (!u.is(Op::Reduce)) continue;
    for (const UOp& k : loops)
      if (depends_on(u.src(0), k))
        if (auto scatter = match_scatter(u, k)) return scatter;
  }
  return std::nullopt;
}

UOp scatter_kernel(const UOp& ast, const Scatter& scatter) {
  UOp stored, closing;
  for (const UOp& u : toposort(ast)) {
    if (u.is(Op::Store)) stored = u;
    if (u.is(Op::End)) closing = u;
  }
  KOINE_INVARIANT(stored && closing, "scatter: the kernel has no store in a loop:\n{}",
                  to_text(ast));
  const std::vector<UOp> loops(closing.src().begin() + 1, closing.src().end());
  const UOp filled = end(store(stored.src(0), scatter.miss), loops);
  // The second nest has ranges of its own: the d of the fold, then the loops other than k.
  int64_t next = 0;
  for (const UOp& u : toposort(ast))
    if (u.is(Op::Range)) next = std::max(next, u.as<RangeArg>().id + 1);
  Substitution fresh;
  std::vector<UOp> nest;
  auto renew = [&](const UOp& r) {
    nest.push_back(range(next++, r.src(0), AxisType::Loop));
    fresh.emplace(r, nest.back());
  };
  for (const UOp& d : scatter.reduce.src().subspan(1)) renew(d);
  for (const UOp& r : loops)
    if (!(r == scatter.axis)) renew(r);
  const UOp at = substitute(scatter.at, fresh);
  UOp gate = bit_and(logical_not(lt(at, index_const(0))), lt(at, scatter.axis.src(0)));
  if (scatter.gate) gate = bit_and(gate, substitute(scatter.gate, fresh));
  Substitution place = fresh;
  place.emplace(scatter.axis, at);
  const UOp index_of_fold = substitute(stored.src(0).src(1), place);
  // Each d folds once more, also where the place and the value are those of the last one.
  std::vector<UOp> earlier{filled};
  earlier.insert(earlier.end(), nest.begin(), nest.end());
  const UOp address = index(after(stored.src(0).src(0), earlier), {index_of_fold});
  const UOp value = substitute(scatter.value, fresh);
  const UOp before = load(address, scatter.miss, gate);
  const UOp folded =
      scatter.reduce.as<ReduceArg>().op == Op::Add ? add(before, value) : maximum(before, value);
  return sink(std::vector<UOp>{filled, end(store(address, folded, gate), nest)});
}

}  // namespace koine

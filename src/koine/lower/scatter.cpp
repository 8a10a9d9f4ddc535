#include "koine/lower/scatter.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/rewrite/rewrite.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

constexpr int64_t least_lanes = 8;  // neighbours in memory that are worth a vector

// Whether folding `miss` in changes nothing.
bool is_neutral(Op op, const UOp& miss, const UOp& value) {
  if (op == Op::Add) return is_const(miss, 0);
  if (op != Op::Max || !miss.is(Op::Const) || is_float(miss.dtype())) return false;
  const int64_t low = const_int(miss);
  return value.bounds().low >= low && (is_signed(miss.dtype()) || low >= 0);
}

// The body of a fold as a value where a condition holds, beside what the other places hold in the
// end.
struct Hit {
  UOp condition, value, miss;
};

// How many values are folded into one place; null: not known yet.
UOp folded_count(const UOp& reduce) {
  UOp count = index_const(1);
  for (const UOp& d : reduce.src().subspan(1)) count = simplify(mul(count, d.src(0)));
  return count.is(Op::Const) ? count : UOp();
}

// A miss m that counts: n of them are there before, and each hit v adds v - m. Exact, or nothing.
std::optional<Hit> over_misses(const UOp& reduce, const UOp& condition, const UOp& hit,
                               const UOp& miss) {
  const UOp count = folded_count(reduce);
  if (reduce.as<ReduceArg>().op != Op::Add || !count || !miss.is(Op::Const)) return std::nullopt;
  if (miss.dtype() == DType::Bool) return std::nullopt;  // has no differences
  if (!repeats_exactly(hit, reduce) || !repeats_exactly(miss, reduce)) return std::nullopt;
  return Hit{condition, simplify(sub(hit, miss)), simplify(mul(miss, cast(count, miss.dtype())))};
}

std::vector<Hit> hits_of(const UOp& reduce) {
  const UOp& body = reduce.src(0);
  const Op op = reduce.as<ReduceArg>().op;
  if (body.dtype() == DType::Bool && op == Op::Max)
    return {{body, constant_bool(true), constant_bool(false)}};
  if (body.is(Op::Cast) && body.src(0).dtype() == DType::Bool) {
    const UOp one = constant_int(body.dtype(), 1);
    if (op != Op::Add || !repeats_exactly(one, reduce)) return {};
    return {{body.src(0), one, constant_int(body.dtype(), 0)}};
  }
  if (!body.is(Op::Where)) return {};
  std::vector<Hit> out;
  for (const size_t hit : {size_t{1}, size_t{2}}) {
    const UOp condition = hit == 1 ? body.src(0) : logical_not(body.src(0));
    const UOp &value = body.src(hit), &miss = body.src(3 - hit);
    if (is_neutral(op, miss, value))
      out.push_back({condition, value, miss});
    else if (const auto shifted = over_misses(reduce, condition, value, miss))
      out.push_back(*shifted);
  }
  return out;
}

std::optional<Scatter> match_scatter(const UOp& reduce, const UOp& k, const Hit& hit) {
  if (depends_on(hit.value, k)) return std::nullopt;
  // The maximum of nothing is not the miss.
  for (const UOp& d : reduce.src().subspan(1))
    if (reduce.as<ReduceArg>().op == Op::Max && d.src(0).bounds().low < 1) return std::nullopt;
  Scatter out{reduce, k, {}, {}, hit.value, hit.miss};
  for (const UOp& part : conjuncts(hit.condition)) {
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

// A loop, and the one turn of it that a place lies in.
struct Turn {
  UOp axis, at;
};

// The turns of all loops that a place decides, which are taken from `loops`. Of a value with axes
// r and k that is filled at p = r n + k, k is p - r n, and as 0 <= k < n there is one r for each p:
// r = p // n and k = p mod n.
std::vector<Turn> turns_of(const UOp& axis, const UOp& at, std::vector<UOp>& loops) {
  std::vector<Turn> out{{axis, at}};
  for (size_t i = 0; i < loops.size();) {
    Turn& inner = out.back();
    int64_t stride = 0;
    UOp place;
    const bool decides = linear_coefficient(inner.at, loops[i], stride, place) && stride < 0 &&
                         -stride >= inner.axis.src(0).bounds().high;
    if (!decides) {
      ++i;
      continue;
    }
    const UOp n = index_const(-stride), outer = simplify_index(idiv(place, n));
    inner.at = simplify_index(mod(place, n));
    out.push_back({loops[i], outer});
    loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i));
    i = 0;
  }
  return out;
}

// Whether the order of the sums may be left to the threads: it changes no bit, or was asked for.
bool adds_at_once(const Scatter& scatter, const CompileOptions& how) {
  const DType d = scatter.reduce.dtype();
  const bool is_sum = scatter.reduce.as<ReduceArg>().op == Op::Add && d != DType::Index;
  if (!is_sum || item_size(d) < 4 || item_size(d) > how.atomic_bytes) return false;
  const bool exact = repeats_exactly(scatter.value, scatter.reduce);
  return exact ? how.multiprocessors > 0 || how.atomic_scatter : how.atomic_scatter && !how.strict;
}

// The kernels that a fold into places becomes. `loops` are those that store its results.
class ScatterKernels {
 public:
  ScatterKernels(const UOp& ast, const Scatter& scatter, std::vector<UOp> loops, bool strict)
      : scatter_(scatter),
        store_(ast.src(0).src(0)),
        loops_(std::move(loops)),
        strict_(strict),
        next_(kernel_ranges(ast).back().as<RangeArg>().id + 1) {  // it has loops
    std::copy_if(loops_.begin(), loops_.end(), std::back_inserter(others_),
                 [&](const UOp& r) { return !(r == scatter.axis); });
    turns_ = turns_of(scatter.axis, scatter.at, others_);
  }

  // One kernel: the loops that no place decides go to places of their own, at once if need be, and
  // stand outside as GLOBAL. Too few for lanes stay inside, where they are neighbours in memory.
  // Inside of them two nests with ranges of their own: one fills, then each d folds in.
  UOp in_order() {
    std::vector<UOp> outer, inner;
    Substitution fresh;
    for (const UOp& r : others_) {
      const bool beside = r == loops_.back() && r.src(0).bounds().high < least_lanes;
      (beside ? inner : outer)
          .push_back(beside ? r : range(r.as<RangeArg>().id, r.src(0), AxisType::Global));
      if (!beside) fresh.emplace(r, outer.back());
    }
    Substitution filling = fresh;
    std::vector<UOp> of_fill;
    std::copy_if(loops_.begin(), loops_.end(), std::back_inserter(of_fill),
                 [&](const UOp& r) { return !fresh.contains(r); });
    of_fill = renewed(of_fill, filling);
    const UOp filled = end(store(substitute(store_.src(0), filling), scatter_.miss), of_fill);
    std::vector<UOp> nest = renewed(scatter_.reduce.src().subspan(1), fresh);
    for (const UOp& r : renewed(inner, fresh)) nest.push_back(r);
    const Step step = step_in(fresh);
    // Each d folds once more, also where the place and the value are those of the last one.
    std::vector<UOp> earlier{filled};
    earlier.insert(earlier.end(), nest.begin(), nest.end());
    const UOp address = index(after(memory(), earlier), {step.index});
    const UOp before = load(address, scatter_.miss, step.gate);
    const UOp folded = scatter_.reduce.as<ReduceArg>().op == Op::Add ? add(before, step.value)
                                                                     : maximum(before, step.value);
    std::vector<UOp> nests{filled, end(store(address, folded, step.gate), nest)};
    if (!outer.empty()) nests = {end(group(nests), outer)};
    return kernel(nests);
  }

  // Two kernels: one fills, then the threads of the other add where each d belongs. What belongs
  // nowhere adds 0 to the first place, which changes no value.
  std::vector<UOp> at_once() {
    Substitution fresh;
    std::vector<UOp> nest = renewed(scatter_.reduce.src().subspan(1), fresh);
    for (const UOp& r : renewed(others_, fresh)) nest.push_back(r);
    const Step step = step_in(fresh);
    const UOp zero = constant_int(scatter_.value.dtype(), 0);
    const UOp address = index(memory(), {where(step.gate, step.index, index_const(0))});
    return {kernel({end(store(store_.src(0), scatter_.miss), loops_)}),
            kernel({end(UOp::make(Op::AtomicAdd, {address, where(step.gate, step.value, zero)}),
                        nest)})};
  }

 private:
  // Of one d: the element that it is folded into, where it belongs to one, and what is folded in.
  struct Step {
    UOp index, gate, value;
  };
  Step step_in(const Substitution& fresh) const {
    UOp gate;
    Substitution place = fresh;
    for (const auto& [axis, turn] : turns_) {
      const UOp at = substitute(turn, fresh);
      const UOp inside = bit_and(logical_not(lt(at, index_const(0))), lt(at, axis.src(0)));
      gate = gate ? bit_and(gate, inside) : inside;
      place.emplace(axis, at);
    }
    if (scatter_.gate) gate = bit_and(gate, substitute(scatter_.gate, place));
    return {substitute(store_.src(0).src(1), place), gate, substitute(scatter_.value, place)};
  }

  std::vector<UOp> renewed(std::span<const UOp> ranges, Substitution& names) {
    std::vector<UOp> nest;
    for (const UOp& r : ranges) {
      nest.push_back(range(next_++, r.src(0), AxisType::Loop));
      names.emplace(r, nest.back());
    }
    return nest;
  }

  const UOp& memory() const { return store_.src(0).src(0); }
  UOp kernel(const std::vector<UOp>& nests) const {
    return rewrite(sink(nests), kernel_rules(strict_));
  }

  const Scatter& scatter_;
  UOp store_;
  std::vector<UOp> loops_, others_;  // others: which no place decides
  std::vector<Turn> turns_;
  bool strict_;
  int64_t next_;
};

}  // namespace

std::optional<Scatter> find_scatter(const UOp& value, std::span<const UOp> loops) {
  for (const UOp& u : toposort(value)) {
    if (!u.is(Op::Reduce)) continue;
    for (const Hit& hit : hits_of(u))
      for (const UOp& k : loops)
        if (depends_on(u.src(0), k))
          if (auto scatter = match_scatter(u, k, hit)) return scatter;
  }
  return std::nullopt;
}

std::vector<UOp> scatter_kernels(const UOp& ast, const CompileOptions& how) {
  if (ast.src().size() != 1 || !ast.src(0).is(Op::End)) return {ast};
  const UOp &closing = ast.src(0), &stored = closing.src(0);
  if (!stored.is(Op::Store) || stored.src().size() != 2 || !stored.src(1).is(Op::Reduce))
    return {ast};
  const std::vector<UOp> loops(closing.src().begin() + 1, closing.src().end());
  const auto found = find_scatter(stored.src(1), loops);
  if (!found || !(found->reduce == stored.src(1))) return {ast};
  ScatterKernels kernels(ast, *found, loops, how.strict);
  return adds_at_once(*found, how) ? kernels.at_once() : std::vector<UOp>{kernels.in_order()};
}

}  // namespace koine

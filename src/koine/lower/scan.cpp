#include "koine/lower/scan.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/ranges.hpp"
#include "koine/rules/simplify.hpp"

namespace koine {
namespace {

constexpr int64_t steps_of_a_level = 8;
constexpr int64_t most_keys = 4096;

// A condition on index scalars as `expression < 0`; null: it is none.
UOp below_zero(UOp condition) {
  bool negated = false;
  for (; condition.is(Op::CmpNe) && condition.src(0).dtype() == DType::Bool &&
         is_const(condition.src(1), 1);
       condition = UOp(condition.src(0)))
    negated = !negated;
  if (!condition.is(Op::CmpLt) || condition.src(0).dtype() != DType::Index) return {};
  const UOp difference = sub(condition.src(0), condition.src(1));
  return simplify_index(negated ? sub(index_const(-1), difference) : difference);
}

bool is_identity(Op op, const UOp& miss) {
  if (op == Op::Add && is_float(miss.dtype()))  // a sum of several starts from 0: -0 adds nothing
    return miss.is(Op::Const) && const_double(miss) == 0;
  return miss == identity_of(op, miss.dtype());
}

// Whether a fold may run from its last element to its first.
bool any_order(const UOp& reduce, bool strict) {
  return !is_float(reduce.dtype()) || (!strict && reduce.as<ReduceArg>().op != Op::Max);
}

bool equals(const UOp& a, const UOp& b) { return simplify_index(sub(a, b)) == index_const(0); }

// j + sign * i + rest < 0, or -j + sign * i + rest < 0: which elements of a Reduce over j count.
struct Limit {
  bool above;  // j has the coefficient -1
  int64_t sign;
  UOp rest;
};

std::optional<Limit> limit_of(const UOp& condition, const UOp& j, const UOp& i) {
  const UOp expression = below_zero(condition);
  int64_t of_j = 0, of_i = 0;
  UOp without_j, rest;
  if (!expression || !linear_coefficient(expression, j, of_j, without_j) ||
      !linear_coefficient(without_j, i, of_i, rest))
    return std::nullopt;
  if (std::abs(of_j) != 1 || std::abs(of_i) != 1) return std::nullopt;
  return Limit{of_j < 0, of_i, rest};
}

// The fold over the j within a limit, of `value`, as one that grows with the loop i.
std::optional<Scan> grown(const UOp& reduce, const UOp& i, const UOp& value, Limit limit,
                          bool strict, const UOp& of_element = {}, const UOp& of_result = {}) {
  const UOp &j = reduce.src(1), &n = j.src(0), &steps = i.src(0), one = index_const(1);
  if (simplify_index(sub(n, steps)).bounds().low < 0) return std::nullopt;
  const bool slides = limit.above && depends_on(value, i);  // a window that begins before the row
  const UOp last = simplify_index(sub(n, one));
  UOp rest = limit.rest;
  if (limit.above && !slides) {  // the rest of the row: counted from its end
    if (!any_order(reduce, strict)) return std::nullopt;
    rest = add(rest, sub(one, n));
  }
  // In terms of k, which counts the steps: +-j - k + rest < 0.
  const bool against = limit.sign > 0;
  const UOp k = against ? simplify_index(sub(sub(steps, one), i)) : i;
  if (against) rest = add(rest, sub(steps, one));
  if (!equals(rest, slides ? sub(n, index_const(2)) : index_const(-1))) return std::nullopt;
  const UOp counter = range(j.as<RangeArg>().id, steps, AxisType::Reduce);
  auto element = [&](const UOp& t) {
    if (slides) return simplify_index(add(sub(t, k), last));
    return limit.above ? simplify_index(sub(last, t)) : t;
  };
  const UOp body = simplify(substitute(value, {{j, element(counter)}}));
  if (depends_on(body, i)) return std::nullopt;
  const UOp grows = range(j.as<RangeArg>().id, simplify_index(add(k, one)), AxisType::Reduce);
  Scan out{i, against, element(k), grows, substitute(body, {{counter, grows}}), {}};
  if (!of_element) return out;
  // The newest element's key is the result's.
  out.key = of_result;
  if (!(simplify(substitute(of_element, {{j, out.entering}})) == of_result)) return std::nullopt;
  const Interval& keys = of_result.bounds();
  if (against || keys.low < 0 || keys.high >= most_keys) return std::nullopt;
  out.keys = static_cast<int64_t>(keys.high) + 1;
  return out;
}

// What a condition asks for besides the parts that say `dropped`.
UOp conjunction_without(const std::vector<UOp>& parts, std::initializer_list<UOp> dropped) {
  UOp rest;
  for (const UOp& other : parts)
    if (std::find(dropped.begin(), dropped.end(), other) == dropped.end())
      rest = rest ? bit_and(rest, other) : other;
  return rest;
}

// A condition as a number is a choice of 1 or 0.
UOp as_choice(const UOp& body) {
  if (!body.is(Op::Cast) || body.src(0).dtype() != DType::Bool) return body;
  return UOp::make(Op::Where,
                   {body.src(0), constant_int(body.dtype(), 1), constant_int(body.dtype(), 0)});
}

// That an integer of an element equals that of a result.
struct SameKey {
  UOp condition, of_element, of_result;
};

std::optional<SameKey> same_key(const std::vector<UOp>& parts, const UOp& j, const UOp& i) {
  for (const UOp& part : parts) {
    if (!part.is(Op::CmpNe) || !part.src(0).is(Op::CmpNe) || !is_const(part.src(1), 1)) continue;
    const UOp& different = part.src(0);
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const UOp &element = different.src(side), &result = different.src(1 - side);
      if (is_integer(element.dtype()) && depends_on(element, j) && !depends_on(element, i) &&
          depends_on(result, i) && !depends_on(result, j))
        return SameKey{part, element, result};
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Scan> find_scan(const UOp& reduce, std::span<const UOp> loops, bool strict) {
  if (!reduce.is(Op::Reduce) || reduce.src().size() != 2) return std::nullopt;
  const UOp choice = as_choice(reduce.src(0)), &j = reduce.src(1);
  if (!choice.is(Op::Where)) return std::nullopt;
  for (const size_t hit : {size_t{1}, size_t{2}}) {
    const UOp& miss = choice.src(3 - hit);
    if (!is_identity(reduce.as<ReduceArg>().op, miss)) continue;
    const std::vector<UOp> parts = conjuncts(hit == 1 ? choice.src(0) : logical_not(choice.src(0)));
    for (const UOp& part : parts)
      for (const UOp& i : loops) {
        const auto limit = limit_of(part, j, i);
        if (!limit) continue;
        auto chosen = [&](std::initializer_list<UOp> dropped) {
          const UOp others = conjunction_without(parts, dropped);
          return others ? where(others, choice.src(hit), miss) : choice.src(hit);
        };
        if (auto scan = grown(reduce, i, chosen({part}), *limit, strict)) return scan;
        if (const auto key = same_key(parts, j, i))
          if (auto scan = grown(reduce, i, chosen({part, key->condition}), *limit, strict,
                                key->of_element, key->of_result))
            return scan;
      }
  }
  return std::nullopt;
}

namespace {

// The one nest of a kernel; null where it has several, or none.
UOp only_nest(const UOp& ast) {
  if (!ast.is(Op::Sink) || ast.src().size() != 1) return {};
  const UOp& nest = ast.src(0);
  return nest.is(Op::End) && !nest.is(Mark::InOrder) ? nest : UOp();
}

// A sum of several values starts from 0, so a row's first -0 is 0 as well.
UOp from_zero(const UOp& running) {
  const bool sum = running.as<ReduceArg>().op == Op::Add && is_float(running.dtype());
  return sum ? add(running, constant_int(running.dtype(), 0)) : running;
}

// A running fold by key along the last of `loops`: a table of accumulators, which is filled before
// that loop, and what a step stores into it.
struct Table {
  UOp value, update;
};

Table running_table(const UOp& reduce, const Scan& scan, std::span<const UOp> loops, int64_t slot,
                    int64_t next_range) {
  const Op op = reduce.as<ReduceArg>().op;
  const UOp table = UOp::make(Op::Buffer, {shape_of({scan.keys})},
                              BufferArg{slot, reduce.dtype(), {}, AddrSpace::Local});
  std::vector<UOp> around;
  for (const UOp& loop : loops)
    if (!(loop == scan.loop)) around.push_back(loop);
  const UOp place = range(next_range, index_const(scan.keys), AxisType::Loop);
  const UOp fresh = around.empty() ? table : after(table, around);
  const UOp filled =
      end(store(index(fresh, {place}), identity_of(op, reduce.dtype())), std::vector<UOp>{place});
  const UOp here =
      index(after(table, std::vector<UOp>{filled, scan.loop}), {cast(scan.key, DType::Index)});
  const UOp element = simplify(substitute(scan.value, {{scan.counter, scan.entering}}));
  const UOp value = binary(op, load(here), element);
  return {value, store(here, value)};
}

}  // namespace

UOp scan_kernel(const UOp& ast, bool strict) {
  const UOp nest = only_nest(ast);
  if (!nest) return ast;
  const std::vector<UOp> loops(nest.src().begin() + 1, nest.src().end());
  std::optional<Scan> along;  // the first found
  Substitution running;
  std::vector<UOp> updates;  // of tables
  int64_t next_range = next_range_of(ast);
  for (const UOp& u : toposort(nest.src(0))) {
    const auto scan = find_scan(u, loops, strict);
    if (!scan || (along && !(along->loop == scan->loop && along->down == scan->down))) continue;
    if (!along) along = scan;
    if (scan->key) {
      const Table table =
          running_table(u, *scan, loops, static_cast<int64_t>(updates.size()), next_range++);
      running.emplace(u, table.value);
      updates.push_back(table.update);
      continue;
    }
    running.emplace(u, from_zero(reduce_ranges(u.as<ReduceArg>().op, scan->value,
                                               std::vector<UOp>{scan->counter})));
  }
  if (!along) return ast;
  // The loop becomes the innermost one, and counts up.
  std::vector<UOp> order;
  Substitution renamed;
  auto rename = [&](const UOp& loop, bool down) {
    order.push_back(range(static_cast<int64_t>(order.size()), loop.src(0), AxisType::Loop));
    renamed.emplace(loop, down ? simplify_index(sub(sub(loop.src(0), index_const(1)), order.back()))
                               : order.back());
  };
  for (const UOp& loop : loops)
    if (!(loop == along->loop)) rename(loop, false);
  rename(along->loop, along->down);
  UOp body = substitute(nest.src(0), running);
  if (!updates.empty()) {
    if (body.is(Op::Group))
      updates.insert(updates.begin(), body.src().begin(), body.src().end());
    else
      updates.insert(updates.begin(), body);
    body = group(updates);
  }
  body = substitute(body, renamed);
  return simplify(sink(std::vector<UOp>{end(body, order)}));
}

std::vector<UOp> running_levels(const UOp& reduce) {
  if (!reduce.is(Op::Reduce) || reduce.src().size() != 2) return {};
  const UOp& counter = reduce.src(1);
  if (counter.src(0).ranges().empty()) return {};
  std::vector<std::pair<int64_t, UOp>> steps;
  // A sum of loops times constants; what a loop's own bound depends on does not matter here.
  std::vector<UOp> terms{simplify_index(sub(counter.src(0), index_const(1)))};
  while (!terms.empty()) {
    const UOp term = terms.back();
    terms.pop_back();
    if (term.is(Op::Add)) {
      terms.insert(terms.end(), term.src().begin(), term.src().end());
      continue;
    }
    const bool scaled = term.is(Op::Mul) && term.src(1).is(Op::Const);
    const UOp& loop = scaled ? term.src(0) : term;
    if (!loop.is(Op::Range) || loop.as<RangeArg>().type != AxisType::Loop) return {};
    steps.emplace_back(scaled ? const_int(term.src(1)) : 1, loop);
  }
  std::sort(steps.begin(), steps.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  // f(t), where t is any number.
  const UOp any = range(counter.as<RangeArg>().id, index_const(2), AxisType::Reduce);
  const UOp element = substitute(reduce.src(0), {{counter, any}});
  std::vector<UOp> out;
  for (const auto& [step, loop] : steps) {
    if (depends_on(element, loop)) return {};
    out.push_back(loop);
  }
  for (size_t k = 0; k + 1 < steps.size(); ++k)  // each counts a whole row of the next
    if (out[k + 1].src(0).bounds().high * steps[k + 1].first != steps[k].first) return {};
  return steps.back().first == 1 ? out : std::vector<UOp>{};
}

bool is_running_loop(const UOp& ast, const UOp& loop) {
  for (const UOp& u : toposort(ast)) {
    const std::vector<UOp> levels = running_levels(u);
    if (std::find(levels.begin(), levels.end(), loop) != levels.end()) return true;
  }
  return false;
}

UOp running_sums_in_levels(const UOp& ast) {
  const UOp nest = only_nest(ast);
  if (!nest) return ast;
  UOp loop;
  int64_t next = next_range_of(ast);
  for (const UOp& u : toposort(ast)) {
    if (!u.is(Op::Reduce) || u.as<ReduceArg>().op != Op::Add || !is_float(u.dtype())) continue;
    if (const auto levels = running_levels(u); levels.size() == 1) loop = levels[0];
  }
  if (!loop) return ast;
  const UOp step = index_const(steps_of_a_level);
  std::vector<UOp> counts{loop.src(0)};
  while (counts.back().bounds().high > steps_of_a_level)
    counts.push_back(
        simplify_index(idiv(add(counts.back(), index_const(steps_of_a_level - 1)), step)));
  UOp place;
  std::vector<UOp> order;
  for (const UOp& r : nest.src().subspan(1))
    if (!(r == loop)) order.push_back(r);
  for (size_t k = counts.size(); k-- > 0;) {
    UOp size = counts[k];
    const UOp start = place ? mul(place, step) : UOp();
    if (place)
      size = simplify_index(mod(size, step)) == index_const(0)
                 ? step
                 : simplify_index(minimum(step, sub(size, start)));
    order.push_back(range(next++, size, AxisType::Loop));
    place = start ? add(start, order.back()) : order.back();
  }
  const UOp body = substitute(nest.src(0), {{loop, simplify_index(place)}});
  return simplify(sink(std::vector<UOp>{end(body, order)}));
}

}  // namespace koine

#include "koine/transform/loops.hpp"

#include <algorithm>
#include <unordered_set>

#include "koine/base/error.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/forward.hpp"
#include "koine/transform/gradient.hpp"
#include "koine/transform/table.hpp"

namespace koine {
namespace {

// Stands for what an argument is in a step, and lies on several devices as that does.
UOp stand_in(const UOp& shape, DType dtype, const Placement& place) {
  return place.device.count() > 1 ? new_buffer(shape, dtype, place.device, place.axes)
                                  : new_buffer(shape, dtype, {});
}
UOp stand_in(const UOp& value) {
  return stand_in(value.shape(), value.dtype(), value.node()->placement);
}

// The arguments of a loop, of which its own Params stand for those that are read.
std::vector<LoopArgument> arguments_of(const Loop& loop) {
  std::vector<LoopArgument> out;
  const std::vector<UOp> params = loop.params();
  for (size_t k = 0; k < loop.roles.size(); ++k) {
    const UOp& given = loop.arguments()[k];
    out.push_back({loop.roles[k], given,
                   params[k] ? params[k]
                             : stand_in(shape_inside(given, loop.roles[k]), given.dtype(),
                                        placement_inside(given, loop.roles[k]))});
  }
  return out;
}

std::vector<UOp> values_of(const UOp& function) {
  return {function.src().begin(), function.src().end()};
}

UOp zeros_like(const UOp& value) { return filled_like(value, 0); }

// --- reverse mode --------------------------------------------------------------------------------

// What of a step going forward the step going backward reads: the places of carries, and the values
// that cost more to compute again than to keep.
class KeptOfSteps {
 public:
  KeptOfSteps(const std::vector<LoopArgument>& arguments, const std::vector<UOp>& values) {
    for (const LoopArgument& a : arguments) {
      if (a.role != LoopRole::Constant) varies_.insert(a.inside);
      if (a.role == LoopRole::Carry) carried_.insert(a.inside);
    }
    for (const UOp& u : toposort_outside_bodies(tuple(values))) {
      forward_.insert(u);
      for (const UOp& s : sources_outside_body(u))
        if (varies_.contains(s)) varies_.insert(u);
    }
  }
  std::vector<UOp> of(const std::vector<UOp>& backward) const {
    std::vector<UOp> out;
    toposort(sink(backward), [&](const UOp& u) {
      if (!is_kept(u)) return !u.is(Op::Tuple);
      if (std::find(out.begin(), out.end(), u) == out.end()) out.push_back(u);
      return false;
    });
    return out;
  }

 private:
  bool is_kept(const UOp& u) const {
    if (carried_.contains(u)) return true;
    return (u.is(Op::Reduce) || u.is(Op::GetTuple)) && forward_.contains(u) && varies_.contains(u);
  }
  std::unordered_set<UOp> carried_, forward_, varies_;
};

std::vector<UOp> scan_vjp(const Loop& loop, const std::vector<UOp>& cotangents) {
  const std::vector<LoopArgument> given = arguments_of(loop);
  const std::vector<size_t> carries = loop.positions(LoopRole::Carry);
  std::vector<UOp> values = values_of(loop.step()), outputs, seeds, targets;
  std::vector<LoopArgument> back;
  std::vector<size_t> differentiable;  // of the carries
  for (size_t k = 0; k < values.size(); ++k) {
    const bool carried = k < carries.size();
    const UOp g = k < cotangents.size() ? cotangents[k] : UOp();
    if (!is_float(values[k].dtype()) || (!carried && !g)) continue;
    outputs.push_back(values[k]);
    seeds.push_back(stand_in(values[k]));
    if (carried) differentiable.push_back(carries[k]);
    back.push_back({carried ? LoopRole::Carry : LoopRole::Row,
                    g ? g : zeros_like(given[carries[k]].given), seeds.back()});
  }
  for (const LoopArgument& a : given) targets.push_back(a.inside);
  const std::vector<UOp> moved = gradient(outputs, seeds, targets);

  std::vector<UOp> found(given.size()), next, collected;
  std::vector<size_t> rows;
  for (const size_t k : differentiable)
    next.push_back(moved[k] ? moved[k] : zeros_like(given[k].inside));
  size_t sums = 0;
  for (size_t k = 0; k < given.size(); ++k) {
    if (!moved[k] || !is_float(given[k].inside.dtype())) continue;
    if (given[k].role == LoopRole::Row) {
      rows.push_back(k);
      collected.push_back(moved[k]);
    } else if (given[k].role == LoopRole::Constant) {
      back.push_back({LoopRole::Carry, zeros_like(given[k].given), stand_in(given[k].inside)});
      next.push_back(add(back.back().inside, moved[k]));
      ++sums;
    }
  }
  std::vector<UOp> all = next;
  all.insert(all.end(), collected.begin(), collected.end());

  const std::vector<UOp> kept = KeptOfSteps(given, values).of(all);
  std::vector<size_t> where;
  for (const UOp& u : kept) {
    const auto known =
        std::find(values.begin() + static_cast<std::ptrdiff_t>(carries.size()), values.end(), u);
    where.push_back(static_cast<size_t>(known - values.begin()));
    if (known == values.end()) values.push_back(u);
  }
  const UOp forward = scan_call(given, values, loop.count, loop.reversed);
  for (size_t i = 0; i < kept.size(); ++i)
    back.push_back({LoopRole::Row, get_tuple(forward, static_cast<int64_t>(where[i])), kept[i]});
  for (const LoopArgument& a : given)
    if (a.role != LoopRole::Carry) back.push_back(a);
  const UOp backward = scan_call(back, all, loop.count, !loop.reversed);

  int64_t at = 0;
  for (const size_t k : differentiable) found[k] = get_tuple(backward, at++);
  for (size_t k = 0; k < given.size(); ++k)
    if (given[k].role == LoopRole::Constant && moved[k] && is_float(given[k].inside.dtype()))
      found[k] = get_tuple(backward, at++);
  for (const size_t k : rows) found[k] = get_tuple(backward, at++);
  return found;
}

// Each branch backwards, of which the same number is taken.
std::vector<UOp> switch_vjp(const Loop& loop, const std::vector<UOp>& cotangents) {
  const std::vector<LoopArgument> given = arguments_of(loop);
  std::vector<LoopArgument> all(given.begin() + 1, given.end());
  std::vector<UOp> targets;
  std::vector<size_t> of_target;
  for (size_t k = 1; k < given.size(); ++k)
    if (is_float(given[k].inside.dtype())) {
      targets.push_back(given[k].inside);
      of_target.push_back(k);
    }
  std::vector<size_t> weighed;
  std::vector<UOp> seeds;
  for (size_t k = 0; k < cotangents.size(); ++k)
    if (cotangents[k] && is_float(loop.step().src(k).dtype())) {
      weighed.push_back(k);
      seeds.push_back(stand_in(loop.step().src(k)));
      all.push_back({LoopRole::Constant, cotangents[k], seeds.back()});
    }
  std::vector<std::vector<UOp>> branches;
  for (const UOp& f : loop.functions) {
    std::vector<UOp> outputs;
    for (const size_t k : weighed) outputs.push_back(f.src(k));
    branches.push_back(gradient(outputs, seeds, targets));
    for (size_t k = 0; k < targets.size(); ++k)
      if (!branches.back()[k]) branches.back()[k] = zeros_like(targets[k]);
  }
  const UOp backward = switch_call(given[0].given, all, branches);
  std::vector<UOp> found(given.size());
  for (size_t k = 0; k < targets.size(); ++k)
    found[of_target[k]] = get_tuple(backward, static_cast<int64_t>(k));
  return found;
}

// --- forward: tangents, examples -----------------------------------------------------------------

// Something that arguments carry, of which each carry has it that some step gives it.
class Carried {
 public:
  Carried(const Loop& of_loop, std::vector<UOp> of_arguments, UOp number_of_examples)
      : loop(of_loop),
        examples(std::move(number_of_examples)),
        carried(std::move(of_arguments)),
        given(arguments_of(of_loop)) {
    for (size_t k = 0; k < given.size(); ++k) insides.push_back(carried[k] ? inside(k) : UOp());
  }

  // What the values of a function carry.
  std::vector<UOp> of(std::span<const UOp> values) const {
    std::vector<UOp> inputs, of_inputs;
    for (size_t k = 0; k < given.size(); ++k)
      if (insides[k]) {
        inputs.push_back(given[k].inside);
        of_inputs.push_back(insides[k]);
      }
    return examples ? batched(values, inputs, of_inputs, examples)
                    : tangents(values, inputs, of_inputs);
  }

  // Gives an argument something to carry that it has not: 0, or the same in all examples.
  void start(size_t k) {
    if (insides[k]) return;
    carried[k] = examples ? for_each_example(given[k].given, examples) : zeros_like(given[k].given);
    insides[k] = inside(k);
  }

  // What the step's values carry, once carries carry what it gives them.
  std::vector<UOp> settle() {
    const std::vector<size_t> carries = loop.positions(LoopRole::Carry);
    while (true) {
      const std::vector<UOp> out = of(loop.step().src());
      bool changed = false;
      for (size_t i = 0; i < carries.size(); ++i)
        if (out[i] && !insides[carries[i]]) {
          start(carries[i]);
          changed = true;
        }
      if (!changed) return out;
    }
  }

  // A value's, also where it carries nothing.
  UOp or_start(const UOp& carries, const UOp& value) const {
    if (carries) return carries;
    return examples ? for_each_example(shared(value), examples) : zeros_like(value);
  }

  // A value that is equal in all examples: it may name what differs, and not depend on it.
  UOp shared(const UOp& value) const {
    std::vector<UOp> inputs;
    for (size_t k = 0; k < given.size(); ++k)
      if (insides[k]) inputs.push_back(given[k].inside);
    return without_examples(value, inputs);
  }

  const Loop& loop;
  const UOp examples;
  std::vector<UOp> carried;  // by argument; null: nothing
  std::vector<LoopArgument> given;
  std::vector<UOp> insides;  // what stands for it in a step

 private:
  UOp inside(size_t k) const {
    const UOp& one = given[k].inside;
    if (!examples) return stand_in(one);
    Placement place = one.node()->placement;
    place.axes = place.axes.shifted(1);  // behind that of the examples
    return stand_in(shape_for_each(one, examples), one.dtype(), place);
  }
};

std::vector<UOp> scan_or_while_tangents(const Loop& loop, const std::vector<UOp>& directions) {
  Carried c(loop, directions, {});
  const std::vector<UOp> moved = c.settle(), step = values_of(loop.step());
  const std::vector<size_t> carries = loop.positions(LoopRole::Carry);
  std::vector<LoopArgument> all = c.given;
  for (size_t k = 0; k < c.given.size(); ++k)
    if (c.insides[k]) all.push_back({c.given[k].role, c.carried[k], c.insides[k]});
  std::vector<UOp> values(step.begin(), step.begin() + static_cast<std::ptrdiff_t>(carries.size()));
  std::vector<int64_t> at(step.size(), -1);
  for (size_t i = 0; i < step.size(); ++i) {
    const bool carry = i < carries.size();
    if (carry ? !c.insides[carries[i]] : !moved[i]) continue;
    at[i] = static_cast<int64_t>(values.size());
    values.push_back(c.or_start(moved[i], step[i]));
  }
  const UOp call = loop.body.is(Op::While) ? while_call(all, loop.functions[0].src(0), values)
                                           : scan_call(all, values, loop.count, loop.reversed);
  std::vector<UOp> out(step.size());
  for (size_t i = 0; i < step.size(); ++i)
    if (at[i] >= 0) out[i] = get_tuple(call, at[i]);
  return out;
}

std::vector<UOp> scan_for_examples(const Loop& loop, const std::vector<UOp>& carried,
                                   const UOp& examples) {
  Carried c(loop, carried, examples);
  const std::vector<UOp> made = c.settle(), step = values_of(loop.step());
  std::vector<LoopArgument> all = c.given;
  for (size_t k = 0; k < all.size(); ++k)
    if (c.insides[k])
      all[k] = {all[k].role,
                all[k].role == LoopRole::Row ? moved_axis(c.carried[k], 0, 1) : c.carried[k],
                c.insides[k]};
  const std::vector<size_t> carries = loop.positions(LoopRole::Carry);
  std::vector<UOp> values, out;
  std::vector<bool> differs;
  for (size_t i = 0; i < step.size(); ++i) {
    differs.push_back(i < carries.size() ? bool(c.insides[carries[i]]) : bool(made[i]));
    values.push_back(differs[i] ? c.or_start(made[i], step[i]) : c.shared(step[i]));
  }
  const UOp call = scan_call(all, values, loop.count, loop.reversed);
  for (size_t i = 0; i < step.size(); ++i) {
    out.push_back(differs[i] ? get_tuple(call, static_cast<int64_t>(i)) : UOp());
    if (differs[i] && i >= carries.size()) out[i] = moved_axis(out[i], 1, 0);
  }
  return out;
}

// A condition for each example, beside their values.
UOp beside(const UOp& condition, const UOp& values) {
  std::vector<UOp> dims{condition.dim(0)};
  dims.resize(values.rank(), index_const(1));
  return reshape(condition, stack(dims));
}

std::vector<UOp> while_for_examples(const Loop& loop, const std::vector<UOp>& carried,
                                    const UOp& examples) {
  Carried c(loop, carried, examples);
  std::vector<UOp> made = c.settle();
  const std::vector<size_t> carries = loop.positions(LoopRole::Carry);
  UOp holds = c.of(loop.functions[0].src())[0];
  if (holds) {  // examples end at different steps
    for (const size_t k : carries) c.start(k);
    made = c.settle();
    holds = c.of(loop.functions[0].src())[0];
  }
  std::vector<LoopArgument> all = c.given;
  for (size_t k = 0; k < all.size(); ++k)
    if (c.insides[k]) all[k] = {all[k].role, c.carried[k], c.insides[k]};
  std::vector<UOp> values, out;
  for (size_t i = 0; i < carries.size(); ++i) {
    const UOp& now = c.insides[carries[i]];
    const UOp one = loop.step().src(i), next = now ? c.or_start(made[i], one) : c.shared(one);
    values.push_back(holds ? where(beside(holds, next), next, now) : next);
  }
  UOp condition = c.shared(loop.functions[0].src(0));
  if (holds) {
    const UOp any = reduce(Op::Max, cast(holds, DType::UInt8), {0});
    condition = ne(reshape(any, shape_of({})), constant_int(DType::UInt8, 0));
  }
  const UOp call = while_call(all, condition, values);
  for (size_t i = 0; i < carries.size(); ++i)
    out.push_back(c.insides[carries[i]] ? get_tuple(call, static_cast<int64_t>(i)) : UOp());
  return out;
}

// What each branch's values carry; where one carries something, all do.
std::vector<std::vector<UOp>> of_branches(const Carried& c, std::vector<bool>& some) {
  std::vector<std::vector<UOp>> out;
  some.assign(c.loop.step().src().size(), false);
  for (const UOp& f : c.loop.functions) {
    out.push_back(c.of(f.src()));
    for (size_t k = 0; k < some.size(); ++k) some[k] = some[k] || out.back()[k];
  }
  for (size_t b = 0; b < out.size(); ++b)
    for (size_t k = 0; k < some.size(); ++k)
      if (some[k]) out[b][k] = c.or_start(out[b][k], c.loop.functions[b].src(k));
  return out;
}

std::vector<UOp> switch_carried(const Loop& loop, const std::vector<UOp>& carried,
                                const UOp& examples) {
  const Carried c(loop, carried, examples);
  std::vector<bool> some;
  const std::vector<std::vector<UOp>> made = of_branches(c, some);
  std::vector<LoopArgument> all(c.given.begin() + 1, c.given.end());
  for (size_t k = 1; k < c.given.size(); ++k) {
    if (!c.insides[k]) continue;
    const LoopArgument own{LoopRole::Constant, c.carried[k], c.insides[k]};
    if (examples)
      all[k - 1] = own;
    else
      all.push_back(own);
  }
  std::vector<std::vector<UOp>> branches;
  for (size_t b = 0; b < made.size(); ++b) {
    branches.emplace_back();
    for (size_t k = 0; k < some.size(); ++k)
      if (some[k]) branches[b].push_back(made[b][k]);
  }
  std::vector<UOp> out(some.size());
  if (branches[0].empty()) return out;
  const UOp call = switch_call(c.given[0].given, all, branches);
  int64_t at = 0;
  for (size_t k = 0; k < some.size(); ++k)
    if (some[k]) out[k] = get_tuple(call, at++);
  return out;
}

// The number of the branch differs: all branches, of which each example picks one.
std::vector<UOp> picked(const Loop& loop, const std::vector<UOp>& carried, const UOp& examples) {
  const Carried c(loop, carried, examples);
  Substitution inside;
  for (size_t k = 0; k < c.given.size(); ++k) {
    inside.emplace(c.given[k].inside, c.given[k].given);
    if (c.insides[k]) inside.emplace(c.insides[k], c.carried[k]);
  }
  std::vector<UOp> out;
  for (size_t b = loop.functions.size(); b-- > 0;) {
    const std::vector<UOp> made = c.of(loop.functions[b].src());
    const UOp here = lt(carried[0], constant_int(DType::Int32, static_cast<int64_t>(b) + 1));
    for (size_t k = 0; k < made.size(); ++k) {
      const UOp own = substitute(c.or_start(made[k], loop.functions[b].src(k)), inside);
      if (b + 1 == loop.functions.size())
        out.push_back(own);
      else
        out[k] = where(beside(here, own), own, out[k]);
    }
  }
  return out;
}

}  // namespace

std::vector<UOp> loop_vjp(const UOp& call, const std::vector<UOp>& cotangents) {
  const Loop loop(call);
  KOINE_REQUIRE(!loop.body.is(Op::While), Type,
                "gradient: {}, and so how much is to be kept for the way back; use scan() or "
                "fori_loop() with a number of steps, jvp() for forward mode, or detach() its "
                "arguments",
                vjp_cell(Op::While).words());
  return loop.body.is(Op::Scan) ? scan_vjp(loop, cotangents) : switch_vjp(loop, cotangents);
}

std::vector<UOp> loop_tangents(const UOp& call, const std::vector<UOp>& tangents) {
  const Loop loop(call);
  return loop.body.is(Op::Switch) ? switch_carried(loop, tangents, {})
                                  : scan_or_while_tangents(loop, tangents);
}

std::vector<UOp> loop_for_examples(const UOp& call, const std::vector<UOp>& carried,
                                   const UOp& examples) {
  const Loop loop(call);
  if (loop.body.is(Op::Scan)) return scan_for_examples(loop, carried, examples);
  if (loop.body.is(Op::While)) return while_for_examples(loop, carried, examples);
  return carried[0] ? picked(loop, carried, examples) : switch_carried(loop, carried, examples);
}

}  // namespace koine

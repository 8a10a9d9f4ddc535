#include "koine/tensor/loops.hpp"

#include <algorithm>
#include <limits>

#include "koine/base/error.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/tensor/random.hpp"
#include "koine/transform/clamped_positions.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/forward.hpp"
#include "koine/transform/function.hpp"

namespace koine::loops {
namespace {

// The functions of one loop, over what stands for its arguments.
class Functions {
 public:
  explicit Functions(std::string_view method) : method_(method) {}

  // A further argument, before any function is traced.
  void add(LoopRole role, const UOp& given) {
    const Device own = given.device();
    if (!first_) first_ = own;
    KOINE_REQUIRE(!own || own == first_ || (own.count() == 1 && first_.count() == 1), Device,
                  "'{}' has an argument of shape {} on {}, and another one on {}: all lie on the "
                  "same devices; place it there with shard()",
                  method_, shape_text(given), own.name(), first_.name());
    const Placement inside = placement_inside(given, role);
    arguments.push_back(
        {role, given,
         new_buffer(shape_inside(given, role), given.dtype(), inside.device, inside.axes)});
  }

  // The values of a function of the first `inputs` arguments; what it captures becomes constants.
  std::vector<UOp> traced(const Function& f, size_t inputs, Where where) {
    std::vector<UOp> prototypes;
    for (size_t k = 0; k < inputs; ++k) prototypes.push_back(arguments[k].inside);
    const Traced made = trace_function(
        [&](const std::vector<UOp>& params) {
          Tensors given;
          for (const UOp& p : params) given.emplace_back(p);
          std::vector<UOp> out;
          for (const Tensor& t : f(given)) out.push_back(t.uop());
          return out;
        },
        prototypes, where);
    Substitution insides;
    for (const auto& [slot, param] : params_of(made.body)) {
      const auto k = static_cast<size_t>(slot);
      insides.emplace(param, k < inputs ? prototypes[k] : captured(made.captured[k - inputs]));
    }
    const ClampedPositions all = with_clamped_positions(substitute(made.body, insides));
    broken = all.broken;
    return {all.values.src().begin(), all.values.src().end()};
  }

  std::vector<LoopArgument> arguments;
  UOp broken;  // whether the function traced last left its positions' ranges; null: it cannot

 private:
  UOp captured(const UOp& value) {
    for (const LoopArgument& a : arguments)
      if (a.role == LoopRole::Constant && a.given == value) return a.inside;
    add(LoopRole::Constant, value);
    return arguments.back().inside;
  }

  std::string_view method_;
  Device first_;  // of an argument; null: none has one yet
};

// Positions in steps: 0, or the number of the first step, from 1, that left their range.
UOp first_broken(const UOp& known, const UOp& broken, const UOp& step) {
  const UOp none = constant_int(DType::Int64, 0);
  const UOp own = add(cast(step, DType::Int64), constant_int(DType::Int64, 1));
  return where(bit_or(ne(known, none), logical_not(broken)), known, own);
}

// The results of a loop, which are read behind the check that its positions were in range.
Tensors results(const UOp& call, size_t count, std::optional<size_t> flag,
                std::string_view method) {
  Tensors out;
  UOp left;  // whether they were not, once that has been looked at
  if (flag) {
    const UOp zero = constant_int(DType::Int64, 0);
    const UOp number = get_tuple(call, static_cast<int64_t>(*flag));
    left =
        ne(UOp::make(Op::Assume, {number, zero, zero}, fmt::format("inside of {}", method)), zero);
  }
  for (size_t k = 0, at = 0; k < count; ++k, ++at) {
    at += at == flag ? 1 : 0;
    const UOp own = get_tuple(call, static_cast<int64_t>(at));
    out.emplace_back(left ? where(left, like(own, 0), own) : own);
  }
  return out;
}

std::vector<UOp> uops(const Tensors& tensors) {
  std::vector<UOp> out;
  for (const Tensor& t : tensors) out.push_back(t.uop());
  return out;
}

void require_carries(std::string_view method, size_t given, size_t carries, bool exactly) {
  KOINE_REQUIRE(exactly ? given == carries : given >= carries, Value,
                "{}: the step gives {} tensors, and the carry holds {}: give the next carry in the "
                "structure of the first",
                method, given, carries);
}

// Where a value lies, for a message.
std::string place_text(const Placement& place) {
  const std::string on = "on " + place.device.name();
  if (place.device.count() < 2) return on;
  return on + (place.axes.empty() ? ", whole" : ", split along " + axes_text(place.axes));
}

void require_like(std::string_view method, const std::vector<UOp>& next, const Tensors& init,
                  const Words& words) {
  for (size_t k = 0; k < init.size(); ++k) {
    const Placement &first = init[k].uop().node()->placement, &then = next[k].node()->placement;
    const bool moves = first.device && then.device &&
                       (first.device.count() > 1 || then.device.count() > 1) && !(first == then);
    KOINE_REQUIRE(!moves, Device,
                  "{}: {}, of shape {}, is {} before the first step and {} behind it: both must be "
                  "equal; shard() the first one like that, or the other in the step",
                  method, words.carry(k), shape_text(next[k]), place_text(first), place_text(then));
    KOINE_REQUIRE(next[k].dtype() == init[k].dtype() && next[k].shape() == init[k].uop().shape(),
                  Value,
                  "{}: {} is {} of shape {} before the first step and {} of shape {} behind it: "
                  "both must be equal; cast() or reshape() one of them",
                  method, words.carry(k), dtype_name(init[k].dtype()), shape_text(init[k].uop()),
                  dtype_name(next[k].dtype()), shape_text(next[k]));
  }
}

// How many steps there are.
Size length_of(const Tensors& rows, const ScanOptions& options, const Words& words) {
  std::optional<Size> length = options.length;
  bool differ = false;
  for (size_t k = 0; k < rows.size(); ++k) {
    KOINE_REQUIRE(rows[k].uop().rank() > 0, Value,
                  "scan: {} has shape (): it has no axis 0, of which each step takes an element; "
                  "capture it, or make it part of the carry",
                  words.row(k));
    const Size own = rows[k].size(0);
    differ = differ || (length && !(*length == own));
    length = own;
  }
  KOINE_REQUIRE(length, Value, "scan: there are no rows: say how many steps with {}", words.length);
  std::string all;
  if (differ && options.length) all = fmt::format("{} is {}", words.length, options.length->text());
  for (size_t k = 0; k < rows.size() && differ; ++k)
    all += fmt::format("{}{} of shape {} has {}", all.empty() ? "" : ", ", words.row(k),
                       shape_text(rows[k].uop()), rows[k].size(0).text());
  KOINE_REQUIRE(!differ, Value, "scan: the numbers of rows differ: {}", all);
  KOINE_REQUIRE(length->smallest() >= 0, Value, "scan: {} steps are asked for", length->text());
  return *length;
}

}  // namespace

transforms::NameOf Words::numbered(const char* name) {
  return [name](size_t k) { return fmt::format(fmt::runtime(name), k); };
}

Tensors scan(const Function& step, const Tensors& init, const Tensors& rows,
             const ScanOptions& options, Where where, const Words& words, std::string_view method) {
  const UOp count = length_of(rows, options, words).uop();
  Functions made(method);
  for (const UOp& u : uops(init)) made.add(LoopRole::Carry, u);
  for (const UOp& u : uops(rows)) made.add(LoopRole::Row, u);
  made.add(LoopRole::Row, iota(count, DType::UInt64));
  const UOp number = made.arguments.back().inside;
  const size_t inputs = made.arguments.size();
  const Function numbered = [&](const Tensors& all) {
    const random::ExampleScope scope(all.back().uop());
    return step(Tensors(all.begin(), all.end() - 1));
  };
  std::vector<UOp> values = made.traced(numbered, inputs, where);
  require_carries(method, values.size(), init.size(), false);
  require_like(method, values, init, words);
  const size_t wanted = values.size();
  if (is_const(count, 0)) {
    Tensors out = init;
    for (size_t k = init.size(); k < wanted; ++k)
      out.emplace_back(spread(like(values[k], 0), shape_for_each(values[k], count)));
    return out;
  }
  if (made.broken) {
    made.add(LoopRole::Carry, constant_int(DType::Int64, 0));
    values.insert(values.begin() + static_cast<std::ptrdiff_t>(init.size()),
                  first_broken(made.arguments.back().inside, made.broken, number));
  }
  const UOp call = scan_call(made.arguments, values, count, options.reversed);
  return results(call, wanted, made.broken ? std::optional(init.size()) : std::nullopt, method);
}

Tensors fori(const Size& lower, const Size& upper, const Function& step, const Tensors& init,
             Where where, const Words& words) {
  int64_t steps = 0;
  KOINE_REQUIRE(!__builtin_sub_overflow(upper.largest(), lower.smallest(), &steps) &&
                    !__builtin_sub_overflow(upper.smallest(), lower.largest(), &steps),
                Value, "fori_loop: from {} to {} there are more steps than 64 bits count",
                lower.text(), upper.text());
  Size count = upper - lower;
  if (count.largest() < 0) count = 0;
  KOINE_REQUIRE(count.smallest() >= 0, Value, "fori_loop: from {} to {} there may be {} steps",
                lower.text(), upper.text(), count.smallest());
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  const bool small = lower.smallest() >= -most && upper.largest() <= most;
  const DType dtype = small ? DType::Int32 : DType::Int64;
  const UOp numbers = add(iota(count.uop(), dtype), cast(lower.uop(), dtype));
  const Function numbered = [&](const Tensors& all) {
    Tensors given{all.back()};
    given.insert(given.end(), all.begin(), all.end() - 1);
    Tensors next = step(given);
    require_carries("fori_loop", next.size(), init.size(), true);
    return next;
  };
  return scan(numbered, init, {Tensor(numbers)}, {}, where, words, "fori_loop");
}

Tensors fori(const Tensor& lower, const Tensor& upper, const Function& step, const Tensors& init,
             Where where, const Words& words) {
  for (const Tensor* bound : {&lower, &upper})
    KOINE_REQUIRE(is_integer(bound->dtype()) && bound->uop().rank() == 0, Value,
                  "fori_loop: the steps go {} an integer of shape (), got {} of shape {}",
                  bound == &lower ? "from" : "to", dtype_name(bound->dtype()),
                  shape_text(bound->uop()));
  const auto [first, end] = tensor::meet("fori_loop", lower, upper, UOp(), UOp());
  KOINE_REQUIRE(is_integer(first.dtype()), Value,
                "fori_loop: from {} to {}, no integer holds both: cast() one of them",
                dtype_name(lower.dtype()), dtype_name(upper.dtype()));
  const Tensor stop(end);
  Tensors carries{Tensor(first)};
  carries.insert(carries.end(), init.begin(), init.end());
  const Function below = [&](const Tensors& all) { return Tensors{all[0] < stop}; };
  const Function counted = [&](const Tensors& all) {
    Tensors next = step(all);
    require_carries("fori_loop", next.size(), init.size(), true);
    next.insert(next.begin(), Tensor(add(all[0].uop(), like(all[0].uop(), 1))));
    return next;
  };
  Words shifted = words;
  shifted.carry = [&](size_t k) { return words.carry(k - 1); };
  Tensors out = repeat(below, counted, carries, where, shifted, "fori_loop");
  out.erase(out.begin());
  return out;
}

Tensors repeat(const Function& condition, const Function& step, const Tensors& init, Where where,
               const Words& words, std::string_view method) {
  Functions made(method);
  for (const UOp& u : uops(init)) made.add(LoopRole::Carry, u);
  made.add(LoopRole::Carry, constant_int(DType::UInt64, 0));
  const UOp number = made.arguments.back().inside;
  const size_t inputs = made.arguments.size();
  auto numbered = [](const Function& f) {
    return [&f](const Tensors& all) {
      const random::ExampleScope scope(all.back().uop());
      return f(Tensors(all.begin(), all.end() - 1));
    };
  };
  const std::vector<UOp> holds = made.traced(numbered(condition), inputs, where);
  KOINE_REQUIRE(holds.size() == 1 && holds[0].dtype() == DType::Bool && holds[0].is_scalar(), Value,
                "{}: {} must give one bool of shape (), got {}: compare, and reduce with any() or "
                "all()",
                method, words.condition,
                holds.empty() ? "nothing"
                              : fmt::format("{} of shape {}", dtype_name(holds[0].dtype()),
                                            shape_text(holds[0])));
  UOp broken = made.broken;
  std::vector<UOp> values = made.traced(numbered(step), inputs, where);
  require_carries(method, values.size(), init.size(), true);
  require_like(method, values, init, words);
  const size_t wanted = values.size();
  values.push_back(add(number, constant_int(DType::UInt64, 1)));
  if (made.broken) broken = broken ? bit_or(broken, made.broken) : made.broken;
  if (broken) {
    made.add(LoopRole::Carry, constant_int(DType::Int64, 0));
    values.push_back(first_broken(made.arguments.back().inside, broken, number));
  }
  const UOp call = while_call(made.arguments, holds[0], values);
  return results(call, wanted, broken ? std::optional(wanted + 1) : std::nullopt, method);
}

Tensors branch(std::string_view method, const Tensor& which, const std::vector<Function>& branches,
               const Tensors& arguments, Where where, const Words& words) {
  KOINE_REQUIRE(!branches.empty(), Value, "{}: there is no branch", method);
  KOINE_REQUIRE(is_integer(which.dtype()) && which.uop().rank() == 0, Value,
                "{}: the number of the branch must be an integer of shape (), got {} of shape {}",
                method, dtype_name(which.dtype()), shape_text(which.uop()));
  const auto last = static_cast<int64_t>(branches.size()) - 1;
  const UOp number = which.clip(0, last).cast(DType::Int32).uop();
  Functions made(method);
  for (const UOp& u : uops(arguments)) made.add(LoopRole::Constant, u);
  std::vector<std::vector<UOp>> values;
  std::vector<UOp> broken;
  for (const Function& f : branches) {
    values.push_back(made.traced(f, arguments.size(), where));
    broken.push_back(made.broken);
  }
  const size_t wanted = values[0].size();
  const bool any = std::any_of(broken.begin(), broken.end(), [](const UOp& b) { return bool(b); });
  const auto name = [&](size_t b) {
    return method != "cond" ? fmt::format("branch {}", b) : b == 0 ? words.if_false : words.if_true;
  };
  for (size_t b = 0; b < values.size(); ++b) {
    KOINE_REQUIRE(values[b].size() == wanted, Value,
                  "{}: {} gives {} tensors, and {} gives {}: all give the same structure", method,
                  name(0), wanted, name(b), values[b].size());
    for (size_t k = 0; k < wanted; ++k)
      KOINE_REQUIRE(values[b][k].dtype() == values[0][k].dtype() &&
                        values[b][k].shape() == values[0][k].shape(),
                    Value,
                    "{}: {} is {} of shape {} in {} and {} of shape {} in {}: both must be equal; "
                    "cast() or reshape() one of them",
                    method, words.result(k), dtype_name(values[0][k].dtype()),
                    shape_text(values[0][k]), name(0), dtype_name(values[b][k].dtype()),
                    shape_text(values[b][k]), name(b));
    if (any)
      values[b].push_back(broken[b] ? cast(broken[b], DType::Int64)
                                    : constant_int(DType::Int64, 0));
  }
  return results(switch_call(number, made.arguments, values), wanted,
                 any ? std::optional(wanted) : std::nullopt, method);
}

Tensor number_of(const Tensor& condition, const Words& words) {
  KOINE_REQUIRE(condition.dtype() == DType::Bool && condition.uop().rank() == 0, Value,
                "cond: {} must be a bool of shape (), got {} of shape {}: compare, and reduce with "
                "any() or all()",
                words.condition, dtype_name(condition.dtype()), shape_text(condition.uop()));
  return condition.cast(DType::Int32);
}

}  // namespace koine::loops

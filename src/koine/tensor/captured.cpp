#include "koine/tensor/captured.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <unordered_set>

#include "koine/base/error.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/step.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/random.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

using transforms::Tensors;

// The memory that holds a value; computes it where there is none yet.
UOp in_memory(const UOp& value) {
  if (const UOp known = realized_buffer(value)) return known;
  return realize({value})[0];
}

// Distinct values, and the number of each argument among them.
struct Distinct {
  std::vector<UOp> values;
  std::vector<size_t> number;

  explicit Distinct(const Tensors& arguments) {
    for (const Tensor& t : arguments) {
      const UOp value = t.uop();
      const auto found = std::find(values.begin(), values.end(), value);
      number.push_back(static_cast<size_t>(found - values.begin()));
      if (found == values.end()) values.push_back(value);
    }
  }
};

// Results are tensors of their own: what is assigned to one later changes no other and no argument.
void require_own_results(const Tensors& results, const Tensors& arguments) {
  std::unordered_set<const void*> known;
  for (const Tensor& a : arguments) known.insert(a.storage_id());
  for (size_t k = 0; k < results.size(); ++k)
    KOINE_REQUIRE(known.insert(results[k].storage_id()).second, Value,
                  "a captured function gives an argument or a tensor twice, or a view of one, as "
                  "result {}: clone() it",
                  k);
}

// The values of f's results for placeholders, one for each distinct argument.
std::vector<UOp> described(const transforms::Function& f, const std::vector<UOp>& params,
                           std::span<const size_t> number) {
  Tensors own, arguments;
  for (const UOp& p : params) own.emplace_back(p);
  for (const size_t n : number) arguments.push_back(own[n]);
  const random::WithoutDraws scope;
  const Tensors results = f(arguments);
  require_own_results(results, own);
  for (size_t k = 0; k < own.size(); ++k)
    KOINE_REQUIRE(own[k].uop() == params[k], Value,
                  "a captured function assigns to an argument of shape {}: return the new value, "
                  "and assign it behind the call",
                  shape_text(params[k]));
  std::vector<UOp> values;
  for (const Tensor& r : results) values.push_back(r.uop());
  return values;
}

VariableValues values_of(const Substitution& sizes) {
  VariableValues out;
  for (const auto& [variable, size] : sizes)
    out.emplace(variable.as<BufferArg>().name, const_int(size));
  return out;
}

// A shape with other sizes in the place of some.
UOp with(const UOp& shape, const Substitution& sizes) {
  std::vector<UOp> out;
  for (const UOp& size : shape.src()) {
    const auto found = sizes.find(size);
    out.push_back(found == sizes.end() ? size : found->second);
  }
  return stack(out);
}

// Sizes of a body are those of its arguments: what binds a Variable of that name itself would meet
// the sizes of each call, and what nothing is read of has none.
void require_own_sizes(const UOp& body, const Substitution& dynamic) {
  const std::map<int64_t, UOp> params = params_of(body);
  const auto is_read = [&](const UOp& variable) {
    return std::any_of(params.begin(), params.end(), [&](const auto& param) {
      const auto sizes = param.second.shape().src();
      return std::find(sizes.begin(), sizes.end(), variable) != sizes.end();
    });
  };
  for (const UOp& v : variables_below(body))
    for (const auto& [own, size] : dynamic) {
      const std::string& name = own.as<BufferArg>().name;
      if (v.as<BufferArg>().name != name) continue;
      KOINE_REQUIRE(v == own, Value,
                    "a captured function uses Variable '{}' itself, which is the size of an axis "
                    "of its arguments: give one of them another name",
                    name);
      KOINE_REQUIRE(
          is_read(own), Value,
          "a captured function needs the size '{}' of an argument, and reads nothing of it", name);
    }
}

// A body whose Params are all of `values`: what it captured as it was described with the first of
// them is computed from the rest.
UOp closed_over(const Traced& traced, std::span<const UOp> values, size_t described_with) {
  Substitution outside, inside;
  for (size_t k = described_with; k < values.size(); ++k)
    outside.emplace(values[k], argument_param(static_cast<int64_t>(k), values[k]));
  const std::map<int64_t, UOp> params = params_of(traced.body);
  for (size_t k = 0; k < traced.captured.size(); ++k) {
    const UOp value = substitute(traced.captured[k], outside);
    for (const UOp& u : toposort(value))
      KOINE_REQUIRE(!u.is(Op::Buffer) && !u.is(Mark::Leaf) && !u.is(Op::Binary), Value,
                    "a captured function reads a value of shape {} that is neither an argument nor "
                    "among the surroundings: random numbers, or a tensor made elsewhere",
                    shape_text(traced.captured[k]));
    const auto param = params.find(static_cast<int64_t>(described_with + k));
    if (param != params.end()) inside.emplace(param->second, value);
  }
  return substitute(traced.body, inside);
}

}  // namespace

struct CapturedFunction::State {
  // A distinct argument: what it must be like, and where the program reads it.
  struct Input {
    UOp shape;  // with the Variables of dynamic axes
    DType dtype;
    Placement place;
    std::vector<size_t> places;

    bool fits(const UOp& value, const Substitution& sizes) const {
      const Placement& other = value.node()->placement;
      return value.dtype() == dtype && other.device == place.device && other.axis == place.axis &&
             (value.shape() == shape || (!sizes.empty() && value.shape() == with(shape, sizes)));
    }
  };
  // A Variable, and where its size stands.
  struct Dynamic {
    UOp variable;
    size_t input, axis;
  };

  std::mutex mutex;
  std::vector<size_t> number;  // of an argument among the distinct ones
  std::vector<Input> inputs;
  std::vector<Dynamic> dynamic;
  std::vector<UOp> edges;  // sizes that follow from those of the Variables and may be 0 or 1
  UOp body;                // a Tuple of the results
  CapturedStep step{{}};

  void add_dynamic(const std::vector<DynamicAxis>& axes, const Distinct& examples, size_t given);
  void add_edges();
  Substitution sizes_of(const Distinct& given) const;
  void require_alike(const Distinct& given, const Substitution& sizes) const;
};

// The described Variables: two sizes that broadcast and squeeze are left out of their ranges.
void CapturedFunction::State::add_dynamic(const std::vector<DynamicAxis>& axes,
                                          const Distinct& examples, size_t given) {
  std::map<std::string, UOp> declared;
  for (const UOp& value : examples.values)
    inputs.push_back({value.shape(), value.dtype(), value.node()->placement, {}});
  for (const DynamicAxis& d : axes) {
    KOINE_REQUIRE(d.argument < given && d.axis < examples.values[number[d.argument]].rank(), Index,
                  "a captured function has no axis {} of argument {}", d.axis, d.argument);
    const UOp& range = d.size.uop();
    const std::string& name = range.as<BufferArg>().name;
    const UOp& first = declared.emplace(name, range).first->second;
    KOINE_REQUIRE(first == range, Value, "two Variables of a captured function have the name '{}'",
                  name);
    const int64_t low = std::max<int64_t>(const_int(range.src(1)), 2),
                  high = const_int(range.src(2));
    KOINE_REQUIRE(low <= high, Value,
                  "Variable '{}' is at most {}, and a captured function takes sizes from 2 on for "
                  "dynamic ones",
                  name, high);
    const size_t k = number[d.argument];
    const UOp variable = koine::variable(name, low, high);
    KOINE_REQUIRE(inputs[k].place.device.count() < 2, Value,
                  "argument {} of a captured function has a dynamic axis, and lies on {}",
                  d.argument, inputs[k].place.device.name());
    if (!inputs[k].shape.src(d.axis).is(Op::Const)) continue;  // one value given twice
    dynamic.push_back({variable, k, d.axis});
    inputs[k].shape = with_source(inputs[k].shape, d.axis, variable);
  }
}

// What a described function cannot have decided: whether a size that follows from others is 0 or 1.
void CapturedFunction::State::add_edges() {
  std::unordered_set<UOp> known;
  for (const Dynamic& d : dynamic) known.insert(d.variable);
  const auto follows = [&](const UOp& size) {
    const std::vector<UOp> below = variables_below(size);
    return std::all_of(below.begin(), below.end(),
                       [&](const UOp& v) { return is_bound(v) || known.contains(v); });
  };
  std::unordered_set<UOp> seen = known;
  for (const UOp& u : toposort_with_bodies(body))
    for (size_t axis = 0; axis < u.rank(); ++axis) {
      const UOp size = u.dim(axis);
      if (size.is(Op::Const) || !seen.insert(size).second || !follows(size)) continue;
      if (index_span(size).low < 2) edges.push_back(size);
    }
}

Substitution CapturedFunction::State::sizes_of(const Distinct& given) const {
  KOINE_REQUIRE(given.number == number, Value,
                "a captured function was made for {} arguments of which {} differ, and is called "
                "with {} of which {} differ, or others of them are one value",
                number.size(), inputs.size(), given.number.size(), given.values.size());
  Substitution out;
  for (const Dynamic& d : dynamic) {
    const UOp& value = given.values[d.input];
    KOINE_REQUIRE(d.axis < value.rank() && value.dim(d.axis).is(Op::Const), Value,
                  "a captured function wants a size along axis {}, not {}", d.axis,
                  shape_text(value));
    const UOp size = value.dim(d.axis);
    require_in_range(d.variable, const_int(size));
    const UOp& first = out.emplace(d.variable, size).first->second;
    KOINE_REQUIRE(first == size, Value, "Variable '{}' is {} for one axis and {} for another",
                  d.variable.as<BufferArg>().name, const_int(first), const_int(size));
  }
  return out;
}

void CapturedFunction::State::require_alike(const Distinct& given,
                                            const Substitution& sizes) const {
  for (size_t k = 0; k < inputs.size(); ++k)
    KOINE_REQUIRE(inputs[k].fits(given.values[k], sizes), Value,
                  "a captured function was made for {} of other shapes, dtypes or devices: "
                  "argument {} is {} {}",
                  inputs.size(), k, dtype_name(given.values[k].dtype()),
                  shape_text(given.values[k]));
}

CapturedFunction::CapturedFunction(const transforms::Function& f, const Tensors& examples,
                                   const Tensors& surroundings,
                                   const std::vector<DynamicAxis>& dynamic,
                                   std::source_location where)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  Tensors all = examples;
  all.insert(all.end(), surroundings.begin(), surroundings.end());
  const Distinct distinct(all);
  s.number = distinct.number;
  for (const UOp& value : distinct.values)
    KOINE_REQUIRE(value.has_concrete_shape(), Value,
                  "a captured function takes arguments of known sizes, not {}", shape_text(value));
  const std::span<const size_t> given(s.number.data(), examples.size());
  const size_t described_with =
      given.empty() ? 0 : *std::max_element(given.begin(), given.end()) + 1;
  s.add_dynamic(dynamic, distinct, examples.size());
  const Substitution sizes = s.sizes_of(distinct);
  std::vector<UOp> arguments;  // of which a trace sees shape, dtype and place
  for (size_t k = 0; k < described_with; ++k)
    arguments.push_back(
        s.inputs[k].shape == distinct.values[k].shape()
            ? distinct.values[k]
            : new_buffer(s.inputs[k].shape, s.inputs[k].dtype, s.inputs[k].place.device));
  const Traced traced =
      trace_function([&](const std::vector<UOp>& params) { return described(f, params, given); },
                     arguments, where);
  s.body = closed_over(traced, distinct.values, described_with);
  require_own_sizes(s.body, sizes);
  s.add_edges();
  // Over Buffers that nobody else has: what was computed before from the same memory is no result.
  std::vector<UOp> stand_ins;
  for (size_t k = 0; k < distinct.values.size(); ++k) {
    const UOp memory = in_memory(distinct.values[k]);
    const Placement& place = memory.node()->placement;
    stand_ins.push_back(new_buffer(s.inputs[k].shape, s.inputs[k].dtype, place.device, place.axis));
    storage::set_memory(stand_ins.back(), storage::memory(memory));
  }
  const UOp call = function(s.body, stand_ins);
  std::vector<UOp> values;
  for (size_t k = 0; k < s.body.src().size(); ++k)
    values.push_back(get_tuple(call, static_cast<int64_t>(k)));
  s.step = CapturedStep(values, values_of(sizes));
  for (size_t k = 0; k < stand_ins.size(); ++k) {
    s.inputs[k].places = s.step.places_of(stand_ins[k]);
    storage::set_memory(stand_ins[k], nullptr);  // a call brings its own
  }
}

CapturedFunction::~CapturedFunction() = default;
CapturedFunction::CapturedFunction(CapturedFunction&&) noexcept = default;

Tensors CapturedFunction::operator()(const Tensors& arguments) {
  State& s = *state_;
  const Distinct given(arguments);
  const Substitution sizes = s.sizes_of(given);
  s.require_alike(given, sizes);
  std::vector<UOp> buffers;
  for (const UOp& value : given.values) buffers.push_back(in_memory(value));
  const UOp call = function(s.body, given.values);
  Tensors out;
  const std::lock_guard lock(s.mutex);
  for (const auto& [name, size] : values_of(sizes)) s.step.bind(name, size);
  s.step.renew_outputs();
  for (size_t k = 0; k < buffers.size(); ++k)
    for (const size_t place : s.inputs[k].places) s.step.put(place, buffers[k]);
  const bool done = s.step.try_run();
  for (size_t k = 0; k < s.body.src().size(); ++k) {
    const UOp value = get_tuple(call, static_cast<int64_t>(k));
    if (done) storage::set_result(value, s.step.outputs()[k]);
    out.emplace_back(value);
  }
  if (!done) Tensor::realize(out);  // says which position is out of range
  return out;
}

bool CapturedFunction::serves(const Tensors& arguments) const {
  const State& s = *state_;
  if (s.edges.empty()) return true;
  const Substitution sizes = s.sizes_of(Distinct(arguments));
  return std::all_of(s.edges.begin(), s.edges.end(),
                     [&](const UOp& edge) { return present_value(substitute(edge, sizes)) >= 2; });
}

}  // namespace koine

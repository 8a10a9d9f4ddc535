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
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
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
    UOp shape;
    DType dtype;
    Placement place;
    std::vector<size_t> places;

    bool fits(const UOp& value) const {
      const Placement& other = value.node()->placement;
      return value.shape() == shape && value.dtype() == dtype && other.device == place.device &&
             other.axis == place.axis;
    }
  };

  std::mutex mutex;
  std::vector<size_t> number;  // of an argument among the distinct ones
  std::vector<Input> inputs;
  UOp body;  // a Tuple of the results
  CapturedStep step{{}};

  void require_alike(const Distinct& given) const;
};

void CapturedFunction::State::require_alike(const Distinct& given) const {
  KOINE_REQUIRE(given.number == number, Value,
                "a captured function was made for {} arguments of which {} differ, and is called "
                "with {} of which {} differ, or others of them are one value",
                number.size(), inputs.size(), given.number.size(), given.values.size());
  for (size_t k = 0; k < inputs.size(); ++k)
    KOINE_REQUIRE(inputs[k].fits(given.values[k]), Value,
                  "a captured function was made for {} of other shapes, dtypes or devices: "
                  "argument {} is {} {}",
                  inputs.size(), k, dtype_name(given.values[k].dtype()),
                  shape_text(given.values[k]));
}

CapturedFunction::CapturedFunction(const transforms::Function& f, const Tensors& examples,
                                   const Tensors& surroundings, std::source_location where)
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
  const std::vector<UOp> arguments(
      distinct.values.begin(),
      distinct.values.begin() + static_cast<std::ptrdiff_t>(described_with));
  const Traced traced =
      trace_function([&](const std::vector<UOp>& params) { return described(f, params, given); },
                     arguments, where);
  s.body = closed_over(traced, distinct.values, described_with);
  // Over Buffers that nobody else has: what was computed before from the same memory is no result.
  std::vector<UOp> stand_ins;
  for (const UOp& value : distinct.values) {
    const UOp memory = in_memory(value);
    const Placement& place = memory.node()->placement;
    stand_ins.push_back(new_buffer(value.shape(), value.dtype(), place.device, place.axis));
    storage::set_memory(stand_ins.back(), storage::memory(memory));
  }
  const UOp call = function(s.body, stand_ins);
  std::vector<UOp> values;
  for (size_t k = 0; k < s.body.src().size(); ++k)
    values.push_back(get_tuple(call, static_cast<int64_t>(k)));
  s.step = CapturedStep(values);
  for (size_t k = 0; k < distinct.values.size(); ++k) {
    const UOp& value = distinct.values[k];
    s.inputs.push_back(
        {value.shape(), value.dtype(), value.node()->placement, s.step.places_of(stand_ins[k])});
  }
}

CapturedFunction::~CapturedFunction() = default;
CapturedFunction::CapturedFunction(CapturedFunction&&) noexcept = default;

Tensors CapturedFunction::operator()(const Tensors& arguments) {
  State& s = *state_;
  const Distinct given(arguments);
  s.require_alike(given);
  std::vector<UOp> buffers;
  for (const UOp& value : given.values) buffers.push_back(in_memory(value));
  const UOp call = function(s.body, given.values);
  Tensors out;
  const std::lock_guard lock(s.mutex);
  s.step.renew_outputs();
  for (size_t k = 0; k < buffers.size(); ++k)
    for (const size_t place : s.inputs[k].places) s.step.put(place, buffers[k]);
  s.step.run();
  for (size_t k = 0; k < s.body.src().size(); ++k) {
    const UOp value = get_tuple(call, static_cast<int64_t>(k));
    storage::set_result(value, s.step.outputs()[k]);
    out.emplace_back(value);
  }
  return out;
}

}  // namespace koine

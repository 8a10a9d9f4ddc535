#include "koine/tensor/captured.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_set>

#include "koine/base/error.hpp"
#include "koine/engine/engine.hpp"
#include "koine/engine/step.hpp"
#include "koine/engine/storage.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/random.hpp"
#include "koine/tensor/recording.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

using transforms::Tensors;

// The memory that holds a value; computes it where there is none yet. Where it reads memory of
// others, it is computed for this call alone, as in a function that runs as it is written: the next
// call sees what they have written since.
UOp in_memory(const UOp& value) {
  if (const UOp known = realized_buffer(value)) return known;
  if (!reads_borrowed(value)) return realize({value})[0];
  std::vector<UOp> written;  // what stores gave a memory has it for good
  for (const UOp& u : toposort(value, [](const UOp& u) { return !realized_buffer(u); }))
    if (u.is(Op::After)) written.push_back(u);
  if (!written.empty()) (void)realize(written);
  if (const UOp known = realized_buffer(value)) return known;
  CapturedStep step({value});
  step.run();
  return step.outputs()[0];
}

bool reads_memory_of_others(const UOp& value) {
  const UOp memory = realized_buffer(value);
  return memory ? koine::memory_of(memory)->is_borrowed() : reads_borrowed(value);
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
void require_own_results(const Tensors& results, const Tensors& recorded) {
  std::unordered_set<const void*> known;
  for (const Tensor& t : recorded) known.insert(t.storage_id());
  for (size_t k = 0; k < results.size(); ++k)
    KOINE_REQUIRE(known.insert(results[k].storage_id()).second, Value,
                  "a captured function gives an argument, a surrounding or a tensor twice, or a "
                  "view of one, as result {}: clone() it",
                  k);
}

// What a function does. Its values are those of the results, then of what is assigned, then of the
// gradients that are left.
struct Description {
  size_t results = 0;
  std::vector<size_t> assigned;   // which arguments or surroundings get a value
  std::vector<size_t> gradients;  // and which a gradient
  std::vector<size_t> cleared;    // and which lose theirs
  std::vector<random::Draw> draws;
  std::vector<size_t> given_gradients;  // whose gradients of before it may read
  std::vector<UOp> given;               // what stands for these
  std::vector<UOp> named;  // what stands for the value of each argument and surrounding
  bool has_state = false;
};

// The function at work on stand-ins, a stand-in for each distinct argument. `all` has the arguments
// and behind them the surroundings.
class Describing {
 public:
  Describing(const Tensors& all, std::span<const size_t> given, const std::vector<UOp>& params)
      : all_(all), given_(given) {
    for (size_t n = 0; n < params.size(); ++n) {
      const auto first = std::find(given.begin(), given.end(), n) - given.begin();
      own_.push_back(Tensor::Recording::stand_in(all[static_cast<size_t>(first)], params[n]));
    }
    for (size_t k = 0; k < all.size(); ++k)
      used_.push_back(k < given.size() ? own_[given[k]] : all[k]);
  }

  // The values that f describes.
  std::vector<UOp> run(const transforms::Function& f, Description& out) const {
    std::vector<bool> computed;
    for (const Tensor& t : all_)
      computed.push_back(!Tensor::Recording::is_leaf(t) && Tensor::Recording::has_history(t));
    const Tensor::Recording recording(used_);
    const random::RecordedDraws drawn;
    for (size_t k = 0; k < used_.size(); ++k)
      out.named.push_back(Tensor::Recording::is_view(used_[k]) ? UOp() : recording.named(k));
    const Tensors results = f({used_.begin(), used_.begin() + std::ssize(given_)});
    require_own_results(results, used_);
    std::vector<UOp> values;
    for (const Tensor& r : results) values.push_back(r.uop());
    out.results = values.size();
    std::unordered_set<const void*> done;
    for (size_t k = 0; k < used_.size(); ++k) {
      const UOp value = recording.assigned(k);
      if (!value || !done.insert(used_[k].storage_id()).second) continue;
      require_can_change(k, value);
      out.assigned.push_back(k);
      values.push_back(value);
    }
    done.clear();
    for (size_t k = 0; k < used_.size(); ++k) {
      if (!recording.changes_gradient(k) || !done.insert(used_[k].storage_id()).second) continue;
      require_can_change(k, {});
      const UOp value = recording.gradient(k);
      (value ? out.gradients : out.cleared).push_back(k);
      if (value) values.push_back(value);
    }
    out.draws = drawn.draws();
    out.has_state = recording.asks_for_gradients() || !out.assigned.empty() ||
                    !out.gradients.empty() || !out.cleared.empty();
    done.clear();
    for (size_t k = 0; k < used_.size(); ++k) {
      if (!out.has_state) break;
      KOINE_REQUIRE(!computed[k], Value,
                    "a captured function assigns or asks for gradients, and is given a tensor of "
                    "shape {} that is computed from tensors that require some: detach() it",
                    shape_text(used_[k].uop()));
      if (!recording.given_gradient(k) || !done.insert(used_[k].storage_id()).second) continue;
      out.given_gradients.push_back(k);
      out.given.push_back(recording.given_gradient(k));
    }
    return recording.without_leaves(values);
  }

 private:
  // A change of one tensor is seen through no other, but for handles of a surrounding.
  void require_can_change(size_t k, const UOp& value) const {
    const bool argument = k < given_.size();
    const std::string what = fmt::format("{} of shape {}", argument ? "an argument" : "a tensor",
                                         shape_text(all_[k].uop()));
    for (size_t j = 0; j < used_.size(); ++j) {
      const bool same = used_[j].storage_id() == used_[k].storage_id(),
                 shared = all_[j].storage_id() == all_[k].storage_id();
      KOINE_REQUIRE(j == k ? !Tensor::Recording::is_view(all_[k])
                           : (!same && !shared) || (same && shared && !argument &&
                                                    !Tensor::Recording::is_view(all_[j])),
                    Value,
                    "a captured function assigns to {}, which it has under another name or as a "
                    "view too: return the new value, and assign it behind the call",
                    what);
    }
    if (!value) return;
    KOINE_REQUIRE(value.shape() == used_[k].uop().shape() && value.has_concrete_shape(), Value,
                  "a captured function assigns to {}, which has another size in each call", what);
    KOINE_REQUIRE(
        Tensor::Recording::is_leaf(all_[k]) || !Tensor::Recording::reaches_former_leaf(value),
        Value,
        "a captured function assigns to {} what a gradient goes through: detach() the "
        "value, or return it",
        what);
  }

  const Tensors& all_;
  std::span<const size_t> given_;
  Tensors own_, used_;
};

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
UOp closed_over(const Traced& traced, std::span<const UOp> values, size_t described_with,
                const std::vector<std::pair<UOp, size_t>>& named) {
  Substitution outside, inside;
  for (size_t k = described_with; k < values.size(); ++k)
    outside.emplace(values[k], argument_param(static_cast<int64_t>(k), values[k]));
  for (const auto& [name, k] : named)
    outside.emplace(name, argument_param(static_cast<int64_t>(k), values[k]));
  const std::map<int64_t, UOp> params = params_of(traced.body);
  for (size_t k = 0; k < traced.captured.size(); ++k) {
    const UOp value = substitute(traced.captured[k], outside);
    for (const UOp& u : toposort(value))
      KOINE_REQUIRE(!u.is(Op::Buffer) && !u.is(Mark::Leaf) && !u.is(Op::Binary), Value,
                    "a captured function reads a value of shape {} that is neither an argument nor "
                    "among the surroundings: a tensor made elsewhere",
                    shape_text(traced.captured[k]));
    const auto param = params.find(static_cast<int64_t>(described_with + k));
    if (param != params.end()) inside.emplace(param->second, value);
  }
  return substitute(traced.body, inside);
}

// Memory that the function filled itself, while it was described, with numbers of the host.
std::vector<UOp> constants_of(const Traced& traced, const std::vector<UOp>& known, uint64_t began) {
  std::vector<UOp> out;
  for (const UOp& u : toposort(sink(traced.captured)))
    if (u.is(Op::Buffer) && u.id() > began && storage::memory(u) &&
        std::find(known.begin(), known.end(), u) == known.end())
      out.push_back(u);
  return out;
}

// Whether a gradient goes through a value to what it is made of.
bool leads_on(const UOp& value) {
  const NodeList order = toposort(value, [](const UOp& u) {
    return (is_float(u.dtype()) || u.dtype() == DType::Void) && !u.is(Op::Detach);
  });
  return std::any_of(order.begin(), order.end(), [](const UOp& u) { return u.is(Op::Param); });
}

// Some values of a body, as a function of what they need.
struct Part {
  UOp body;                    // a Tuple
  std::vector<size_t> inputs;  // which of the whole body's arguments

  Part() = default;
  Part(const UOp& whole, size_t first, size_t count)
      : body(tuple(whole.src().subspan(first, count))) {
    Substitution renumbered;
    for (const auto& [slot, param] : params_of(body)) {
      renumbered.emplace(param, argument_param(std::ssize(inputs), param));
      inputs.push_back(static_cast<size_t>(slot));
    }
    body = substitute(body, renumbered);
  }

  UOp call(const std::vector<UOp>& values) const {
    std::vector<UOp> arguments;
    for (const size_t k : inputs) arguments.push_back(values[k]);
    return function(body, arguments);
  }
};

}  // namespace

struct CapturedFunction::State {
  // A distinct value that the program may read: what it must be like, and where that is. Behind
  // those of the arguments are gradients that tensors have before a call, then draws, constants.
  struct Input {
    UOp shape;  // with the Variables of dynamic axes
    DType dtype;
    Placement place;
    std::vector<size_t> places;

    bool fits(const UOp& value, const Substitution& sizes) const {
      const Placement& other = value.node()->placement;
      return value.dtype() == dtype && other == place &&
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
  size_t distinct = 0;         // how many these are
  std::vector<Input> inputs;
  std::vector<UOp> constants;  // Buffers
  std::vector<Dynamic> dynamic;
  std::vector<UOp> edges;  // sizes that follow from those of the Variables and may be 0 or 1
  UOp body;                // a Tuple of all values
  Description description;
  std::string state;             // `state_of` the examples
  size_t gradients_in_step = 0;  // those that it leaves are computed in the step, or later
  bool adds_up = false;          // to gradients of before
  Part results, gradients;
  std::vector<Part> sources;  // of what is assigned, where a gradient would lead on; else empty
  CapturedStep step{{}};
  std::vector<std::optional<size_t>> given_back;  // by value of the step: the input that it is

  size_t assigned_at(size_t k) const { return description.results + k; }
  size_t gradients_at() const { return assigned_at(description.assigned.size()); }

  void add_dynamic(const std::vector<DynamicAxis>& axes, const Distinct& examples, size_t given);
  void add_edges();
  void add_inputs(const std::vector<UOp>& known);
  void split();
  Substitution sizes_of(const Distinct& given) const;
  void require_alike(const Distinct& given, const Substitution& sizes) const;
  std::vector<UOp> inputs_of(const Distinct& given, const Tensors& arguments) const;
  void require_state(const Tensors& arguments) const;
  UOp memory_of(size_t k, const std::vector<UOp>& values) const;
  void change(const Tensors& arguments, const std::vector<UOp>& values) const;
  [[noreturn]] void say_what_is_wrong(const std::vector<UOp>& values) const;
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
                number.size(), distinct, given.number.size(), given.values.size());
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
  for (size_t k = 0; k < given.values.size(); ++k)
    KOINE_REQUIRE(inputs[k].fits(given.values[k], sizes), Value,
                  "a captured function was made for {} of other shapes, dtypes or devices: "
                  "argument {} is {} {}",
                  given.values.size(), k, dtype_name(given.values[k].dtype()),
                  shape_text(given.values[k]));
}

// Of what is known beside the arguments.
void CapturedFunction::State::add_inputs(const std::vector<UOp>& known) {
  for (size_t k = inputs.size(); k < known.size(); ++k)
    inputs.push_back({known[k].shape(), known[k].dtype(), known[k].node()->placement, {}});
}

// A gradient of what is assigned has served, mostly. Any other is what the function is for.
void CapturedFunction::State::split() {
  const std::vector<size_t>& assigned = description.assigned;
  const bool served = std::all_of(
      description.gradients.begin(), description.gradients.end(),
      [&](size_t k) { return std::find(assigned.begin(), assigned.end(), k) != assigned.end(); });
  const std::map<int64_t, UOp> read = params_of(body);
  for (size_t k = 0; k < description.given.size(); ++k)
    adds_up = adds_up || read.contains(static_cast<int64_t>(distinct + k));
  gradients_in_step = served && !adds_up ? 0 : description.gradients.size();
  results = Part(body, 0, description.results);
  gradients = Part(body, gradients_at(), description.gradients.size());
  for (size_t k = 0; k < assigned.size(); ++k)
    sources.push_back(leads_on(body.src(assigned_at(k))) ? Part(body, assigned_at(k), 1) : Part());
}

// The values of a call, by input.
std::vector<UOp> CapturedFunction::State::inputs_of(const Distinct& given,
                                                    const Tensors& arguments) const {
  std::vector<UOp> out = given.values;
  for (const size_t k : description.given_gradients) {
    const UOp gradient = Tensor::Recording::gradient_of(arguments[k]);
    out.push_back(inputs[out.size()].places.empty() ? gradient : in_memory(gradient));
  }
  for (const random::Draw& d : description.draws) out.push_back(d.next());
  out.insert(out.end(), constants.begin(), constants.end());
  return out;
}

void CapturedFunction::State::require_state(const Tensors& arguments) const {
  KOINE_REQUIRE(state_of(arguments) == state, Value,
                "a captured function assigns or asks for gradients, and is called with tensors of "
                "which others are views or handles of one, require a gradient or have one");
}

// Where a value of the step lies once it has run.
UOp CapturedFunction::State::memory_of(size_t k, const std::vector<UOp>& values) const {
  return given_back[k] ? in_memory(values[*given_back[k]]) : step.outputs()[k];
}

// What the function assigns and the gradients that it leaves, once the step has run.
void CapturedFunction::State::change(const Tensors& arguments,
                                     const std::vector<UOp>& values) const {
  const Description& d = description;
  const UOp call = d.gradients.empty() ? UOp() : gradients.call(values);
  for (size_t k = 0; k < d.gradients.size(); ++k) {
    UOp gradient = get_tuple(call, static_cast<int64_t>(k));
    if (k < gradients_in_step) {
      const UOp memory = memory_of(gradients_at() + k, values);
      storage::set_result(gradient, memory);
      if (adds_up) {  // what the gradients of before were computed from is not known here
        Tensor::Recording::forget(memory, gradient);
        gradient = memory;
      }
    }
    Tensor::Recording::give_gradient(arguments[d.gradients[k]], gradient);
  }
  for (const size_t k : d.cleared) Tensor::Recording::give_gradient(arguments[k], {});
  for (size_t k = 0; k < d.assigned.size(); ++k) {
    UOp memory = memory_of(assigned_at(k), values);
    if (given_back[assigned_at(k)]) memory = Tensor::Recording::copied(memory);
    Tensor::Recording::give(arguments[d.assigned[k]], memory,
                            sources[k].body ? get_tuple(sources[k].call(values), 0) : UOp());
  }
}

// A run stops where a position is out of range.
void CapturedFunction::State::say_what_is_wrong(const std::vector<UOp>& values) const {
  const UOp call = function(body, values);
  Tensors all;
  for (size_t k = 0; k < gradients_at() + gradients_in_step; ++k)
    all.emplace_back(get_tuple(call, static_cast<int64_t>(k)));
  Tensor::realize(all);
  raise(ErrorKind::Index, "a captured function reads at a position that is out of range");
}

CapturedFunction::CapturedFunction(const transforms::Function& f, const Tensors& examples,
                                   const Tensors& surroundings,
                                   const std::vector<DynamicAxis>& dynamic,
                                   std::source_location where)
    : state_(std::make_unique<State>()) {
  if (is_tracing()) require_no_trace("capturing a function");
  State& s = *state_;
  Tensors all = examples;
  all.insert(all.end(), surroundings.begin(), surroundings.end());
  const Distinct distinct(all);
  s.number = distinct.number;
  s.distinct = distinct.values.size();
  s.state = state_of(all);
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
  const uint64_t began = storage::now();
  const Traced traced = trace_function(
      [&](const std::vector<UOp>& params) {
        return Describing(all, given, params).run(f, s.description);
      },
      arguments, where);
  // Of surroundings what they were named, not what equals their lazy values.
  std::vector<UOp> known = distinct.values, examples_of = distinct.values;
  std::vector<std::pair<UOp, size_t>> named;
  for (size_t k = given.size(); k < all.size(); ++k)
    if (const UOp& name = s.description.named[k]; name && s.number[k] >= described_with)
      if (!(name == distinct.values[s.number[k]])) {
        named.emplace_back(name, s.number[k]);
        known[s.number[k]] = name;
      }
  known.insert(known.end(), s.description.given.begin(), s.description.given.end());
  for (const size_t k : s.description.given_gradients)
    examples_of.push_back(Tensor::Recording::gradient_of(all[k]));
  for (const random::Draw& d : s.description.draws) {
    known.push_back(d.memory);
    examples_of.push_back(d.memory);
  }
  s.constants = constants_of(traced, known, began);
  known.insert(known.end(), s.constants.begin(), s.constants.end());
  examples_of.insert(examples_of.end(), s.constants.begin(), s.constants.end());
  s.add_inputs(known);
  s.body = closed_over(traced, known, described_with, named);
  require_own_sizes(s.body, sizes);
  s.add_edges();
  s.split();
  // Over Buffers that nobody else has: what was computed before from the same memory is no result.
  const std::map<int64_t, UOp> read = params_of(s.body);
  std::vector<UOp> stand_ins;
  for (size_t k = 0; k < known.size(); ++k) {
    const UOp memory =
        read.contains(static_cast<int64_t>(k)) ? in_memory(examples_of[k]) : known[k];
    const Placement& place = memory.node()->placement;
    stand_ins.push_back(new_buffer(s.inputs[k].shape, s.inputs[k].dtype, place.device, place.axes));
    if (memory.is(Op::Buffer) && storage::memory(memory))
      storage::set_memory(stand_ins.back(), storage::memory(memory));
  }
  const UOp call = function(s.body, stand_ins);
  std::vector<UOp> values;
  for (size_t k = 0; k < s.gradients_at() + s.gradients_in_step; ++k)
    values.push_back(get_tuple(call, static_cast<int64_t>(k)));
  s.step = CapturedStep(values, values_of(sizes));
  for (size_t k = 0; k < values.size(); ++k) {
    const auto same = std::find(stand_ins.begin(), stand_ins.end(), s.step.outputs()[k]);
    s.given_back.push_back(same == stand_ins.end()
                               ? std::nullopt
                               : std::optional(static_cast<size_t>(same - stand_ins.begin())));
  }
  for (size_t k = 0; k < stand_ins.size(); ++k) {
    s.inputs[k].places = s.step.places_of(stand_ins[k]);
    storage::set_memory(stand_ins[k], nullptr);  // a call brings its own
  }
}

CapturedFunction::~CapturedFunction() = default;
CapturedFunction::CapturedFunction(CapturedFunction&&) noexcept = default;

Tensors CapturedFunction::operator()(const Tensors& arguments) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const Distinct given(arguments);
  const Substitution sizes = s.sizes_of(given);
  s.require_alike(given, sizes);
  if (s.description.has_state) s.require_state(arguments);
  const std::vector<UOp> values = s.inputs_of(given, arguments);
  // What was assigned is computed once, also where it reads memory of others.
  std::vector<UOp> anew;
  for (const UOp& value : values)
    if (!value.is(Op::Buffer) && reads_borrowed(value)) anew.push_back(value);
  if (!anew.empty()) Tensor::Recording::compute_states(anew);
  for (const auto& [name, size] : values_of(sizes)) s.step.bind(name, size);
  s.step.renew_outputs();
  for (size_t k = 0; k < values.size(); ++k)
    if (!s.inputs[k].places.empty()) {
      const UOp memory = in_memory(values[k]);
      for (const size_t place : s.inputs[k].places) s.step.put(place, memory);
    }
  const bool done = s.step.try_run();
  if (!done) s.say_what_is_wrong(values);
  Tensors out;
  const UOp call = s.results.call(values);
  const bool others = std::any_of(values.begin(), values.end(), reads_memory_of_others);
  for (size_t k = 0; k < s.description.results; ++k) {
    UOp value = get_tuple(call, static_cast<int64_t>(k));
    if (others) value = private_copy(value);  // the next call of these gives another one
    storage::set_result(value, s.memory_of(k, values));
    out.emplace_back(value);
  }
  if (s.description.has_state) s.change(arguments, values);
  return out;
}

bool CapturedFunction::has_state() const { return state_->description.has_state; }
std::string CapturedFunction::state_of(const Tensors& arguments) {
  return Tensor::Recording::state_of(arguments);
}

bool CapturedFunction::serves(const Tensors& arguments) const {
  const State& s = *state_;
  if (s.edges.empty()) return true;
  const Substitution sizes = s.sizes_of(Distinct(arguments));
  return std::all_of(s.edges.begin(), s.edges.end(),
                     [&](const UOp& edge) { return present_value(substitute(edge, sizes)) >= 2; });
}

}  // namespace koine

#include "koine/tensor/transforms.hpp"

#include <algorithm>
#include <map>

#include "koine/base/error.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/text.hpp"
#include "koine/tensor/impl.hpp"
#include "koine/tensor/random.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/custom_rule.hpp"
#include "koine/transform/forward.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/gradient.hpp"

namespace koine::transforms {
namespace {

std::vector<UOp> uops(const Tensors& tensors) {
  std::vector<UOp> out;
  for (const Tensor& t : tensors) out.push_back(t.uop());
  return out;
}
std::vector<UOp> uops_or_null(const Tensors& tensors) {
  std::vector<UOp> out;
  for (const Tensor& t : tensors) out.push_back(t.defined() ? t.uop() : UOp());
  return out;
}
Tensors tensors(std::span<const UOp> values) {
  Tensors out;
  for (const UOp& v : values) out.emplace_back(v);
  return out;
}

// A traced function, and what it is called with.
struct Program {
  std::vector<UOp> results;       // over Params
  std::map<int64_t, UOp> params;  // by slot; those that are read
  std::vector<UOp> arguments;     // by slot: the inputs, what was captured, and what is added
  size_t inputs = 0;
  Substitution stand_ins;  // for the inputs, in what a rule of the user's captured

  UOp param_of(size_t input) const {
    const auto it = params.find(static_cast<int64_t>(input));
    return it == params.end() ? UOp() : it->second;
  }
  // A further argument, as a Param beside another.
  UOp add(const UOp& argument, const UOp& beside) {
    arguments.push_back(argument);
    return argument_param(static_cast<int64_t>(arguments.size()) - 1, argument, beside);
  }
  std::vector<UOp> called(const std::vector<UOp>& values) const {
    std::vector<UOp> all = arguments;
    const std::vector<UOp> closed = close_over(values, stand_ins, all);
    const UOp call = function_of_used(closed, all);
    std::vector<UOp> out;
    for (size_t k = 0; k < values.size(); ++k)
      out.push_back(get_tuple(call, static_cast<int64_t>(k)));
    return out;
  }
};

Program program_of(const Function& f, const std::vector<UOp>& inputs,
                   const std::vector<UOp>& prototypes, Where where) {
  const Traced traced = trace_function(
      [&](const std::vector<UOp>& params) { return uops(f(tensors(params))); }, prototypes, where);
  Program out{{traced.body.src().begin(), traced.body.src().end()},
              params_of(traced.body),
              inputs,
              inputs.size(),
              traced.stand_ins};
  out.arguments.insert(out.arguments.end(), traced.captured.begin(), traced.captured.end());
  return out;
}
Program program_of(const Function& f, const std::vector<UOp>& inputs, Where where) {
  return program_of(f, inputs, inputs, where);
}

void require_moved(std::string_view method, std::string_view what, const Tensors& moved,
                   const std::vector<UOp>& values) {
  KOINE_REQUIRE(moved.size() == values.size(), Value, "{}: {} {} for {} tensors", method,
                moved.size(), what, values.size());
  for (size_t k = 0; k < moved.size(); ++k) {
    if (!is_float(values[k].dtype())) {
      KOINE_REQUIRE(!moved[k].defined() || !is_float(moved[k].dtype()), Type,
                    "{}: tensor {} is {}, which has no derivative, and its {} is {}: cast the "
                    "tensor to a float",
                    method, k, dtype_name(values[k].dtype()), what, dtype_name(moved[k].dtype()));
      continue;
    }
    KOINE_REQUIRE(moved[k].defined() && moved[k].dtype() == values[k].dtype() &&
                      moved[k].uop().shape() == values[k].shape(),
                  Value,
                  "{}: tensor {} is {} of shape {}, and that of the {} is {}: both must be equal",
                  method, k, dtype_name(values[k].dtype()), shape_text(values[k]), what,
                  moved[k].defined() ? fmt::format("{} of shape {}", dtype_name(moved[k].dtype()),
                                                   shape_text(moved[k].uop()))
                                     : "none");
  }
}

// The tangents of a program's results; null: 0.
std::vector<UOp> moved_results(Program& program, const Tensors& directions) {
  const tensor::Called called("jvp");
  std::vector<UOp> inputs, of_inputs;
  for (size_t k = 0; k < program.inputs; ++k) {
    const UOp param = program.param_of(k);
    if (!param || !is_float(param.dtype())) continue;
    inputs.push_back(param);
    of_inputs.push_back(program.add(directions[k].uop(), param));
  }
  std::vector<UOp> out = koine::tangents(program.results, inputs, of_inputs);
  for (size_t k = 0; k < out.size(); ++k)
    if (!out[k]) out[k] = filled_like(program.results[k], 0);
  return out;
}

}  // namespace

// --- many examples -------------------------------------------------------------------------------

MappedAxes each_tensor(const MappedAxes& in, const std::vector<size_t>& tensors) {
  KOINE_REQUIRE(in.one || in.axes.size() == tensors.size(), Value,
                "vmap: in_axes has {} entries, and the function is called with {} arguments",
                in.axes.size(), tensors.size());
  MappedAxes out{};
  for (size_t k = 0; k < tensors.size(); ++k)
    out.axes.insert(out.axes.end(), tensors[k], in.axes[in.one ? 0 : k]);
  return out;
}

NameOf argument_names(std::vector<size_t> tensors) {
  return [tensors = std::move(tensors)](size_t k) {
    size_t argument = 0;
    while (argument < tensors.size() && k >= tensors[argument]) k -= tensors[argument++];
    const bool alone = argument < tensors.size() && tensors[argument] == 1;
    return alone ? fmt::format("argument {}", argument)
                 : fmt::format("tensor {} of argument {}", k, argument);
  };
}

namespace {

int64_t axis_within(const NameOf& name, size_t k, int64_t axis, const UOp& value) {
  const auto n = static_cast<int64_t>(value.rank());
  KOINE_REQUIRE(n > 0, Index,
                "vmap: {} of shape () has no axis {}: it is a scalar; give none for what is equal "
                "in all examples",
                name(k), axis);
  KOINE_REQUIRE(
      axis >= -n && axis < n, Index,
      "vmap: {} of shape {} has no axis {}: use {} to {}, or none for what is equal in all "
      "examples",
      name(k), shape_text(value), axis, -n, n - 1);
  return axis < 0 ? axis + n : axis;
}

// How many examples there are.
UOp number_of(const std::vector<UOp>& values, const std::vector<std::optional<int64_t>>& axes,
              const NameOf& name) {
  UOp size;
  bool differ = false;
  const auto own = [&](size_t k) { return values[k].dim(static_cast<size_t>(*axes[k])); };
  for (size_t k = 0; k < values.size(); ++k) {
    if (!axes[k]) continue;
    differ = differ || (size && !(size == own(k)));
    size = own(k);
  }
  KOINE_REQUIRE(size, Value, "vmap: no argument has examples: give one of them an axis in in_axes");
  if (!differ) return size;
  std::string all;
  for (size_t k = 0; k < values.size(); ++k)
    if (axes[k])
      all += fmt::format("{}{} of shape {} has {} along axis {}", all.empty() ? "" : ", ", name(k),
                         shape_text(values[k]), dim_text(own(k)), *axes[k]);
  raise(ErrorKind::Value,
        "vmap: the numbers of examples differ: {}: in_axes says which axes count the examples, "
        "and none is for what is equal in all",
        all);
}

// What stands for one example: the value without the axis.
UOp prototype_of(const UOp& value, std::optional<int64_t> axis) {
  if (!axis) return value;
  std::vector<UOp> dims;
  for (size_t k = 0; k < value.rank(); ++k)
    if (static_cast<int64_t>(k) != *axis) dims.push_back(value.dim(k));
  const AxisSet split = value.node()->placement.axes.moved([&](size_t k) {
    const auto own = static_cast<int64_t>(k);
    return own == *axis ? -1 : own > *axis ? own - 1 : own;
  });
  return new_buffer(stack(dims), value.dtype(), value.device(), split);
}

}  // namespace

Tensors over_examples(const Function& f, const Tensors& given, const Examples& told, Where where) {
  const NameOf result_name =
      told.result_name ? told.result_name : [](size_t k) { return fmt::format("result {}", k); };
  std::vector<UOp> inputs = uops(given), prototypes;
  std::vector<std::optional<int64_t>> axes = told.in.axes;
  for (size_t k = 0; k < inputs.size(); ++k)
    if (axes[k]) axes[k] = axis_within(told.input_name, k, *axes[k], inputs[k]);
  const UOp examples = number_of(inputs, axes, told.input_name);
  for (size_t k = 0; k < inputs.size(); ++k) {
    prototypes.push_back(prototype_of(inputs[k], axes[k]));
    if (axes[k]) inputs[k] = moved_axis(inputs[k], static_cast<size_t>(*axes[k]), 0);
  }
  // The last input is the number of the example, which random draws follow from.
  inputs.push_back(iota(examples, DType::UInt64));
  axes.emplace_back(0);
  prototypes.push_back(prototype_of(inputs.back(), 0));
  const Function numbered = [&](const Tensors& all) {
    const random::ExampleScope scope(all.back().uop());
    return f(Tensors(all.begin(), all.end() - 1));
  };
  Program program = program_of(numbered, inputs, prototypes, where);
  const MappedAxes out = told.out();
  std::vector<UOp> single, of_all;
  for (const auto& [slot, param] : program.params) {
    const auto k = static_cast<size_t>(slot);
    if (k >= inputs.size() || !axes[k]) continue;
    single.push_back(param);
    of_all.push_back(argument_param(slot, inputs[k], param));
  }
  const tensor::Called called("vmap");
  const std::vector<UOp> made = batched(program.results, single, of_all, examples);
  std::vector<UOp> values;
  for (size_t k = 0; k < made.size(); ++k)
    values.push_back(made[k] ? made[k] : without_examples(program.results[k], single));
  KOINE_REQUIRE(out.one || out.axes.size() == made.size(), Value,
                "vmap: out_axes has {} entries, and the function gives {} tensors", out.axes.size(),
                made.size());
  std::vector<UOp> results = program.called(values);
  for (size_t k = 0; k < results.size(); ++k) {
    const std::optional<int64_t> axis = out.axes[out.one ? 0 : k];
    if (!axis) {
      KOINE_REQUIRE(!made[k], Value,
                    "vmap: {} of shape {} is different in each example, and out_axes has no axis "
                    "for them",
                    result_name(k), shape_text(program.results[k]));
      continue;
    }
    if (!made[k]) results[k] = for_each_example(results[k], examples);
    const int64_t to = axis_within(result_name, k, *axis, results[k]);
    results[k] = moved_axis(results[k], 0, static_cast<size_t>(to));
  }
  return tensors(results);
}

// --- derivatives ---------------------------------------------------------------------------------

std::pair<Tensors, Tensors> forward(const Function& f, const Tensors& inputs,
                                    const Tensors& tangents, Where where) {
  Program program = program_of(f, uops(inputs), where);
  require_moved("jvp", "tangent", tangents, uops(inputs));
  std::vector<UOp> values = program.results;
  const size_t count = values.size();
  for (const UOp& t : moved_results(program, tangents)) values.push_back(t);
  const Tensors all = tensors(program.called(values));
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(count);
  return {Tensors(all.begin(), middle), Tensors(middle, all.end())};
}

std::pair<Tensors, Function> linear(const Function& f, const Tensors& inputs, Where where) {
  const Program program = program_of(f, uops(inputs), where);
  auto map = [program, values = uops(inputs)](const Tensors& directions) {
    require_moved("linearize", "tangent", directions, values);
    Program own = program;
    const std::vector<UOp> moved = moved_results(own, directions);
    return tensors(own.called(moved));
  };
  return {tensors(program.called(program.results)), map};
}

namespace {

// Gradients of weighted results by inputs; 0 where there is none.
std::vector<UOp> gradients_by(const Program& program, const std::vector<UOp>& outputs,
                              const std::vector<UOp>& seeds, const std::vector<size_t>& by) {
  std::vector<UOp> targets;
  for (const size_t k : by)
    if (const UOp param = program.param_of(k); param && is_float(param.dtype()))
      targets.push_back(param);
  const tensor::Called called("grad");
  const std::vector<UOp> found =
      outputs.empty() ? std::vector<UOp>(targets.size()) : gradient(outputs, seeds, targets);
  std::vector<UOp> out;
  size_t next = 0;
  for (const size_t k : by) {
    const UOp param = program.param_of(k);
    const UOp own = param && is_float(param.dtype()) ? found[next++] : UOp();
    out.push_back(own ? own
                      : filled_like(param ? param : argument_param(0, program.arguments[k]), 0));
  }
  return out;
}

std::vector<size_t> all_of(size_t count) {
  std::vector<size_t> out;
  for (size_t k = 0; k < count; ++k) out.push_back(k);
  return out;
}

}  // namespace

std::pair<Tensors, Function> reverse(const Function& f, const Tensors& inputs, Where where) {
  const Program program = program_of(f, uops(inputs), where);
  auto map = [program](const Tensors& cotangents) {
    require_moved("vjp", "cotangent", cotangents, program.results);
    Program own = program;
    std::vector<UOp> outputs, seeds;
    for (size_t k = 0; k < own.results.size(); ++k) {
      if (!is_float(own.results[k].dtype())) continue;
      outputs.push_back(own.results[k]);
      seeds.push_back(own.add(cotangents[k].uop(), own.results[k]));
    }
    const std::vector<UOp> found = gradients_by(own, outputs, seeds, all_of(own.inputs));
    return tensors(own.called(found));
  };
  return {tensors(program.called(program.results)), map};
}

std::pair<Tensors, Tensors> value_and_gradients(const Function& f, const Tensors& inputs,
                                                const std::vector<size_t>& by,
                                                std::string_view method, Where where) {
  const Program program = program_of(f, uops(inputs), where);
  KOINE_REQUIRE(!program.results.empty(), Value, "{}: the function gives no tensor", method);
  const UOp& value = program.results[0];
  KOINE_REQUIRE(value.is_scalar() && is_float(value.dtype()), Value,
                "{}: the function gives {} of shape {}, and only a float scalar has a gradient: "
                "sum it, or take vjp() with a cotangent of that shape, or jacrev()",
                method, dtype_name(value.dtype()), shape_text(value));
  for (const size_t k : by)
    KOINE_REQUIRE(is_float(inputs[k].dtype()), Type,
                  "{}: tensor {} of the arguments is {} of shape {}, and only floats have "
                  "gradients: cast it, or name other arguments",
                  method, k, dtype_name(inputs[k].dtype()), shape_text(inputs[k].uop()));
  std::vector<UOp> values = program.results;
  for (const UOp& g : gradients_by(program, {value}, {like(value, 1)}, by)) values.push_back(g);
  const Tensors all = tensors(program.called(values));
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(program.results.size());
  return {Tensors(all.begin(), middle), Tensors(middle, all.end())};
}

Tensor jacobian(const Function& f, const Tensors& inputs, bool is_forward, Where where) {
  const std::string_view method = is_forward ? "jacfwd" : "jacrev";
  KOINE_REQUIRE(!inputs.empty() && is_float(inputs[0].dtype()), Type,
                "{}: the first argument must be a float tensor", method);
  const Function by_first = [&](const Tensors& first) {
    Tensors all = inputs;
    all[0] = first[0];
    Tensors out = f(all);
    KOINE_REQUIRE(out.size() == 1 && is_float(out[0].dtype()), Type,
                  "{}: the function must give one float tensor", method);
    return out;
  };
  const Tensor& x = inputs[0];
  const Tensors first{x};
  // One unit vector an example.
  auto units = [](const Tensor& like) {
    const int64_t n = like.numel();
    Shape shape = like.shape();
    shape.insert(shape.begin(), n);
    return Tensor::eye(n, like.dtype()).reshape(shape);
  };
  const auto of_each_unit = [&](const Function& map, const Tensor& of, int axis) {
    const Examples units_of{MappedAxes{0}, [&] { return MappedAxes(axis); }, argument_names({1})};
    return over_examples(map, {units(of)}, units_of, where)[0];
  };
  Shape shape = x.shape();
  if (is_forward) {
    // Traced once: random draws are the same for all columns.
    const Tensor columns = of_each_unit(linear(by_first, first, where).second, x, -1);
    Shape out = columns.shape();
    out.pop_back();
    out.insert(out.end(), shape.begin(), shape.end());
    return columns.reshape(out);
  }
  const auto [values, pullback] = reverse(by_first, first, where);
  const Tensor rows = of_each_unit(pullback, values[0], 0);
  Shape out = values[0].shape();
  out.insert(out.end(), shape.begin(), shape.end());
  return rows.reshape(out);
}

// --- rules of the user's -------------------------------------------------------------------------

namespace {

// A rule over tensors as one over nodes.
template <class Call>
auto over_nodes(std::function<Tensors(const Call&)> rule) {
  return [rule = std::move(rule)](const CustomRule::Given& given) {
    return uops_or_null(
        rule({tensors(given.arguments), tensors(given.results), tensors(given.moved)}));
  };
}

// Whether no gradient is asked for through a value, however it is looked at.
bool is_detached(UOp value) {
  while (is_movement(value.op())) value = value.src(0);
  return value.is(Op::Detach) && !value.is(Mark::Leaf);
}

}  // namespace

std::string known_vjp(const std::string& name, std::function<Tensors(const CallGradient&)> rule) {
  KOINE_REQUIRE(rule, Value, "custom_vjp: '{}' is given no rule", name);
  return register_custom_rule(name, {.vjp = over_nodes(std::move(rule)), .jvp = {}});
}

std::string known_jvp(const std::string& name, std::function<Tensors(const CallTangent&)> rule) {
  KOINE_REQUIRE(rule, Value, "custom_jvp: '{}' is given no rule", name);
  return register_custom_rule(name, {.vjp = {}, .jvp = over_nodes(std::move(rule))});
}

void let_go(const std::string& rule) { let_go_custom_rule(rule); }

Tensors with_rule(const std::string& rule, const Function& f, const Tensors& inputs, Where where) {
  const Program program = program_of(f, uops(inputs), where);
  for (size_t k = program.inputs; k < program.arguments.size(); ++k)
    KOINE_REQUIRE(!is_float(program.arguments[k].dtype()) || is_detached(program.arguments[k]),
                  Value,
                  "'{}': the function uses a tensor of shape {} that is none of its arguments, so "
                  "its rule gives it no gradient: make it an argument, or detach() it there",
                  rule.substr(0, rule.rfind(' ')), shape_text(program.arguments[k]));
  const UOp body = tuple(program.results);
  const bool captures = program.arguments.size() > program.inputs;
  const std::string own = captures ? register_rule_of_first(rule, program.inputs) : rule;
  const UOp call = custom_function(body, program.arguments, own);
  if (captures) let_go(own);
  Tensors out;
  for (size_t k = 0; k < program.results.size(); ++k)
    out.emplace_back(get_tuple(call, static_cast<int64_t>(k)));
  return out;
}

// --- computed again ------------------------------------------------------------------------------

Tensors computed_again(const Keep& keep, const Function& f, const Tensors& inputs, Where where) {
  const UOp call =
      make_function([&](const std::vector<UOp>& params) { return uops(f(tensors(params))); },
                    uops(inputs), Resolve::Substitute, where);
  const UOp made =
      keep.all() ? call
                 : function(call.src(0), call.src().subspan(1), Arg(checkpoint_kind(keep.kept())));
  Tensors out;
  for (size_t k = 0; k < call.src(0).src().size(); ++k)
    out.emplace_back(get_tuple(made, static_cast<int64_t>(k)));
  return out;
}

}  // namespace koine::transforms

namespace koine {

namespace {

Kept kept_by_name(Kept::Named named, std::vector<std::string> names) {
  Kept out;
  out.named = named;
  out.names = std::move(names);
  (void)checkpoint_kind(out);  // refuses what is no name
  return out;
}

// The names that are in `a`, and in `b` too or not.
std::vector<std::string> names_of(const Kept& a, const Kept& b, bool in_both) {
  std::vector<std::string> out;
  for (const std::string& name : a.names)
    if ((std::find(b.names.begin(), b.names.end(), name) != b.names.end()) == in_both)
      out.push_back(name);
  return out;
}

// What one of two keeps; `a` keeps more kinds of values by name than `b`.
Kept either(const Kept& a, const Kept& b) {
  Kept out = a;
  out.products = std::max(a.products, b.products);
  if (a.named == Kept::Named::These)
    out.names.insert(out.names.end(), b.names.begin(), b.names.end());
  else
    out.names = names_of(a, b, b.named != Kept::Named::These);
  return out;
}

}  // namespace

Keep Keep::names(std::vector<std::string> names) {
  Keep out;
  out.kept_ = kept_by_name(Kept::Named::These, std::move(names));
  return out;
}
Keep Keep::other_names(std::vector<std::string> names) {
  Keep out;
  out.kept_ = kept_by_name(Kept::Named::Others, std::move(names));
  return out;
}
Keep Keep::all_but(std::vector<std::string> names) {
  Keep out;
  out.kept_ = kept_by_name(Kept::Named::AllButThese, std::move(names));
  return out;
}
Keep Keep::products() {
  Keep out;
  out.kept_.products = Kept::Products::All;
  return out;
}
Keep Keep::unbatched_products() {
  Keep out;
  out.kept_.products = Kept::Products::Unbatched;
  return out;
}
Keep Keep::everything() {
  Keep out;
  out.all_ = true;
  return out;
}
Keep Keep::operator|(const Keep& other) const {
  Keep out;
  out.all_ = all_ || other.all_;
  out.kept_ =
      kept_.named < other.kept_.named ? either(other.kept_, kept_) : either(kept_, other.kept_);
  return out;
}

Tensor save_as(const std::string& name, const Tensor& value) {
  return Tensor(named_value(value.uop(), name));
}

}  // namespace koine

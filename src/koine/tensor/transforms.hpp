#pragma once
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "koine/tensor/custom.hpp"
#include "koine/tensor/function.hpp"
#include "koine/transform/checkpoint.hpp"

// Functions of tensors from functions of tensors: many examples at once, derivatives in both
// directions. Each calls the function once, on placeholders, and puts what it makes into the graph
// as one Function, so they compose in any order. Arguments and results are what `koine::function`
// takes: tensors, and what holds some.
namespace koine {

/// Which axes of arguments or results count the examples: one for all, or one each; none: equal in
/// all examples. Negative axes count from the end.
struct MappedAxes {
  MappedAxes(int axis) : axes{axis}, one(true) {}  // NOLINT
  MappedAxes(std::initializer_list<std::optional<int64_t>> each) : axes(each) {}
  MappedAxes(std::vector<std::optional<int64_t>> each) : axes(std::move(each)) {}  // NOLINT
  std::vector<std::optional<int64_t>> axes;
  bool one = false;
};

/// What a rule of forward mode is made of; `tangents` are those of its arguments.
struct CallTangent {
  std::vector<Tensor> arguments, results, tangents;
};

/// What a checkpointed function keeps for its gradient beside its arguments; the rest is computed
/// again. What several say is joined by `|`.
class Keep {
 public:
  /// Its arguments alone.
  static Keep nothing() { return {}; }
  /// The values that `save_as` gives these names.
  static Keep names(std::vector<std::string> names);
  /// Sums of products: results of matmul, linear, conv2d and einsum.
  static Keep products();
  /// Those of them without an axis along which both factors differ: x @ w of one w for all rows.
  static Keep unbatched_products();
  /// The values of other names than these.
  static Keep other_names(std::vector<std::string> names);
  /// All values but those of these names.
  static Keep all_but(std::vector<std::string> names);
  /// What is kept without a checkpoint.
  static Keep everything();
  /// What one of them keeps.
  Keep operator|(const Keep& other) const;

  bool all() const { return all_; }
  const Kept& kept() const { return kept_; }

 private:
  bool all_ = false;
  Kept kept_;
};

/// What the templates below are made of: functions of flat lists of tensors.
namespace transforms {

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensors(const Tensors&)>;
using Where = std::source_location;

/// What messages call the k-th tensor of a list.
using NameOf = std::function<std::string(size_t)>;
/// "argument 1", or "tensor 2 of argument 1" where it holds several: arguments hold `tensors` each.
NameOf argument_names(std::vector<size_t> tensors);

/// What vmap is told beside its function and inputs. `in` has an entry for each of the inputs;
/// `out` is asked once the function has run.
struct Examples {
  MappedAxes in;
  std::function<MappedAxes()> out;
  NameOf input_name, result_name = {};  // none: "result k"
};
Tensors over_examples(const Function& f, const Tensors& inputs, const Examples& examples,
                      Where where);
/// One entry a tensor from one an argument, which hold `tensors` each.
MappedAxes each_tensor(const MappedAxes& in, const std::vector<size_t>& tensors);
/// The results, and their tangents.
std::pair<Tensors, Tensors> forward(const Function& f, const Tensors& inputs,
                                    const Tensors& tangents, Where where);
/// The results, and what gives the cotangents of the inputs for those of the results.
std::pair<Tensors, Function> reverse(const Function& f, const Tensors& inputs, Where where);
/// The results, and what gives their tangents for those of the inputs.
std::pair<Tensors, Function> linear(const Function& f, const Tensors& inputs, Where where);
/// The results, of which the first is a scalar, and its gradients by inputs `by`.
std::pair<Tensors, Tensors> value_and_gradients(const Function& f, const Tensors& inputs,
                                                const std::vector<size_t>& by,
                                                std::string_view method, Where where);
/// The Jacobian of the only result by input 0: the result's axes, then the input's.
Tensor jacobian(const Function& f, const Tensors& inputs, bool is_forward, Where where);

/// Makes a rule known until `let_go` says that it makes no more functions, and the last of them is
/// gone; the name that these carry.
std::string known_vjp(const std::string& name, std::function<Tensors(const CallGradient&)> rule);
std::string known_jvp(const std::string& name, std::function<Tensors(const CallTangent&)> rule);
void let_go(const std::string& rule);
/// f as a Function whose derivative is the rule of that name.
Tensors with_rule(const std::string& rule, const Function& f, const Tensors& inputs, Where where);

/// f as a Function that reverse mode computes again.
Tensors computed_again(const Keep& keep, const Function& f, const Tensors& inputs, Where where);

/// The tensors that a value holds.
template <class T>
Tensors listed(T& value) {
  Tensors out;
  for_each_tensor(value, [&](Tensor& t) { out.push_back(t); });
  return out;
}
/// The value with other tensors.
template <class T>
T filled(T value, const Tensors& tensors) {
  size_t k = 0;
  for_each_tensor(value, [&](Tensor& t) { t = tensors[k++]; });
  return value;
}

/// A call of a function on what holds tensors, as one on a list of them. It is a type of what goes
/// in and out alone: functions alike in that share its code, as a program may have hundreds.
template <class R, class... Arguments>
class FlatCall {
 public:
  using Result = R;

  // The guide below says what it is of, whatever the function is.
  explicit FlatCall(std::type_identity_t<std::function<Result(Arguments&...)>> f,
                    const Arguments&... arguments)
      : f_(std::move(f)), arguments_(arguments...) {}

  Tensors inputs() { return listed(arguments_); }
  /// How many tensors each argument holds.
  std::vector<size_t> counts() {
    std::vector<size_t> out;
    std::apply([&](auto&... a) { (out.push_back(listed(a).size()), ...); }, arguments_);
    return out;
  }
  Function function() {
    return [this](const Tensors& tensors) {
      auto copies = filled(arguments_, tensors);
      result_.emplace(std::apply(f_, copies));
      return listed(*result_);
    };
  }
  /// The result in the structure of the function's, of other tensors.
  Result result(const Tensors& tensors) const { return filled(*result_, tensors); }
  /// The k-th argument with other tensors.
  template <size_t k>
  auto argument(const Tensors& tensors) const {
    return filled(std::get<k>(arguments_), tensors);
  }

 private:
  std::function<Result(Arguments&...)> f_;
  std::tuple<Arguments...> arguments_;
  std::optional<Result> result_;
};
template <class F, class... Arguments>
FlatCall(F, const Arguments&...)
    -> FlatCall<std::remove_cvref_t<std::invoke_result_t<F&, Arguments&...>>, Arguments...>;
template <class F, class... Arguments>
using CallOf = decltype(FlatCall(std::declval<F>(), std::declval<const Arguments&>()...));

/// The tensors of arguments `I...`, by their positions among all.
template <size_t... I>
std::vector<size_t> positions(const std::vector<size_t>& counts) {
  std::vector<size_t> out;
  auto add = [&](size_t argument) {
    size_t first = 0;
    for (size_t k = 0; k < argument; ++k) first += counts[k];
    for (size_t k = 0; k < counts[argument]; ++k) out.push_back(first + k);
  };
  (add(I), ...);
  return out;
}

/// Gradients of arguments `I...`, each in the structure of its argument; of one alone that.
template <size_t... I, class Call>
auto in_structure(const Call& call, const std::vector<size_t>& counts, const Tensors& gradients) {
  size_t next = 0;
  auto take = [&](size_t argument) {
    const auto from = gradients.begin() + static_cast<std::ptrdiff_t>(next);
    next += counts[argument];
    return Tensors(from, from + static_cast<std::ptrdiff_t>(counts[argument]));
  };
  if constexpr (sizeof...(I) == 1)
    return call.template argument<I...>(take(I...));
  else
    return std::tuple{call.template argument<I>(take(I))...};
}

}  // namespace transforms

/// f for many examples at once: `vmap(f)(xs)` is f of each xs[i], stacked, in one program.
///
///     auto distances = vmap([](const Tensor& a, const Tensor& b) { return (a - b).norm(); },
///                           {0, std::nullopt});  // rows of a, all of b
///
/// `in_axes`: for each argument the axis along which its tensors hold the examples. `out_axes`: for
/// each tensor of the result where the examples go; a result that is equal in all of them is
/// repeated. Throws Error (Value) where no argument has examples, or their numbers differ; (Type)
/// where f's shapes would depend on the values of an example. Randomness inside of f is different
/// in each example.
template <class F>
auto vmap(F f, MappedAxes in_axes = 0, MappedAxes out_axes = 0,
          std::source_location where = std::source_location::current()) {
  return [=](const auto&... arguments) {
    transforms::FlatCall call(f, arguments...);
    const std::vector<size_t> counts = call.counts();
    const transforms::Examples examples{transforms::each_tensor(in_axes, counts),
                                        [&] { return out_axes; },
                                        transforms::argument_names(counts)};
    return call.result(transforms::over_examples(call.function(), call.inputs(), examples, where));
  };
}

/// f's result, and its tangent: how it changes where the arguments change by their tangents, which
/// have their structure. Several arguments come as tuples. What is no float has no tangent: its
/// tensors among the tangents do not count.
template <class F, class... Arguments>
auto jvp(F f, const std::tuple<Arguments...>& primals, const std::tuple<Arguments...>& tangents,
         std::source_location where = std::source_location::current()) {
  auto call = std::apply([&](auto&... a) { return transforms::FlatCall(f, a...); }, primals);
  auto directions = tangents;
  auto [values, moved] =
      transforms::forward(call.function(), call.inputs(), transforms::listed(directions), where);
  return std::pair{call.result(values), call.result(moved)};
}
template <class F, class Argument>
auto jvp(F f, const Argument& primal, const Argument& tangent,
         std::source_location where = std::source_location::current()) {
  return jvp(f, std::tuple<Argument>(primal), std::tuple<Argument>(tangent), where);
}

/// f's result, and its derivative as a linear function: of tangents of the arguments, the tangent
/// of the result.
template <class F, class... Arguments>
auto linearize(F f, const Arguments&... arguments) {
  auto call = std::make_shared<transforms::CallOf<F, Arguments...>>(f, arguments...);
  auto [values, map] = transforms::linear(call->function(), call->inputs(), {});
  auto derivative = [call, map = map](const Arguments&... tangents) {
    auto given = std::make_tuple(tangents...);
    return call->result(map(transforms::listed(given)));
  };
  return std::pair{call->result(values), derivative};
}

/// f's result, and its pullback: of a cotangent of the result, those of the arguments, as a tuple;
/// of one argument, that.
template <class F, class... Arguments>
auto vjp(F f, const Arguments&... arguments) {
  auto call = std::make_shared<transforms::CallOf<F, Arguments...>>(f, arguments...);
  auto [values, map] = transforms::reverse(call->function(), call->inputs(), {});
  using Result = typename transforms::CallOf<F, Arguments...>::Result;
  auto pullback = [call, map = map](Result cotangent) {
    const transforms::Tensors found = map(transforms::listed(cotangent));
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return transforms::in_structure<I...>(*call, call->counts(), found);
    }(std::index_sequence_for<Arguments...>{});
  };
  return std::pair{call->result(values), pullback};
}

/// f's result and the gradients of its first tensor, a scalar, by arguments `I...`, by the first
/// where none is named: in the structure of the argument, as a tuple of several. What else f
/// returns comes back beside it.
template <size_t... I, class F>
auto value_and_grad(F f, std::source_location where = std::source_location::current()) {
  return [=](const auto&... arguments) {
    transforms::FlatCall call(f, arguments...);
    const std::vector<size_t> counts = call.counts();
    auto run = [&]<size_t... J>(std::index_sequence<J...>) {
      auto [values, gradients] = transforms::value_and_gradients(
          call.function(), call.inputs(), transforms::positions<J...>(counts), "grad", where);
      return std::pair{call.result(values),
                       transforms::in_structure<J...>(call, counts, gradients)};
    };
    if constexpr (sizeof...(I) == 0)
      return run(std::index_sequence<0>{});
    else
      return run(std::index_sequence<I...>{});
  };
}
template <size_t... I, class F>
auto grad(F f, std::source_location where = std::source_location::current()) {
  return
      [=](const auto&... arguments) { return value_and_grad<I...>(f, where)(arguments...).second; };
}

/// The derivative of f's result, a tensor, by its first argument, a tensor: the axes of the result,
/// then those of the argument. Forward mode costs f once for each element of the argument, reverse
/// mode once for each element of the result.
template <class F>
auto jacfwd(F f, std::source_location where = std::source_location::current()) {
  return [=](const auto&... arguments) {
    transforms::FlatCall call(f, arguments...);
    return transforms::jacobian(call.function(), call.inputs(), true, where);
  };
}
template <class F>
auto jacrev(F f, std::source_location where = std::source_location::current()) {
  return [=](const auto&... arguments) {
    transforms::FlatCall call(f, arguments...);
    return transforms::jacobian(call.function(), call.inputs(), false, where);
  };
}
/// The second derivatives of a scalar function of one tensor.
template <class F>
auto hessian(F f, std::source_location where = std::source_location::current()) {
  return jacfwd(grad(f, where), where);
}
/// The product of the Hessian with a vector, without the Hessian: the tangent of the gradient.
template <class F>
Tensor hvp(F f, const Tensor& x, const Tensor& vector,
           std::source_location where = std::source_location::current()) {
  return jvp(grad(f, where), x, vector, where).second;
}

/// f with a gradient of its own: `rule` gives a cotangent for each tensor of the arguments, in its
/// dtype and shape, or Tensor() for none. Forward mode follows from it, where it is linear in
/// `gradients`.
///
///     auto root = custom_vjp("root", [](const Tensor& x) { return x.sqrt(); },
///         [](const CallGradient& c) -> std::vector<Tensor> {
///           return {c.gradients[0] / (2 * c.results[0])};
///         });
///
/// Throws Error (Value) where f uses tensors that are none of its arguments and have a gradient.
template <class F>
auto custom_vjp(const std::string& name, F f,
                std::function<std::vector<Tensor>(const CallGradient&)> rule,
                std::source_location where = std::source_location::current()) {
  return
      [f, where, known = transforms::known_vjp(name, std::move(rule))](const auto&... arguments) {
        transforms::FlatCall call(f, arguments...);
        return call.result(transforms::with_rule(known, call.function(), call.inputs(), where));
      };
}
/// The same with a rule for forward mode, which gives a tangent for each tensor of the result;
/// reverse mode follows from it, where it is linear in `tangents`.
template <class F>
auto custom_jvp(const std::string& name, F f,
                std::function<std::vector<Tensor>(const CallTangent&)> rule,
                std::source_location where = std::source_location::current()) {
  return
      [f, where, known = transforms::known_jvp(name, std::move(rule))](const auto&... arguments) {
        transforms::FlatCall call(f, arguments...);
        return call.result(transforms::with_rule(known, call.function(), call.inputs(), where));
      };
}

/// f, which its gradient computes again from its arguments instead of keeping what it computed: a
/// program holds less at a time, for one more forward computation. Values are the same, random
/// numbers too. The second computation begins when the gradient comes by.
///
///     Tensor y = x;
///     for (const Block& block : blocks) y = checkpoint(block)(y);
///
/// What f uses from outside counts as arguments. `keep` says what is not computed again;
/// checkpoints in f have their own.
template <class F>
auto checkpoint(F f, Keep keep = {}, std::source_location where = std::source_location::current()) {
  return [=](const auto&... arguments) {
    transforms::FlatCall call(f, arguments...);
    return call.result(transforms::computed_again(keep, call.function(), call.inputs(), where));
  };
}
/// The value, which `checkpoint(f, Keep::names({name}))` keeps. Throws Error (Value) for a name
/// that is empty or holds a comma.
Tensor save_as(const std::string& name, const Tensor& value);

/// The value, as a constant to all derivatives.
inline Tensor stop_gradient(const Tensor& x) { return x.detach(); }

}  // namespace koine

#pragma once
#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "koine/tensor/transforms.hpp"

// Loops and branches whose number of steps, or whose branch, is known when they run (amendment
// C43). The function of a step is called once, on placeholders, and compiled once, however often it
// runs: nothing is unrolled. Carries, rows and results are what `koine::function` takes: tensors,
// and what holds some. What a step uses from outside is captured. Random draws of the global stream
// are different in each step.
namespace koine {

/// How scan() goes over its rows.
struct ScanOptions {
  std::optional<Size> length = {};  ///< where there are no rows
  bool reversed = false;            ///< from the last row to the first
};

/// What the templates below are made of.
namespace loops {

using transforms::Function;
using transforms::Tensors;
using transforms::Where;

/// What messages call the parts of a call, which have other names in Python.
struct Words {
  std::string length = "options.length", condition = "the condition";
  std::string if_true = "on_true", if_false = "on_false";
  transforms::NameOf carry = numbered("tensor {} of the carry");
  transforms::NameOf row = numbered("tensor {} of the rows"), result = numbered("tensor {}");

  static transforms::NameOf numbered(const char* name);
};

/// The last carries, then what the steps collect, each stacked. `step` gives carries and what it
/// adds from carries and a row of each of `rows`.
Tensors scan(const Function& step, const Tensors& init, const Tensors& rows,
             const ScanOptions& options, Where where, const Words& words = {},
             std::string_view method = "scan");
/// The last carries of `step`, which is given the number of the step and the carries.
Tensors fori(const Size& lower, const Size& upper, const Function& step, const Tensors& init,
             Where where, const Words& words = {});
/// The same, from and to numbers that are computed: as repeat() does.
Tensors fori(const Tensor& lower, const Tensor& upper, const Function& step, const Tensors& init,
             Where where, const Words& words = {});
Tensors repeat(const Function& condition, const Function& step, const Tensors& init, Where where,
               const Words& words = {}, std::string_view method = "while_loop");
Tensors branch(std::string_view method, const Tensor& which, const std::vector<Function>& branches,
               const Tensors& arguments, Where where, const Words& words = {});
/// The number of a branch: 1 where the condition holds.
Tensor number_of(const Tensor& condition, const Words& words = {});

}  // namespace loops

/// One step for each row, with a carry: `step(carry, row)` gives the next carry and what the step
/// adds to the results; row k is element k along axis 0 of each tensor of `rows`. Gives the last
/// carry and these, stacked along a new axis 0.
///
///     auto [last, all] = scan([](const Tensor& sum, const Tensor& x) {
///       const Tensor next = sum + x;
///       return std::pair(next, next);
///     }, Tensor::zeros({}), xs);
///
/// Differentiable in both directions: the way back keeps the carries and the results of products
/// and other folds of each step. Throws Error (Value) where rows have different lengths, or the
/// carry that a step gives has another shape or dtype than the first.
template <class F, class Carry, class Rows>
auto scan(F step, const Carry& init, const Rows& rows, ScanOptions options = {},
          std::source_location where = std::source_location::current()) {
  transforms::FlatCall call(step, init, rows);
  Carry first = init;
  Rows all = rows;
  return call.result(loops::scan(call.function(), transforms::listed(first),
                                 transforms::listed(all), options, where));
}

/// The carry behind `step(i, carry)` for each i from `lower` below `upper`; i is an int32 of shape
/// (), int64 where int32 cannot hold it. As scan() in all else.
template <class F, class Carry>
Carry fori_loop(const Size& lower, const Size& upper, F step, const Carry& init,
                std::source_location where = std::source_location::current()) {
  transforms::FlatCall call(step, Tensor(0), init);
  Carry first = init;
  return call.result(loops::fori(lower, upper, call.function(), transforms::listed(first), where));
}

/// The same, from or to a number that is computed, an integer of shape (): a while_loop(), which
/// has no reverse mode.
template <class Lower, class Upper, class F, class Carry>
  requires(std::same_as<Lower, Tensor> || std::same_as<Upper, Tensor>)
Carry fori_loop(const Lower& lower, const Upper& upper, F step, const Carry& init,
                std::source_location where = std::source_location::current()) {
  transforms::FlatCall call(step, Tensor(0), init);
  Carry first = init;
  return call.template argument<1>(
      loops::fori(Tensor(lower), Tensor(upper), call.function(), transforms::listed(first), where));
}

/// The first carry of which `condition(carry)`, a bool of shape (), does not hold, `step(carry)`
/// after `step`. Has forward mode and vmap; reverse mode is refused, since nobody knows how much
/// memory the way back would take.
template <class Condition, class F, class Carry>
Carry while_loop(Condition condition, F step, const Carry& init,
                 std::source_location where = std::source_location::current()) {
  transforms::FlatCall test(condition, init), call(step, init);
  Carry first = init;
  return call.result(
      loops::repeat(test.function(), call.function(), transforms::listed(first), where));
}

/// `on_true(arguments...)` where a bool of shape () holds, else `on_false(arguments...)`: one of
/// both runs. Under vmap, where examples differ, both run and each example picks.
template <class True, class False, class... Arguments>
auto cond(const Tensor& condition, True on_true, False on_false, const Arguments&... arguments) {
  transforms::FlatCall yes(on_true, arguments...), no(on_false, arguments...);
  auto all = std::make_tuple(arguments...);
  return yes.result(loops::branch("cond", loops::number_of(condition),
                                  {no.function(), yes.function()}, transforms::listed(all), {}));
}

/// `branches[which](arguments...)`: one of several functions, by an integer of shape (), which is
/// clamped to those that exist.
template <class F, class... Arguments>
auto switch_case(const Tensor& which, const std::vector<F>& branches,
                 const Arguments&... arguments) {
  using Call = transforms::CallOf<F, Arguments...>;
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<transforms::Function> functions;
  for (const F& f : branches) {
    calls.push_back(std::make_unique<Call>(f, arguments...));
    functions.push_back(calls.back()->function());
  }
  auto all = std::make_tuple(arguments...);
  const transforms::Tensors made =
      loops::branch("switch_case", which, functions, transforms::listed(all), {});
  return calls.front()->result(made);
}

}  // namespace koine

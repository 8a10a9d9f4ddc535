#pragma once
#include <concepts>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "koine/ir/build.hpp"
#include "koine/tensor/tensor.hpp"
#include "koine/transform/function.hpp"

// koine::function: a C++ callable as a Function node (rows F1 to F4).
namespace koine {

/// Types that name their tensors: a member `template <class V> void tensors(V&& visit)`, which
/// calls visit(member) for each member that holds some.
template <class T>
concept HoldsTensors = requires(T& value) { value.tensors([](auto&) {}); };

/// Layers and models, which name their tensors by `state(prefix, visit)`, as those of `koine::nn`.
template <class T>
concept HoldsState =
    requires(T& value) { value.state("", [](const std::string&, Tensor&, bool) {}); };

/// Calls `visit(Tensor&)` for every Tensor in a value, in a fixed order: Tensors, pairs, tuples,
/// vectors, maps, optionals and types that HoldsTensors or HoldsState, nested at will. Anything
/// else holds none, and a Tensor that is undefined, such as the bias of a layer without one, is
/// left out.
template <class T, class Visit>
void for_each_tensor(T& value, Visit&& visit) {
  if constexpr (std::same_as<T, Tensor>) {
    if (value.defined()) visit(value);
  } else if constexpr (HoldsTensors<T>) {
    value.tensors([&](auto& member) { for_each_tensor(member, visit); });
  } else if constexpr (HoldsState<T>) {
    value.state("",
                [&](const std::string&, Tensor& member, bool) { for_each_tensor(member, visit); });
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](auto&... parts) { (for_each_tensor(parts, visit), ...); }, value);
  } else if constexpr (requires { typename T::mapped_type; }) {
    for (auto& [key, part] : value) for_each_tensor(part, visit);
  } else if constexpr (requires {
                         value.has_value();
                         *value;
                       }) {
    if (value.has_value()) for_each_tensor(*value, visit);
  } else if constexpr (requires {
                         value.begin();
                         value.end();
                         typename T::value_type;
                       }) {
    if constexpr (!std::same_as<typename T::value_type, char> &&
                  !std::is_arithmetic_v<typename T::value_type>)
      for (auto& part : value) for_each_tensor(part, visit);
  }
}

/// A callable that puts its body into the graph as one Function node, over all Tensors found in its
/// arguments; the same Tensor twice is one input. Equal bodies are one node. With
/// Resolve::Precompile the body's kernels do not fuse with what is around them, so twelve equal
/// layers are compiled once. The callable runs once a call, on placeholders: it describes the
/// result and may not look at values. Other arguments are seen as they are. What it returns keeps
/// its structure.
///
///     auto layer = function([](const Tensor& x, const Weights& w) { return x.matmul(w.a).relu();
///     }); Tensor y = layer(x, weights);
template <class F>
auto function(F body, Resolve how = Resolve::Substitute,
              std::source_location where = std::source_location::current()) {
  return [body = std::move(body), how, where](const auto&... arguments) {
    auto copies = std::make_tuple(arguments...);
    std::vector<UOp> inputs;
    for_each_tensor(copies, [&](Tensor& t) { inputs.push_back(t.uop()); });
    using Result = std::remove_cvref_t<decltype(std::apply(body, copies))>;
    std::optional<Result> result;
    const UOp call = make_function(
        [&](const std::vector<UOp>& params) {
          size_t k = 0;
          for_each_tensor(copies, [&](Tensor& t) { t = Tensor(params[k++]); });
          result.emplace(std::apply(body, copies));
          std::vector<UOp> values;
          for_each_tensor(*result, [&](Tensor& t) { values.push_back(t.uop()); });
          return values;
        },
        inputs, how, where);
    int64_t k = 0;
    for_each_tensor(*result, [&](Tensor& t) { t = Tensor(get_tuple(call, k++)); });
    return std::move(*result);
  };
}

}  // namespace koine

// Reverse mode: one walk from the outputs to the targets by the table's column.
#include "koine/transform/gradient.hpp"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/transform/call_gradient.hpp"
#include "koine/transform/checkpoint.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/custom_rule.hpp"
#include "koine/transform/forward.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/loops.hpp"
#include "koine/transform/table.hpp"

namespace koine {
namespace {

// Where several devices split a value, its cotangent lies as it does; beside a target in any case.
UOp placed_as(const UOp& value, const UOp& g, bool target) {
  const bool both = value.device().count() > 1 && g.device() == value.device();
  return both && (target || value.axis()) ? copy_to(g, value.node()->placement) : g;
}

std::vector<UOp> gradient_keeping(std::span<const UOp> outputs, std::span<const UOp> cotangents,
                                  std::span<const UOp> targets, const std::optional<Kept>& kept);

// A gradient that reads nothing of an argument, such as that of a sum, cannot tell its sizes: they
// are those of the call.
UOp with_sizes_of(const UOp& call, const UOp& second) {
  Substitution untold = variables_from(call.src(0), call.src().subspan(1));
  for (const auto& [slot, param] : params_of(second))
    for (const UOp& size : param.shape().src()) untold.erase(size);
  return with_variables(second, untold);
}

// A call is differentiated as a second Function over its arguments and the cotangents of its
// outputs (row B12), and over values that are kept of the first. Without a checkpoint around it all
// of them are: what both compute is one node.
Cotangents function_vjp(const UOp& call, const std::vector<UOp>& output_cotangents,
                        const std::optional<Kept>& around) {
  const UOp& body = call.src(0);
  const std::optional<Kept> own = checkpoint_of(call), &kept = own ? own : around;
  const std::vector<UOp> given(call.src().begin() + 1, call.src().end());
  std::vector<UOp> params, seeds, outputs, cotangents, arguments = given;
  const std::map<int64_t, UOp> by_slot = params_of(body);
  for (size_t k = 0; k < given.size(); ++k) {
    const auto it = by_slot.find(static_cast<int64_t>(k));
    params.push_back(it != by_slot.end() ? it->second
                                         : argument_param(static_cast<int64_t>(k), given[k]));
  }
  for (size_t i = 0; i < body.src().size(); ++i) {
    if (!output_cotangents[i]) continue;
    outputs.push_back(body.src(i));
    const auto slot = static_cast<int64_t>(arguments.size());
    const UOp& seed = output_cotangents[i];  // on several devices it may lie otherwise
    seeds.push_back(argument_param(slot, seed.device().count() > 1 ? seed : body.src(i)));
    arguments.push_back(seed);
    cotangents.push_back(seed);
  }
  std::vector<UOp> grads = gradient_keeping(outputs, seeds, params, kept);
  for (size_t k = 0; k < grads.size(); ++k)
    if (!grads[k]) grads[k] = filled_like(params[k], 0);
  UOp second = with_sizes_of(call, tuple(grads));
  if (kept) {
    const std::vector<UOp> values = kept_values(body, *kept);
    const UOp first = function(tuple(values), given, resolve_of(call));
    Substitution known;
    for (size_t k = 0; k < values.size(); ++k) {
      const UOp value = get_tuple(first, static_cast<int64_t>(k));
      known.emplace(values[k], argument_param(static_cast<int64_t>(arguments.size()), value));
      arguments.push_back(value);
    }
    second = substitute(second, known);
  }
  if (own)
    for (UOp& argument : arguments)
      if (std::find(cotangents.begin(), cotangents.end(), argument) == cotangents.end())
        argument = fenced(argument, cotangents);
  second =
      tuple(close_over(std::vector<UOp>(second.src().begin(), second.src().end()), {}, arguments));
  const UOp made = kept ? function_of_used(second.src(), arguments, call.arg())
                        : function(second, arguments, resolve_of(call));
  Cotangents out;
  for (size_t k = 0; k < grads.size(); ++k) out.push_back(get_tuple(made, static_cast<int64_t>(k)));
  return out;
}

Cotangents cotangents_of_call(const UOp& call, const std::vector<UOp>& of_results,
                              const std::optional<Kept>& kept) {
  if (call.is(Op::Call))
    return is_loop(call.src(0)) ? loop_vjp(call, of_results) : call_vjp(call, of_results);
  return custom_rule_of(call).empty() ? function_vjp(call, of_results, kept)
                                      : custom_cotangents(call, of_results);
}

// What is made of constants alone becomes part of the bodies that use it, and is no argument.
void refuse_constants_of_bodies(const UOp& root, const std::vector<UOp>& targets,
                                const std::vector<UOp>& found) {
  if ((root.node()->ops_below & mask_of(Op::Function)) == 0) return;
  const NodeList outside = toposort_outside_bodies(root), all = toposort(root);
  std::unordered_set<UOp> inside(all.begin(), all.end());
  for (const UOp& u : outside) inside.erase(u);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (found[i] || targets[i].is(Op::Param)) continue;
    KOINE_REQUIRE(
        !inside.contains(targets[i]), Value,
        "gradient: target {} of shape {} is a constant expression that a traced function "
        "made part of its body: make it an argument of the function, or clone() it before",
        i, shape_text(targets[i]));
  }
}

std::vector<UOp> gradient_keeping(std::span<const UOp> outputs, std::span<const UOp> cotangents,
                                  std::span<const UOp> targets, const std::optional<Kept>& kept) {
  const UOp root = without_tuples(sink(outputs));
  // Bodies of Functions are not entered: a call is one node.
  const NodeList order = toposort(root, [](const UOp& u) { return !u.is(Op::Tuple); });
  std::vector<UOp> bare;
  for (const UOp& t : targets) bare.push_back(without_tuples(t));
  std::unordered_set<UOp> wanted(bare.begin(), bare.end()), leads;
  for (const UOp& u : order) {
    bool on_path = wanted.contains(u);
    const bool passes = !u.is(Op::Detach) && (is_float(u.dtype()) || u.dtype() == DType::Void);
    for (const UOp& s : u.src()) on_path = on_path || (passes && leads.contains(s));
    if (on_path) leads.insert(u);
  }
  // What is invalid counts for nothing: its cotangent is 0 (amendment C27).
  InvalidElements invalid;
  for (const UOp& u : order) invalid.visit(u);
  auto of_valid = [&](const UOp& node, const UOp& g) {
    const UOp bad = invalid.of(node);
    return bad && g ? where(bad, like(g, 0), g) : g;
  };
  std::unordered_map<UOp, UOp> total;
  std::unordered_map<UOp, std::vector<UOp>> call_cotangents;
  auto accumulate = [&](const UOp& node, const UOp& g) {
    UOp& slot = total[node];
    const UOp placed = placed_as(node, g, wanted.contains(node));
    const bool meet = !slot || !slot.axis() || !placed.axis() || slot.axis() == placed.axis();
    const UOp other = meet ? placed : copy_to(placed, slot.node()->placement);
    slot = slot ? add(slot, other) : other;
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    const UOp& output = root.src(i);
    KOINE_REQUIRE(is_float(output.dtype()), Type,
                  "gradient: the output is {}, only floats have gradients",
                  dtype_name(output.dtype()));
    accumulate(output, cotangents[i]);
  }
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& node = order[i];
    if (!leads.contains(node) || node == root) continue;
    const OriginScope from(origin_of(node));  // that of the value, not of who asks
    if (node.is(Op::Function) || node.is(Op::Call)) {
      const auto it = call_cotangents.find(node);
      if (it == call_cotangents.end()) continue;
      const Cotangents parts = cotangents_of_call(node, it->second, kept);
      for (size_t k = 1; k < node.src().size(); ++k)
        if (parts[k - 1] && leads.contains(node.src(k)) && is_float(node.src(k).dtype()))
          accumulate(node.src(k), parts[k - 1]);
      continue;
    }
    const auto found = total.find(node);
    if (found == total.end()) continue;
    const UOp g = found->second = of_valid(node, found->second);
    if (node.is(Op::GetTuple)) {
      auto& list = call_cotangents[node.src(0)];
      const auto k = static_cast<size_t>(node.as<int64_t>());
      list.resize(std::max({list.size(), k + 1, node.src(0).src(0).src().size()}));
      list[k] = g;
      continue;
    }
    bool below = false;
    for (const UOp& s : node.src()) below = below || leads.contains(s);
    if (!below) continue;
    const VjpCell cell = vjp_cell(node.op());
    KOINE_REQUIRE(!cell.is_refused(), Type,
                  "gradient: {} has no gradient: {}; detach() its input, or call it outside of "
                  "what is differentiated",
                  op_name(node.op()), cell.words());
    if (cell.rule() == nullptr) continue;
    const Cotangents parts = cell.rule()(node, g);
    for (size_t k = 0; k < parts.size(); ++k)
      if (parts[k] && leads.contains(node.src(k)))
        accumulate(node.src(k), is_elementwise(node.op())
                                    ? sum_to(of_valid(node, parts[k]), node.src(k).shape())
                                    : parts[k]);
  }
  std::vector<UOp> out;
  for (const UOp& t : bare) {
    const auto it = total.find(t);
    out.push_back(it == total.end() ? UOp() : it->second);
  }
  refuse_constants_of_bodies(root, bare, out);
  return out;
}

}  // namespace

std::vector<UOp> gradient(std::span<const UOp> outputs, std::span<const UOp> cotangents,
                          std::span<const UOp> targets) {
  return gradient_keeping(outputs, cotangents, targets, std::nullopt);
}

}  // namespace koine

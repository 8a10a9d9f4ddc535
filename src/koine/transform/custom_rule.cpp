#include "koine/transform/custom_rule.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "koine/base/error.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/carried_name.hpp"
#include "koine/ir/text.hpp"
#include "koine/transform/call_gradient.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/forward.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/gradient.hpp"

namespace koine {
namespace {

constexpr std::string_view prefix = "rule ";

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const CustomRule>> rules;
  int64_t made = 0;
};
Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

std::shared_ptr<const CustomRule> rule_named(const std::string& name) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  const auto it = known.rules.find(name);
  KOINE_REQUIRE(it != known.rules.end(), Value,
                "the function '{}' has a rule for its derivative that this process does not know",
                name);
  return it->second;
}

void forget(const std::string& name) {
  std::shared_ptr<const CustomRule> rule;  // which goes without the lock
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  if (const auto it = known.rules.find(name); it != known.rules.end()) {
    rule = std::move(it->second);
    known.rules.erase(it);
  }
}

std::vector<UOp> arguments_of(const UOp& call) {
  return {call.src().begin() + 1, call.src().end()};
}
std::vector<UOp> results_of_function(const UOp& call) {
  std::vector<UOp> out;
  for (size_t k = 0; k < call.src(0).src().size(); ++k)
    out.push_back(get_tuple(call, static_cast<int64_t>(k)));
  return out;
}

// Stands for a value that a linear map is applied to, and is nowhere in what comes of it.
UOp stand_in(const UOp& value) {
  return new_buffer(value.shape(), value.dtype(), value.device(), value.node()->placement.axes);
}

std::vector<UOp> or_zeros(const std::vector<UOp>& moved, const std::vector<UOp>& values) {
  std::vector<UOp> out;
  for (size_t k = 0; k < values.size(); ++k)
    out.push_back(k < moved.size() && moved[k] ? moved[k] : filled_like(values[k], 0));
  return out;
}

void require_linear(const std::string& name, const std::vector<UOp>& made,
                    const std::vector<UOp>& stand_ins) {
  std::vector<UOp> known;
  for (const UOp& u : made)
    if (u) known.push_back(u);
  for (const UOp& u : toposort(sink(known)))
    KOINE_REQUIRE(std::find(stand_ins.begin(), stand_ins.end(), u) == stand_ins.end(), Type,
                  "'{}': its rule is not linear in what it is given, so the other direction does "
                  "not follow from it",
                  name);
}

// What a rule says. Its functions are the user's, and trace functions of their own.
std::vector<UOp> applied(const std::function<std::vector<UOp>(const CustomRule::Given&)>& rule,
                         const CustomRule::Given& given) {
  return with_stand_ins(given.arguments, given.results, given.moved,
                        [&](auto arguments, auto results, auto moved) {
                          return rule({std::move(arguments), std::move(results), std::move(moved)});
                        });
}

// The transpose of a linear map: for what its results are weighed with, that of its arguments.
std::vector<UOp> transposed(const std::string& name, const std::vector<UOp>& results,
                            const std::vector<UOp>& weights, const std::vector<UOp>& stand_ins) {
  std::vector<UOp> outputs, seeds;
  for (size_t k = 0; k < results.size(); ++k)
    if (results[k] && k < weights.size() && weights[k] && is_float(results[k].dtype())) {
      outputs.push_back(results[k]);
      seeds.push_back(weights[k]);
    }
  if (outputs.empty()) return std::vector<UOp>(stand_ins.size());
  std::vector<UOp> out = gradient(outputs, seeds, stand_ins);
  require_linear(name, out, stand_ins);
  return out;
}

std::vector<UOp> stand_ins_for(const std::vector<UOp>& values) {
  std::vector<UOp> out;
  for (const UOp& v : values) out.push_back(stand_in(v));
  return out;
}

void require_fit(const std::string& name, std::string_view what, const std::vector<UOp>& made,
                 const std::vector<UOp>& values) {
  KOINE_REQUIRE(made.size() == values.size(), Value, "'{}': its rule gives {} {} for {}", name,
                made.size(), what, values.size());
  for (size_t k = 0; k < made.size(); ++k)
    KOINE_REQUIRE(
        !made[k] || (made[k].dtype() == values[k].dtype() && made[k].shape() == values[k].shape()),
        Value, "'{}': its rule gives {} of shape {} for {} {}, which is {} of shape {}", name,
        dtype_name(made[k].dtype()), shape_text(made[k]), what, k, dtype_name(values[k].dtype()),
        shape_text(values[k]));
}

// A rule for many examples: the rule of one, with an axis more wherever `given` has one.
std::vector<UOp> batched_rule(const std::function<std::vector<UOp>(const CustomRule::Given&)>& rule,
                              const CustomRule::Given& given, const CustomRule::Given& one,
                              const UOp& examples) {
  std::vector<UOp> inputs, of_inputs;
  auto take = [&](const std::vector<UOp>& all, const std::vector<UOp>& single) {
    for (size_t k = 0; k < all.size(); ++k)
      if (!(all[k] == single[k])) {
        inputs.push_back(single[k]);
        of_inputs.push_back(all[k]);
      }
  };
  take(given.arguments, one.arguments);
  take(given.results, one.results);
  take(given.moved, one.moved);
  const std::vector<UOp> made = applied(rule, one);
  std::vector<UOp> known, out;
  for (const UOp& u : made)
    if (u) known.push_back(u);
  const std::vector<UOp> all = batched(known, inputs, of_inputs, examples);
  size_t k = 0;
  for (const UOp& u : made) {
    out.emplace_back();
    if (!u) continue;
    out.back() = all[k] ? all[k] : for_each_example(u, examples);
    ++k;
  }
  return out;
}

// Of values for all examples, one; of a value that is equal in all of them, itself.
UOp single(const UOp& value, bool carried) {
  if (!carried) return value;
  std::vector<UOp> dims;
  for (size_t k = 1; k < value.rank(); ++k) dims.push_back(value.dim(k));
  return new_buffer(stack(dims), value.dtype(), value.device());
}

}  // namespace

std::string register_custom_rule(const std::string& name, CustomRule rule) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::string full = fmt::format("{} {}", name, known.made++);
  known.rules.emplace(full, std::make_shared<const CustomRule>(std::move(rule)));
  keep_name(std::string(prefix) + full, [full] { forget(full); });
  return full;
}

void let_go_custom_rule(const std::string& name) { let_go_name(std::string(prefix) + name); }

std::string register_rule_of_first(const std::string& name, size_t own) {
  const auto rule = rule_named(name);
  const auto first = [own](std::vector<UOp> all) {
    all.resize(own);
    return all;
  };
  CustomRule made;
  if (rule->vjp)
    made.vjp = [rule, first, name](const CustomRule::Given& given) {
      const std::vector<UOp> seen = first(given.arguments);
      std::vector<UOp> out = rule->vjp({seen, given.results, given.moved});
      require_fit(name, "cotangents of arguments", out, seen);
      out.resize(given.arguments.size());
      return out;
    };
  if (rule->jvp)
    made.jvp = [rule, first](const CustomRule::Given& given) {
      return rule->jvp({first(given.arguments), given.results, first(given.moved)});
    };
  return register_custom_rule(name.substr(0, name.rfind(' ')), std::move(made));
}

std::string custom_rule_of(const UOp& function) {
  const auto* words = std::get_if<std::string>(&function.arg());
  if (words == nullptr || !words->starts_with(prefix)) return {};
  return words->substr(prefix.size());
}

UOp custom_function(const UOp& body, std::span<const UOp> arguments, const std::string& name) {
  std::vector<UOp> src{body};
  src.insert(src.end(), arguments.begin(), arguments.end());
  return UOp::make(Op::Function, src, std::string(prefix) + name);
}

std::vector<UOp> custom_cotangents(const UOp& call, const std::vector<UOp>& cotangents) {
  const std::string name = custom_rule_of(call);
  const auto rule = rule_named(name);
  const std::vector<UOp> arguments = arguments_of(call), results = results_of_function(call);
  if (rule->vjp) {
    std::vector<UOp> out = applied(rule->vjp, {arguments, results, or_zeros(cotangents, results)});
    require_fit(name, "cotangents of arguments", out, arguments);
    return out;
  }
  const std::vector<UOp> moved = stand_ins_for(arguments);
  return transposed(name, applied(rule->jvp, {arguments, results, moved}), cotangents, moved);
}

std::vector<UOp> custom_tangents(const UOp& call, const std::vector<UOp>& tangents) {
  const std::string name = custom_rule_of(call);
  const auto rule = rule_named(name);
  const std::vector<UOp> arguments = arguments_of(call), results = results_of_function(call);
  if (rule->jvp) {
    std::vector<UOp> out = applied(rule->jvp, {arguments, results, or_zeros(tangents, arguments)});
    require_fit(name, "tangents of results", out, results);
    return out;
  }
  const std::vector<UOp> moved = stand_ins_for(results);
  return transposed(name, applied(rule->vjp, {arguments, results, moved}), tangents, moved);
}

std::vector<UOp> call_tangents(const UOp& call, const std::vector<UOp>& tangents) {
  std::vector<UOp> results;
  for (size_t k = 0; k < results_of(call.src(0)).size(); ++k)
    results.push_back(get_tuple(call, static_cast<int64_t>(k)));
  const std::vector<UOp> moved = stand_ins_for(results);
  return transposed(call_name(call), call_vjp(call, moved), tangents, moved);
}

std::vector<UOp> batched_custom(const UOp& call, const std::vector<UOp>& carried,
                                const UOp& examples) {
  const auto rule = rule_named(custom_rule_of(call));
  const UOp& body = call.src(0);
  std::vector<UOp> arguments = arguments_of(call), inputs, of_inputs;
  std::vector<bool> moves;
  for (size_t k = 0; k < arguments.size(); ++k) {
    moves.push_back(bool(carried[k]));
    if (carried[k]) arguments[k] = carried[k];
  }
  for (const auto& [slot, param] : params_of(body)) {
    const auto k = static_cast<size_t>(slot);
    if (!moves[k]) continue;
    inputs.push_back(param);
    of_inputs.push_back(argument_param(slot, arguments[k], param));
  }
  std::vector<UOp> outputs = batched(body.src(), inputs, of_inputs, examples);
  for (size_t k = 0; k < outputs.size(); ++k)
    if (!outputs[k]) outputs[k] = for_each_example(body.src(k), examples);
  if (rule->rows)
    return results_of_function(custom_function(tuple(outputs), arguments, custom_rule_of(call)));
  // Results and their cotangents differ from example to example; arguments do where `moves` says.
  auto one_of = [moves](const CustomRule::Given& given, bool of_arguments) {
    CustomRule::Given one;
    for (size_t k = 0; k < given.arguments.size(); ++k)
      one.arguments.push_back(single(given.arguments[k], moves[k]));
    for (const UOp& r : given.results) one.results.push_back(single(r, true));
    for (size_t k = 0; k < given.moved.size(); ++k)
      one.moved.push_back(single(given.moved[k], !of_arguments || moves[k]));
    return one;
  };
  CustomRule all;
  if (rule->vjp)
    all.vjp = [rule, one_of, moves, examples](const CustomRule::Given& given) {
      std::vector<UOp> out = batched_rule(rule->vjp, given, one_of(given, false), examples);
      for (size_t k = 0; k < out.size(); ++k)  // an argument of all examples has what they add to
        if (out[k] && !moves[k]) out[k] = sum_to(out[k], given.arguments[k].shape());
      return out;
    };
  if (rule->jvp)
    all.jvp = [rule, one_of, examples](const CustomRule::Given& given) {
      return batched_rule(rule->jvp, given, one_of(given, true), examples);
    };
  const std::string name = register_custom_rule(custom_rule_of(call), all);
  const std::vector<UOp> made =
      results_of_function(custom_function(tuple(outputs), arguments, name));
  let_go_custom_rule(name);
  return made;
}

}  // namespace koine

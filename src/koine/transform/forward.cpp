#include "koine/transform/forward.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "koine/base/error.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/origin.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"
#include "koine/transform/call_gradient.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/custom_rule.hpp"
#include "koine/transform/function.hpp"
#include "koine/transform/loops.hpp"
#include "koine/transform/table.hpp"

namespace koine {
namespace {

bool none_of(std::span<const UOp> values) {
  return std::none_of(values.begin(), values.end(), [](const UOp& v) { return bool(v); });
}

class Forward {
 public:
  explicit Forward(UOp examples) : examples_(std::move(examples)) {}

  std::vector<UOp> run(std::span<const UOp> outputs, std::span<const UOp> inputs,
                       std::span<const UOp> of_inputs) {
    const UOp root = without_tuples(sink(outputs));
    for (size_t k = 0; k < inputs.size(); ++k)
      carried_.emplace(without_tuples(inputs[k]), of_inputs[k]);
    for (const UOp& u : toposort(root, [](const UOp& u) { return !u.is(Op::Tuple); })) {
      const OriginScope from(origin_of(u));
      if (!batches()) invalid_.visit(u);
      if (!carried_.contains(u) && !(u == root)) carried_.emplace(u, at(u));
    }
    std::vector<UOp> out;
    for (const UOp& output : root.src()) {
      const UOp& carried = carried_.at(output);
      out.push_back(carried && batches() ? without_examples(substitute(carried, waiting_), inputs)
                                         : carried);
    }
    return out;
  }

 private:
  bool batches() const { return bool(examples_); }

  std::vector<UOp> carried_by(std::span<const UOp> sources) const {
    std::vector<UOp> out;
    for (const UOp& s : sources) {
      const auto it = carried_.find(s);
      out.push_back(it == carried_.end() ? UOp() : it->second);
    }
    return out;
  }

  UOp at(const UOp& u) {
    const bool has_tangent = is_float(u.dtype()) || u.dtype() == DType::Void;
    if (!batches() && !has_tangent) return {};
    if (u.is(Op::Function) || u.is(Op::Call)) {
      calls_.emplace(u, of_call(u));
      return {};
    }
    if (u.is(Op::GetTuple)) return calls_.at(u.src(0))[static_cast<size_t>(u.as<int64_t>())];
    const std::vector<UOp> sources = carried_by(u.src());
    if (none_of(sources)) return {};
    const ForwardCell cell = batches() ? batch_cell(u.op()) : jvp_cell(u.op());
    KOINE_REQUIRE(!cell.is_refused(), Type, "{}: {} of shape {}: {}", batches() ? "vmap" : "jvp",
                  op_name(u.op()), shape_text(u), cell.words());
    if (cell.rule() == nullptr) return {};
    UOp out = cell.rule()({u, sources, examples_});
    // What is equal in all examples waits for all of them behind a Fence.
    if (out && u.is(Op::Fence) && !sources[0]) {
      waiting_.emplace(u, with_source(out, 0, substitute(u.src(0), waiting_)));
      return {};
    }
    // What is invalid counts for nothing: its tangent is 0 (amendment C27).
    if (out && !batches())
      if (const UOp bad = invalid_.of(u)) out = where(bad, like(out, 0), out);
    return out;
  }

  // --- calls ---------------------------------------------------------------------------------

  std::vector<UOp> of_call(const UOp& call) {
    const auto arguments = call.src().subspan(1);
    const std::vector<UOp> carried = carried_by(arguments);
    const size_t results =
        call.is(Op::Call) ? results_of(call.src(0)).size() : call.src(0).src().size();
    if (none_of(carried)) return std::vector<UOp>(results);
    if (call.is(Op::Call) && is_loop(call.src(0)))
      return batches() ? loop_for_examples(call, carried, examples_) : loop_tangents(call, carried);
    if (call.is(Op::Call))
      return batches() ? call_for_examples(call, carried, examples_) : call_tangents(call, carried);
    if (!custom_rule_of(call).empty())
      return batches() ? batched_custom(call, carried, examples_) : custom_tangents(call, carried);
    return of_function(call, carried);
  }

  // The Param that stands for what a Param carries.
  UOp carried_param(const UOp& param, int64_t slot, const UOp& carried) const {
    if (carried.device().count() > 1 || param.device()) return param_for(slot, carried);
    return koine::param(slot, batches() ? shape_for_each(param, examples_) : param.shape(),
                        carried.dtype());
  }

  std::vector<UOp> of_function(const UOp& call, const std::vector<UOp>& carried) const {
    const UOp& body = call.src(0);
    std::vector<UOp> arguments(call.src().begin() + 1, call.src().end()), inputs, of_inputs;
    for (const auto& [slot, param] : params_of(body)) {
      const UOp& value = carried[static_cast<size_t>(slot)];
      if (!value) continue;
      inputs.push_back(param);
      of_inputs.push_back(carried_param(param, static_cast<int64_t>(arguments.size()), value));
      arguments.push_back(value);
    }
    std::vector<UOp> out = Forward(examples_).run(body.src(), inputs, of_inputs), results;
    for (const UOp& value : out)
      if (value) results.push_back(value);
    if (results.empty()) return out;
    results = close_over(results, {}, arguments);
    const UOp made = function_of_used(results, arguments, call.arg());
    int64_t k = 0;
    for (UOp& value : out)
      if (value) value = get_tuple(made, k++);
    return out;
  }

  UOp examples_;
  std::unordered_map<UOp, UOp> carried_;
  std::unordered_map<UOp, std::vector<UOp>> calls_;
  Substitution waiting_;  // Fences of what is equal in all examples
  InvalidElements invalid_;
};

}  // namespace

std::vector<UOp> tangents(std::span<const UOp> outputs, std::span<const UOp> inputs,
                          std::span<const UOp> of_inputs) {
  return Forward({}).run(outputs, inputs, of_inputs);
}

std::vector<UOp> batched(std::span<const UOp> outputs, std::span<const UOp> inputs,
                         std::span<const UOp> of_inputs, const UOp& examples) {
  return Forward(examples).run(outputs, inputs, of_inputs);
}

UOp shape_for_each(const UOp& value, const UOp& examples) {
  std::vector<UOp> dims{examples};
  for (size_t k = 0; k < value.rank(); ++k) dims.push_back(value.dim(k));
  return stack(dims);
}

UOp for_each_example(const UOp& value, const UOp& examples) {
  return broadcast_to(value, shape_for_each(value, examples));
}

UOp without_examples(const UOp& value, std::span<const UOp> inputs) {
  Substitution zeros;
  for (const UOp& u : toposort_outside_bodies(value))
    if (std::find(inputs.begin(), inputs.end(), u) != inputs.end())
      zeros.emplace(u, filled_like(u, 0));
  return zeros.empty() ? value : substitute(value, zeros);
}

UOp function_of_used(std::span<const UOp> results, std::span<const UOp> arguments,
                     const Arg& kind) {
  const UOp body = tuple(results);
  Substitution renumbered;
  std::vector<UOp> used;
  for (const auto& [slot, param] : params_of(body)) {
    BufferArg arg = param.as<BufferArg>();
    arg.slot = static_cast<int64_t>(used.size());
    renumbered.emplace(param, UOp::make(Op::Param, param.src(), arg));
    used.push_back(arguments[static_cast<size_t>(slot)]);
  }
  return function(substitute(body, renumbered), used, kind);
}

}  // namespace koine

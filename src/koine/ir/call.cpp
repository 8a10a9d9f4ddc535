#include "koine/ir/call.hpp"

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/ir/validity.hpp"

namespace koine {
namespace {

UOp with_sizes(const UOp& shape, const Substitution& variables) {
  std::vector<UOp> dims;
  for (const UOp& dim : shape.src()) dims.push_back(simplify_index(substitute(dim, variables)));
  return stack(dims);
}

void bind_size(const UOp& dim, const UOp& size, int64_t slot, Substitution& variables) {
  if (!is_variable(dim) || dim == size) return;
  const auto [low, high] = std::pair(dim.bounds().low, dim.bounds().high);
  KOINE_REQUIRE(
      size.bounds().low >= low && size.bounds().high <= high, Value,
      "Function: slot {} has a size of {}, which must lie in {}..{}; the argument's is {}", slot,
      dim_text(dim), static_cast<int64_t>(low), static_cast<int64_t>(high), dim_text(size));
  const UOp& bound = variables.emplace(dim, size).first->second;
  KOINE_REQUIRE(bound == size, Value,
                "Function: slot {} says that {} is {}, but an earlier one says {}", slot,
                dim_text(dim), dim_text(size), dim_text(bound));
}

// A body is closed: it names its arguments, and no value of the function around it.
void require_argument(const UOp& param, std::string_view body) {
  const ParamKind kind = param.as<BufferArg>().kind;
  KOINE_REQUIRE(kind == ParamKind::Argument, Value,
                "{}: its body holds a Param that is no argument of it ({}): give it the value as "
                "an argument",
                body, param_kind_name(kind));
}

std::string body_name(const UOp& body) {
  if (is_loop(body)) return std::string(loop_name(body));
  const auto* name = std::get_if<std::string>(&body.arg());
  return name != nullptr ? *name : "";
}

}  // namespace

std::map<int64_t, UOp> params_of(const UOp& body) {
  std::map<int64_t, UOp> out;
  for (const UOp& u : toposort_outside_bodies(body)) {
    if (!u.is(Op::Param) || is_variable(u)) continue;
    require_argument(u, "Function");
    out.emplace(u.as<BufferArg>().slot, u);
  }
  return out;
}

Substitution variables_from(const UOp& body, std::span<const UOp> arguments) {
  const std::map<int64_t, UOp> params = params_of(body);
  Substitution out;
  auto argument_of = [&](int64_t slot, const UOp& param) -> const UOp& {
    KOINE_REQUIRE(slot >= 0 && slot < static_cast<int64_t>(arguments.size()), Value,
                  "Function: the body uses slot {}, the call gives {} arguments", slot,
                  arguments.size());
    const UOp& argument = arguments[static_cast<size_t>(slot)];
    KOINE_REQUIRE(argument.rank() == param.rank() && argument.dtype() == param.dtype(), Value,
                  "Function: slot {} wants {} {}, the argument is {} {}", slot,
                  dtype_name(param.dtype()), shape_text(param), dtype_name(argument.dtype()),
                  shape_text(argument));
    return argument;
  };
  for (const auto& [slot, param] : params) {
    const UOp& argument = argument_of(slot, param);
    for (size_t k = 0; k < param.rank(); ++k) bind_size(param.dim(k), argument.dim(k), slot, out);
  }
  for (const auto& [slot, param] : params) {
    const UOp& argument = argument_of(slot, param);
    KOINE_REQUIRE(
        argument.shape() == param.shape() || argument.shape() == with_sizes(param.shape(), out),
        Value, "Function: slot {} wants {} {}, the argument is {} {}", slot,
        dtype_name(param.dtype()), shape_text(param), dtype_name(argument.dtype()),
        shape_text(argument));
  }
  return out;
}

namespace {

// In bodies of Calls too: their sizes are those of the values around them.
UOp with_variables_inside(const UOp& value, const Substitution& variables) {
  return rebuild_graph(value, [&](const UOp& node, std::vector<UOp>& src) {
    const auto known = variables.find(node);
    if (known != variables.end()) return known->second;
    if (node.is(Op::Function)) src[0] = node.src(0);  // its arguments say what its sizes are
    if (node.is(Op::Call)) src[0] = with_variables_inside(node.src(0), variables);
    const UOp made = with_sources(node, src);
    const bool is_size = made.dtype() == DType::Index && made.is_scalar();
    return is_size && !(made == node) ? simplify_index(made) : made;
  });
}

}  // namespace

UOp with_variables(const UOp& value, const Substitution& variables) {
  if (variables.empty()) return value;
  if ((value.node()->ops_below & mask_of(Op::Call)) != 0)
    return with_variables_inside(value, variables);
  Substitution all = variables;
  for (const UOp& u : toposort_outside_bodies(value))
    if (u.is(Op::Stack) && u.dtype() == DType::Index)
      if (const UOp sized = with_sizes(u, variables); !(sized == u)) all.emplace(u, sized);
  return substitute(value, all);
}

std::vector<UOp> results_of(const UOp& body) {
  if (body.is(Op::CustomFunction)) return {body.src().begin(), body.src().end()};
  if (is_loop(body)) return loop_results(body);
  std::map<int64_t, UOp> stored;
  for (const UOp& u : toposort(body)) {
    if (!u.is(Op::Store)) continue;
    const UOp& memory = accessed_buffer(u);
    if (memory.is(Op::Param) && !is_variable(memory))
      stored.emplace(memory.as<BufferArg>().slot, memory);
  }
  std::vector<UOp> out;
  for (const auto& [slot, param] : stored) {
    KOINE_REQUIRE(
        slot == static_cast<int64_t>(out.size()), Value,
        "kernel '{}' stores into slot {} and not into slot {}: its results are slots 0, 1, "
        "..., each of them is stored into, and its arguments, behind them, are only read",
        spoken_name(body_name(body)), slot, out.size());
    out.push_back(param);
  }
  KOINE_REQUIRE(!out.empty(), Value, "kernel '{}' stores nothing: store into the Param of slot 0",
                spoken_name(body_name(body)));
  return out;
}

std::string spoken_name(std::string_view name) {
  return std::string(name.substr(0, name.find('#')));
}
std::string call_name(const UOp& call) { return spoken_name(registered_name(call)); }
std::string registered_name(const UOp& call) { return body_name(call.src(0)); }

void require_arguments(const UOp& call) {
  const UOp& body = call.src(0);
  const std::string name = call_name(call);
  KOINE_REQUIRE(body.is(Op::Sink) || body.is(Op::CustomFunction) || is_loop(body), Type,
                "Call: the body is a kernel (a Sink), a CustomFunction or a loop, got {}",
                op_name(body.op()));
  const auto results = static_cast<int64_t>(results_of(body).size());
  const std::span<const UOp> arguments = call.src().subspan(1);
  for (const UOp& a : arguments) {
    KOINE_REQUIRE(a.dtype() != DType::Void && a.dtype() != DType::Index, Type,
                  "'{}' of {}: the arguments of a Call are values in memory", name,
                  dtype_name(a.dtype()));
    const Device first = call.device();
    KOINE_REQUIRE(!a.device() || (a.device() == first && first.count() == 1) || is_loop(body),
                  Device,
                  "'{}' runs on one device, and its arguments lie on {} and {}: copy them to one "
                  "with to()",
                  name, first.name(), a.device().name());
  }
  if (is_loop(body)) return require_loop(call);
  for (const UOp& u : toposort(body)) {
    if (!u.is(Op::Param) || is_variable(u)) continue;
    require_argument(u, name);
    if (body.is(Op::CustomFunction)) continue;
    const int64_t slot = u.as<BufferArg>().slot, k = slot - results;
    if (slot >= 0 && k < 0) continue;
    KOINE_REQUIRE(slot >= 0 && k < static_cast<int64_t>(arguments.size()), Value,
                  "kernel '{}' reads slot {}: it has {} results and is called with {} arguments",
                  name, slot, results, arguments.size());
    const UOp& argument = arguments[static_cast<size_t>(k)];
    const bool fits = u.shape() == argument.shape() ||
                      (u.rank() == argument.rank() &&
                       without_values(u.shape()) == without_values(argument.shape()));
    KOINE_REQUIRE(u.dtype() == argument.dtype() && fits, Value,
                  "kernel '{}': argument {} is {} of shape {} in the kernel, and it is called with "
                  "{} of shape {}",
                  name, k, dtype_name(u.dtype()), shape_text(u), dtype_name(argument.dtype()),
                  shape_text(argument));
  }
}

UOp call_argument(const UOp& value) {
  if (lies_in_memory(value)) return value;
  return UOp::make(Op::Contiguous, {value}, std::string("an argument of a call"));
}
bool is_call_result(const UOp& u) { return u.is(Op::GetTuple) && u.src(0).is(Op::Call); }

}  // namespace koine

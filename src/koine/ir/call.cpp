#include "koine/ir/call.hpp"

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

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

}  // namespace

std::map<int64_t, UOp> params_of(const UOp& body) {
  std::map<int64_t, UOp> out;
  for (const UOp& u : toposort_outside_bodies(body))
    if (u.is(Op::Param) && !is_variable(u)) out.emplace(u.as<BufferArg>().slot, u);
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

UOp with_variables(const UOp& value, const Substitution& variables) {
  if (variables.empty()) return value;
  Substitution all = variables;
  for (const UOp& u : toposort_outside_bodies(value))
    if (u.is(Op::Stack) && u.dtype() == DType::Index)
      if (const UOp sized = with_sizes(u, variables); !(sized == u)) all.emplace(u, sized);
  return substitute(value, all);
}

}  // namespace koine

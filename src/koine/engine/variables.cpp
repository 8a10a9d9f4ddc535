#include "koine/engine/variables.hpp"

#include <unordered_set>

#include "koine/base/error.hpp"
#include "koine/ir/binding.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine {
namespace {

// Those in bodies of Functions are given by the shapes of arguments, unless they are bound.
std::vector<UOp> variables_of(const UOp& request) {
  std::vector<UOp> out = variables_below(request);
  for (const UOp& v : out) require_name_of_user(v);
  if (out.empty() || (request.node()->ops_below & mask_of(Op::Function)) == 0) return out;
  std::unordered_set<UOp> outside;
  for (const UOp& u : toposort_outside_bodies(request)) outside.insert(u);
  std::erase_if(out, [&](const UOp& v) { return !is_bound(v) && !outside.contains(v); });
  return out;
}

}  // namespace

VariableValues values_of_variables(const std::vector<UOp>& request, const VariableValues& given) {
  VariableValues out = given;
  std::map<std::string, UOp> declared;
  for (const UOp& v : variables_of(sink(request))) {
    const std::string& name = v.as<BufferArg>().name;
    const UOp plain = without_values(v);
    const UOp& first = declared.emplace(name, plain).first->second;
    KOINE_REQUIRE(first == plain, Value,
                  "realize: Variable '{}' has the range {} to {} and the range {} to {}: give one "
                  "of them another name",
                  name, const_int(first.src(1)), const_int(first.src(2)), const_int(v.src(1)),
                  const_int(v.src(2)));
    if (!is_bound(v)) continue;
    const int64_t value = out.emplace(name, bound_value(v)).first->second;
    KOINE_REQUIRE(value == bound_value(v), Value,
                  "realize: Variable '{}' is bound to {} and to {} in one graph: values that were "
                  "computed with different sizes do not meet",
                  name, value, bound_value(v));
  }
  for (const auto& [name, variable] : declared) {
    const auto it = out.find(name);
    KOINE_REQUIRE(it != out.end(), Key, "Variable '{}' has no value: bind it in realize()", name);
    require_in_range(variable, it->second);
  }
  return out;
}

}  // namespace koine

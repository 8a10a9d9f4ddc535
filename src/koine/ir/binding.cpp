#include "koine/ir/binding.hpp"

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// The graph and the bodies of its Calls, with Variables replaced.
UOp with_each(const UOp& graph, const std::function<UOp(const UOp&)>& replacement) {
  return transform_graph(graph, [&](const UOp&, const UOp& node) {
    if (is_variable(node)) return replacement(node);
    if (!node.is(Op::Call)) return node;
    return with_source(node, 0, with_each(node.src(0), replacement));
  });
}

UOp unbound(const UOp& bound) { return UOp::make(Op::Param, bound.src().first(3), bound.arg()); }

}  // namespace

UOp bind(const UOp& variable, int64_t value) {
  KOINE_INVARIANT(is_variable(variable), "bind: {} is no Variable", op_name(variable.op()));
  require_in_range(variable, value);
  if (is_bound(variable)) {
    KOINE_REQUIRE(bound_value(variable) == value, Value,
                  "bind: Variable '{}' is bound to {}, it cannot be {} too",
                  variable.as<BufferArg>().name, bound_value(variable), value);
    return variable;
  }
  const auto src = variable.src();
  return UOp::make(Op::Param, {src[0], src[1], src[2], index_const(value)}, variable.arg());
}
bool is_bound(const UOp& node) { return is_variable(node) && node.src().size() == 4; }
int64_t bound_value(const UOp& bound) { return const_int(bound.src(3)); }

void require_name_of_user(const UOp& variable) {
  const std::string& name = variable.as<BufferArg>().name;
  KOINE_REQUIRE(!name.starts_with("koine_"), Value,
                "Variable('{}', {}, {}): names that begin with koine_ are the library's", name,
                const_int(variable.src(1)), const_int(variable.src(2)));
}

std::vector<UOp> variables_below(const UOp& graph) {
  std::vector<UOp> out;
  if (!graph.node()->varies) return out;
  for (const UOp& u : toposort_with_bodies(graph))
    if (is_variable(u)) out.push_back(u);
  return out;
}

UOp without_values(const UOp& graph) {
  if (!graph.node()->varies) return graph;
  return with_each(graph, [](const UOp& v) { return is_bound(v) ? unbound(v) : v; });
}
UOp with_values(const UOp& graph, const Substitution& values) {
  if (values.empty()) return graph;
  return with_each(graph, [&](const UOp& v) {
    const auto it = values.find(v);
    return it == values.end() ? v : it->second;
  });
}

int64_t present_value(const UOp& index) {
  if (index.is(Op::Const)) return const_int(index);
  Substitution values;
  for (const UOp& v : variables_below(index)) {
    KOINE_REQUIRE(is_bound(v), Key,
                  "the size {} is not known: Variable '{}' has no value: bind() it to one",
                  dim_text(index), v.as<BufferArg>().name);
    values.emplace(v, index_const(bound_value(v)));
  }
  return const_int(simplify_index(substitute(index, values)));
}

bool has_present_value(const UOp& index) {
  const std::vector<UOp> variables = variables_below(index);
  return std::all_of(variables.begin(), variables.end(), is_bound);
}

std::vector<int64_t> present_sizes(const UOp& value) {
  std::vector<int64_t> out;
  for (size_t axis = 0; axis < value.rank(); ++axis) out.push_back(present_value(value.dim(axis)));
  return out;
}

int64_t largest_numel(const UOp& value) {
  if (value.has_concrete_shape()) return value.numel();
  const __int128 most = index_span(product(value.shape())).high;
  KOINE_REQUIRE(most <= INT64_MAX, Memory, "{}: a value of shape {} has too many elements",
                op_name(value.op()), shape_text(value));
  return static_cast<int64_t>(most);
}

}  // namespace koine

#include "koine/transform/function.hpp"

#include <algorithm>
#include <atomic>
#include <unordered_set>
#include <utility>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/method.hpp"
#include "koine/ir/validity.hpp"

namespace koine {
namespace {

// The innermost function that this thread traces: where it was asked for, null outside of traces,
// and a number that no other trace has.
struct InnermostTrace {
  const std::source_location* where = nullptr;
  uint64_t number = 0;
};
InnermostTrace& innermost_trace() {
  static thread_local InnermostTrace trace;
  return trace;
}
uint64_t fresh_trace_number() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1);
}
class TraceScope {
 public:
  explicit TraceScope(const std::source_location& where) : outer_(innermost_trace()) {
    innermost_trace() = {&where, fresh_trace_number()};
  }
  ~TraceScope() { innermost_trace() = outer_; }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  InnermostTrace outer_;
};

// A Contiguous around the body of a precompiled call: memory, unless the value has invalid
// elements, which memory could not hold. Whether it has is known once the calls around it are
// inlined too.
UOp settled(const UOp& graph) {
  PartlyInvalid invalid;
  return transform_graph(graph, [&](const UOp&, const UOp& node) {
    const bool asks = node.is(Mark::UnlessInvalid);
    const UOp& value = asks ? node.src(0) : node;
    const UOp out = asks && !invalid.contains(value) ? contiguous(value) : value;
    invalid.visit(out);
    return out;
  });
}

UOp in_memory(const UOp& value) {
  return UOp::make(Op::Contiguous, {value}, MarkArg{Mark::UnlessInvalid});
}

// What only repeats elements stays outside of the memory. What is memory stays itself: the body may
// hold what stores into it.
UOp argument_in_memory(const UOp& value) {
  const UOp& base = strip_after(value);
  if (base.is(Op::Buffer) || is_private_copy(base)) return value;
  if (value.is(Op::Expand)) return expand(argument_in_memory(value.src(0)), value.src(1));
  const OpMask memory = mask_of(Op::Buffer) | mask_of(Op::Param);
  return (value.node()->ops_below & memory) == 0 ? value : in_memory(value);
}

UOp body_of(const UOp& call, int64_t index) {
  const UOp& body = call.src(0);
  const auto arguments = call.src().subspan(1);
  // Memory on both sides makes the kernels of equal Functions equal, so they are compiled once.
  const bool precompile = resolve_of(call) == Resolve::Precompile;
  const Substitution variables = variables_from(body, arguments);
  Substitution bind;
  for (const auto& [slot, param] : params_of(body)) {
    const UOp& argument = arguments[static_cast<size_t>(slot)];
    bind.emplace(with_variables(param, variables),
                 precompile ? argument_in_memory(argument) : argument);
  }
  const UOp value =
      substitute(with_variables(body.src(static_cast<size_t>(index)), variables), bind);
  return precompile ? in_memory(value) : value;
}

// Whether a node stands for something outside of a body that is being traced: memory, a Param of a
// trace around this one, a leaf with an identity of its own.
bool is_outside(const UOp& u) {
  const bool traced = u.is(Op::Param) && u.as<BufferArg>().kind == ParamKind::Traced;
  return traced || u.is(Op::Buffer) || u.is(Mark::Leaf);
}

// Whether a body copies to a device that it names.
bool names_devices(const UOp& body) {
  const NodeList order = toposort(body);
  return std::any_of(order.begin(), order.end(),
                     [](const UOp& u) { return u.is(Op::Load) && u.as<LoadArg>().device; });
}

// An effect, a call's results together and an index can be no argument.
bool can_be_argument(const UOp& u) { return u.dtype() != DType::Void && u.dtype() != DType::Index; }

// What a body reads from outside, each value as large as can be: whoever holds one may ask for the
// gradient with respect to it (amendment C33).
std::vector<UOp> captured_values(const UOp& body, const std::vector<UOp>& own) {
  const NodeList order = toposort_outside_bodies(body);
  std::unordered_set<UOp> inside(own.begin(), own.end()), reading, listed;
  auto look = [&] {
    for (const UOp& u : order) {
      bool computed = u == body, reads = is_outside(u);
      for (const UOp& s : u.src()) {
        computed = computed || inside.contains(s);
        reads = reads || reading.contains(s);
      }
      if (computed) inside.insert(u);
      if (reads) reading.insert(u);
    }
  };
  look();
  const size_t known = inside.size();
  // A copy that the body writes to is made anew each time that it runs.
  for (const UOp& u : order)
    if (u.is(Op::After) && inside.contains(u) && is_private_copy(strip_after(u)))
      inside.insert(strip_after(u));
  if (inside.size() > known) look();
  // What can be no argument is computed where it is used.
  for (size_t k = order.size(); k-- > 0;)
    if (inside.contains(order[k]))
      for (const UOp& s : order[k].src())
        if (reading.contains(s) && !can_be_argument(s)) inside.insert(s);
  std::vector<UOp> out;
  for (const UOp& u : order) {
    if (!inside.contains(u)) continue;
    for (size_t i = 0; i < u.src().size(); ++i) {
      UOp value = u.src(i);
      if ((u.is(Op::Store) || u.is(Op::After)) && i == 0)  // stays a view of its memory
        while (is_movement(value.op())) value = value.src(0);
      if (reading.contains(value) && !inside.contains(value) && listed.insert(value).second)
        out.push_back(value);
    }
  }
  return out;
}

}  // namespace

OutsideOfTraces::OutsideOfTraces() : traced_(std::exchange(innermost_trace().where, nullptr)) {}
OutsideOfTraces::~OutsideOfTraces() { innermost_trace().where = traced_; }

bool is_tracing() { return innermost_trace().where != nullptr; }
uint64_t trace_number() { return innermost_trace().number; }

void require_made_in(uint64_t trace, std::string_view action) {
  const InnermostTrace& now = innermost_trace();
  KOINE_REQUIRE(now.where == nullptr || now.number == trace, Value,
                "{}, which was made outside of the function traced at {}:{}: that describes its "
                "results and changes nothing: return the new value, and assign it behind the call",
                action, now.where->file_name(), now.where->line());
}

void require_no_trace(std::string_view action) {
  const std::source_location* where = innermost_trace().where;
  KOINE_REQUIRE(where == nullptr, Value,
                "{} inside of the function traced at {}:{}: a traced function describes its result "
                "and runs later; compute this value before, or make it an argument",
                action, where->file_name(), where->line());
}

Traced trace_function(const std::function<std::vector<UOp>(const std::vector<UOp>&)>& trace,
                      const std::vector<UOp>& arguments, std::source_location where) {
  std::vector<UOp> inputs;
  for (const UOp& argument : arguments) inputs.push_back(traced_param(argument));
  const TraceScope scope(where);
  const OutsideOfMethods apart;
  const UOp body = tuple(trace(inputs));
  // What the body captures becomes arguments after the given ones. A body that copies between
  // devices says where its arguments lie: their gradients go back there.
  const bool copies = names_devices(body);
  Substitution closed;
  auto close = [&](const UOp& value) {
    const auto slot = static_cast<int64_t>(closed.size());
    closed.emplace(value, copies ? param_for(slot, value) : argument_param(slot, value));
  };
  for (const UOp& own : inputs) close(own);
  Traced out;
  out.stand_ins = closed;
  for (const UOp& value : captured_values(body, inputs)) {
    close(value);
    out.captured.push_back(value);
  }
  out.body = substitute(body, closed);
  return out;
}

std::vector<UOp> close_over(const std::vector<UOp>& values, const Substitution& stand_ins,
                            std::vector<UOp>& arguments) {
  auto captured_by = [](const UOp& body) {
    std::vector<UOp> own;
    for (const UOp& u : toposort_outside_bodies(body))
      if (u.is(Op::Param) && u.as<BufferArg>().kind == ParamKind::Argument) own.push_back(u);
    return captured_values(body, own);
  };
  UOp body = tuple(values);
  if (captured_by(body).empty()) return values;
  body = substitute(body, stand_ins);
  Substitution closed;
  for (const UOp& value : captured_by(body)) {
    closed.emplace(value, argument_param(static_cast<int64_t>(arguments.size()), value));
    arguments.push_back(value);
  }
  body = substitute(body, closed);
  return {body.src().begin(), body.src().end()};
}

std::vector<UOp> with_stand_ins(
    const std::vector<UOp>& values,
    const std::function<std::vector<UOp>(const std::vector<UOp>&)>& rule) {
  Substitution there, back;
  std::vector<UOp> given;
  for (const UOp& value : values) {
    given.push_back(value);
    if (!value || (value.node()->ops_below & mask_of(Op::Param)) == 0) continue;
    const auto [it, fresh] = there.try_emplace(value);
    if (fresh) back.emplace(it->second = traced_param(value), value);
    given.back() = it->second;
  }
  const OutsideOfMethods apart;
  std::vector<UOp> out = rule(given);
  for (UOp& made : out)
    if (made && !back.empty()) made = substitute(made, back);
  return out;
}

std::vector<UOp> with_stand_ins(
    const std::vector<UOp>& arguments, const std::vector<UOp>& results,
    const std::vector<UOp>& moved,
    const std::function<std::vector<UOp>(std::vector<UOp>, std::vector<UOp>, std::vector<UOp>)>&
        rule) {
  std::vector<UOp> values = arguments;
  values.insert(values.end(), results.begin(), results.end());
  values.insert(values.end(), moved.begin(), moved.end());
  return with_stand_ins(values, [&](const std::vector<UOp>& all) {
    const auto first_result = all.begin() + std::ssize(arguments);
    const auto first_moved = first_result + std::ssize(results);
    return rule({all.begin(), first_result}, {first_result, first_moved}, {first_moved, all.end()});
  });
}

UOp make_function(const std::function<std::vector<UOp>(const std::vector<UOp>&)>& trace,
                  const std::vector<UOp>& arguments, Resolve how, std::source_location where) {
  std::vector<UOp> distinct;
  std::vector<size_t> which;
  for (const UOp& argument : arguments) {
    which.push_back(static_cast<size_t>(std::find(distinct.begin(), distinct.end(), argument) -
                                        distinct.begin()));
    if (which.back() == distinct.size()) distinct.push_back(argument);
  }
  auto of_all = [&](const std::vector<UOp>& params) {
    std::vector<UOp> inputs;
    for (const size_t k : which) inputs.push_back(params[k]);
    return trace(inputs);
  };
  Traced made = trace_function(of_all, distinct, where);
  distinct.insert(distinct.end(), made.captured.begin(), made.captured.end());
  return function(made.body, distinct, how);
}

UOp without_tuples(const UOp& graph) {
  if ((graph.node()->ops_below & mask_of(Op::GetTuple)) == 0) return graph;
  return transform_graph(graph, [](const UOp&, const UOp& node) {
    const bool packed = node.is(Op::GetTuple) && node.src(0).is(Op::Tuple);
    return packed ? node.src(0).src(static_cast<size_t>(node.as<int64_t>())) : node;
  });
}

UOp inline_functions(const UOp& graph) {
  bool precompiled = false;
  // Bodies and arguments come before their call, so those of nested calls are inlined by then.
  const UOp out = transform_graph(graph, [&](const UOp&, const UOp& node) -> UOp {
    if (!node.is(Op::GetTuple)) return node;
    const UOp& source = node.src(0);
    if (source.is(Op::Tuple)) return source.src(static_cast<size_t>(node.as<int64_t>()));
    if (!source.is(Op::Function)) return node;
    precompiled = precompiled || resolve_of(source) == Resolve::Precompile;
    return body_of(source, node.as<int64_t>());
  });
  return precompiled ? settled(out) : out;
}

UOp inline_storing_functions(const UOp& graph) {
  return bodies_store(graph) ? inline_functions(graph) : graph;
}

}  // namespace koine

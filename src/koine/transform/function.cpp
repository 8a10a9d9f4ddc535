#include "koine/transform/function.hpp"

#include <atomic>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

// Slots of Params that are being traced; disjoint from argument positions.
int64_t fresh_trace_slot() {
  static std::atomic<int64_t> next{int64_t{1} << 40};
  return next.fetch_add(1);
}

// Where the innermost function that this thread traces was asked for; null outside of traces.
const std::source_location*& innermost_trace() {
  static thread_local const std::source_location* where = nullptr;
  return where;
}
class TraceScope {
 public:
  explicit TraceScope(const std::source_location& where) : outer_(innermost_trace()) {
    innermost_trace() = &where;
  }
  ~TraceScope() { innermost_trace() = outer_; }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  const std::source_location* outer_;
};

bool is_slot(const UOp& u) { return u.is(Op::Param) && u.as<BufferArg>().name.empty(); }

UOp body_of(const UOp& call, int64_t index) {
  const UOp& body = call.src(0);
  // Memory on both sides makes the kernels of equal Functions equal, so they are compiled once.
  const bool precompile = resolve_of(call) == Resolve::Precompile;
  Substitution bind;
  for (const UOp& node : toposort(body)) {
    if (!is_slot(node)) continue;
    const int64_t slot = node.as<BufferArg>().slot;
    if (slot >= (int64_t{1} << 40)) continue;  // a tracing Param of an enclosing function
    KOINE_REQUIRE(slot >= 0 && slot + 1 < static_cast<int64_t>(call.src().size()), Value,
                  "Function: the body uses slot {}, the call gives {} arguments", slot,
                  call.src().size() - 1);
    const UOp& argument = call.src(static_cast<size_t>(slot) + 1);
    KOINE_REQUIRE(argument.shape() == node.shape() && argument.dtype() == node.dtype(), Value,
                  "Function: slot {} wants {} {}, the argument is {} {}", slot,
                  dtype_name(node.dtype()), shape_text(node), dtype_name(argument.dtype()),
                  shape_text(argument));
    bind.emplace(node, precompile ? contiguous(argument) : argument);
  }
  const UOp value = substitute(body.src(static_cast<size_t>(index)), bind);
  return precompile ? contiguous(value) : value;
}

}  // namespace

void require_no_trace(std::string_view action) {
  const std::source_location* where = innermost_trace();
  KOINE_REQUIRE(where == nullptr, Value,
                "{} inside of the function traced at {}:{}: a traced function describes its result "
                "and runs later; compute this value before, or make it an argument",
                action, where->file_name(), where->line());
}

UOp make_function(const std::function<std::vector<UOp>(const std::vector<UOp>&)>& trace,
                  const std::vector<UOp>& arguments, Resolve how, std::source_location where) {
  std::vector<UOp> distinct, traced;
  for (const UOp& argument : arguments) {
    size_t k = 0;
    while (k < distinct.size() && !(distinct[k] == argument)) ++k;
    if (k == distinct.size()) {
      distinct.push_back(argument);
      traced.push_back(
          param(fresh_trace_slot(), argument.shape(), argument.dtype(), argument.device()));
    }
  }
  std::vector<UOp> inputs;
  for (const UOp& argument : arguments)
    for (size_t k = 0; k < distinct.size(); ++k)
      if (distinct[k] == argument) {
        inputs.push_back(traced[k]);
        break;
      }
  const TraceScope scope(where);
  UOp body = tuple(trace(inputs));
  // Captured buffers become arguments after the given ones.
  std::vector<UOp> call_arguments = distinct;
  Substitution closed;
  for (size_t k = 0; k < traced.size(); ++k)
    closed.emplace(traced[k], param(static_cast<int64_t>(k), traced[k].shape(), traced[k].dtype()));
  for (const UOp& node : toposort(body))
    if (node.is(Op::Buffer)) {
      closed.emplace(
          node, param(static_cast<int64_t>(call_arguments.size()), node.shape(), node.dtype()));
      call_arguments.push_back(node);
    }
  return function(substitute(body, closed), call_arguments, how);
}

UOp inline_functions(const UOp& graph) {
  UOp current = graph;
  // Inlining a body may reveal GetTuples of inner Functions; nesting is finite.
  for (bool again = true; again;) {
    again = false;
    current = transform_graph(current, [&](const UOp&, const UOp& node) -> UOp {
      if (!node.is(Op::GetTuple)) return node;
      const UOp& source = node.src(0);
      if (source.is(Op::Tuple)) return source.src(static_cast<size_t>(node.as<int64_t>()));
      if (!source.is(Op::Function)) return node;
      again = true;
      return body_of(source, node.as<int64_t>());
    });
  }
  return current;
}

}  // namespace koine

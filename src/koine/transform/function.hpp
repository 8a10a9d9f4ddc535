#pragma once
#include <functional>
#include <source_location>
#include <string_view>
#include <vector>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine {

/// A function as a closed body, a Tuple: Params of slots 0, 1, ... stand for the arguments, those
/// behind them for the values that it captured.
struct Traced {
  UOp body;
  std::vector<UOp> captured;
  Substitution stand_ins;  ///< what stood for the arguments while it was traced, and their Params
};
/// Calls `trace` with a fresh Param for each argument, of which only dtype, shape and place count.
Traced trace_function(const std::function<std::vector<UOp>(const std::vector<UOp>&)>& trace,
                      const std::vector<UOp>& arguments,
                      std::source_location where = std::source_location::current());

/// Calls `trace` with fresh Params shaped like `arguments` (amendment C33: values are never
/// substituted afterwards) and wraps the values it returns in Function(Tuple(body), arguments).
/// Equal arguments share one Param (row F1). Buffers that the body captures are lifted into further
/// arguments, so bodies are closed.
/// A trace describes values and looks at none: allocating or realizing inside of it is an error
/// that names the line of this call (row F2).
UOp make_function(const std::function<std::vector<UOp>(const std::vector<UOp>&)>& trace,
                  const std::vector<UOp>& arguments, Resolve how = Resolve::Substitute,
                  std::source_location where = std::source_location::current());

/// Values of the body of a traced function, with what they hold from outside: what a rule of the
/// user's captured that was asked after the trace. Its own stand-ins become its Params, the
/// rest further arguments, which are added.
std::vector<UOp> close_over(const std::vector<UOp>& values, const Substitution& stand_ins,
                            std::vector<UOp>& arguments);

/// What a rule of the user's gives for these values (null ones stay). A function that it traces has
/// Params of slots from 0 on, as the body that the values are in may have, so Params of no such
/// slots stand for the values while it runs.
std::vector<UOp> with_stand_ins(
    const std::vector<UOp>& values,
    const std::function<std::vector<UOp>(const std::vector<UOp>&)>& rule);
/// The same of a rule that is given arguments, results, and what is moved along either.
std::vector<UOp> with_stand_ins(
    const std::vector<UOp>& arguments, const std::vector<UOp>& results,
    const std::vector<UOp>& moved,
    const std::function<std::vector<UOp>(std::vector<UOp> arguments, std::vector<UOp> results,
                                         std::vector<UOp> moved)>& rule);

/// Whether this thread is tracing a function.
bool is_tracing();
/// A number that each trace has for its own; 0 outside of traces.
uint64_t trace_number();
/// Throws Error (Value) where this thread traces another function than the one of that number, in
/// which something was made that `action` would change.
void require_made_in(uint64_t trace, std::string_view action);
/// Throws Error (Value) when it is; `action` is what was asked for.
void require_no_trace(std::string_view action);

/// While one lives, this thread is in no trace. Memory that is made then is captured by the trace
/// around it, as what was there before is: the state that random numbers follow from (amendment
/// C36).
class OutsideOfTraces {
 public:
  OutsideOfTraces();
  ~OutsideOfTraces();
  OutsideOfTraces(const OutsideOfTraces&) = delete;
  OutsideOfTraces& operator=(const OutsideOfTraces&) = delete;

 private:
  const std::source_location* traced_;
};

/// The graph where a GetTuple of a Tuple is that element.
UOp without_tuples(const UOp& graph);

/// Replaces each GetTuple of a Function by its body with Params substituted (row F4); arguments and
/// results of a precompiled one are memory, unless some of their elements are invalid. Substitution
/// is simultaneous and never enters a nested body.
UOp inline_functions(const UOp& graph);
/// The same where a body stores: into a copy of its own, which then gets memory where the graph
/// runs. Other graphs stay as they are.
UOp inline_storing_functions(const UOp& graph);

}  // namespace koine

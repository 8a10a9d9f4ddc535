// Graphs of values, as Tensors make them, and the programs that Callify makes of them.
#include <absl/container/flat_hash_set.h>

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/loop.hpp"
#include "koine/ir/validity.hpp"
#include "koine/rules/flat_kernel.hpp"
#include "koine/verify/demand.hpp"

namespace koine {
namespace {

bool is_callable(const UOp& body) {
  if (body.is(Op::Sink)) return !find_violation(flat_kernel(body).ast, VerifyLevel::Kernel);
  if (is_loop(body))
    return std::none_of(body.src().begin(), body.src().end(), [](const UOp& function) {
      return function.is(Op::Tuple) && find_violation(function, VerifyLevel::Tensor);
    });
  return body.is(Op::CustomFunction) && !body.src().empty() &&
         std::all_of(body.src().begin(), body.src().end(),
                     [](const UOp& r) { return r.is(Op::Param) && !is_variable(r); });
}

const std::vector<Demand>& value_part() {
  static const auto& part = *new const std::vector<Demand>{
      {group_ops({GroupOp::Codegen}) & ~ops({Op::CustomFunction, Op::Program, Op::Source}),
       "no codegen op stands in a tensor graph", [](const UOp&, const Facts&) { return itself; }},
      {ops({Op::Linear, Op::Range, Op::End}), "Linear, Range and End belong to kernels",
       [](const UOp&, const Facts&) { return itself; }},
      {ops({Op::Param}), "a named Param is a scalar of index between two constants",
       [](const UOp& u, const Facts&) {
         return unless(u.as<BufferArg>().name.empty() || is_bounded_variable(u));
       }},
      {ops({Op::Param}), "a Param without a name has a shape and no bounds",
       [](const UOp& u, const Facts&) {
         return unless(!u.as<BufferArg>().name.empty() || u.src().size() <= 1);
       }},
      {ops({Op::Param}), "the base of a view is a value here",
       [](const UOp& u, const Facts&) {
         return unless(u.as<BufferArg>().kind != ParamKind::ViewBase);
       }},
      {ops({Op::Param, Op::Buffer, Op::Reshape, Op::Expand, Op::Pad, Op::Shrink}),
       "sizes are at least 0",
       [](const UOp& u, const Facts&) {
         if (u.is_scalar()) return fine;
         const int shape = u.is(Op::Param) || u.is(Op::Buffer)     ? 0
                           : u.is(Op::Reshape) || u.is(Op::Expand) ? 1
                                                                   : 2;
         return first_source(u.shape(), 0, [](const UOp& s) { return s.bounds().low < 0; }) == fine
                    ? fine
                    : shape;
       }},
      {ops({Op::Reduce}), "the axes of a Reduce are distinct, and it starts from no value",
       [](const UOp& u, const Facts&) {
         if (start_of(u) || u.as<ReduceArg>().goes_on) return itself;
         Ints axes = u.as<ReduceArg>().axes;
         std::sort(axes.begin(), axes.end());
         return unless(std::adjacent_find(axes.begin(), axes.end()) == axes.end());
       }},
      {ops({Op::After}), "an After shows memory, which holds no indices",
       [](const UOp& u, const Facts&) { return unless(u.src(0).dtype() != DType::Index, 0); }},
      {ops({Op::Store}), "a Store writes a value, not Invalid",
       [](const UOp& u, const Facts&) { return unless(!is_invalid(u.src(1)), 1); }},
      {ops({Op::Call}),
       "the body of a Call is a kernel, a CustomFunction that lists its results, or a loop",
       [](const UOp& u, const Facts&) { return unless(is_callable(u.src(0)), 0); }},
      {ops({Op::Sink, Op::Group}), "holds effects",
       [](const UOp& u, const Facts&) {
         return first_source(u, 0, [](const UOp& s) {
           return !s.is(Op::Store) && !s.is(Op::After) && !s.is(Op::Group);
         });
       }},
  };
  return part;
}

}  // namespace

const Demands& tensor_demands() {
  static const auto& demands = *new const Demands{value_part()};
  return demands;
}

const Demands& program_demands() {
  static const auto& demands = *new const Demands{
      value_part(),
      {{ops({Op::Buffer}), "a program's memory is in its Params",
        [](const UOp&, const Facts&) { return itself; }},
       {ops({Op::Param}), "the Params of a program are its arguments, by slot, and Variables",
        [](const UOp& u, const Facts&) {
          return unless(is_variable(u) || (is_argument_param(u) && u.as<BufferArg>().slot >= 0));
        }},
       {ops({Op::Contiguous, Op::Detach}), "no node of a program has a number of its own",
        [](const UOp& u, const Facts&) {
          const MarkArg* mark = std::get_if<MarkArg>(&u.arg());
          return unless(mark == nullptr || !is_numbered(mark->mark));
        }},
       {ops({Op::Function, Op::Tuple}), "Functions are inlined",
        [](const UOp&, const Facts&) { return itself; }},
       {ops({Op::Call}), "the arguments of a Call are in memory", [](const UOp& u, const Facts&) {
          return first_source(u, 1, [](const UOp& s) { return !lies_in_memory(s); });
        }}}};
  return demands;
}

const Demands& memory_demands() {
  static const auto& demands = *new const Demands{
      value_part(),
      {{ops({Op::Sink}), "a program with memory holds Afters",
        [](const UOp& u, const Facts&) {
          return first_source(u, 0, [](const UOp& s) { return !s.is(Op::After); });
        }},
       {ops({Op::Function, Op::Tuple}), "Functions are inlined",
        [](const UOp&, const Facts&) { return itself; }},
       {ops({Op::Fence}), "a Fence is an After of memory",
        [](const UOp&, const Facts&) { return itself; }},
       {ops({Op::After}), "memory for a result of a Call waits for the Store of that result alone",
        [](const UOp& u, const Facts&) {
          return first_source(u, 1, [&](const UOp& effect) {
            const std::vector<UOp> stores = stores_in(effect);
            const bool of_call = std::any_of(stores.begin(), stores.end(),
                                             [](const UOp& s) { return is_call_result(s.src(1)); });
            return of_call && (u.src().size() != 2 || effect != stores[0]);
          });
        }},
       {ops({Op::Pad, Op::Const}), "every element is valid",
        [](const UOp& u, const Facts&) { return unless(!brings_invalid(u)); }},
       {~ops({Op::Store}), "what asks for memory has a Buffer", [](const UOp& u, const Facts&) {
          return first_source(u, u.is(Op::Call) ? 1 : 0,
                              [](const UOp& s) { return asks_for_buffer(s); });
        }}}};
  return demands;
}

// A program's Stores fill memory that it finds empty: what overwrites a state is an After, whose
// order with the readers of that state follows from the graph.
std::optional<Violation> check_program(const UOp& sink, std::span<const UOp> nodes) {
  absl::flat_hash_set<const Node*> filled, overwriting;
  for (size_t i = 0; i < sink.src().size(); ++i) {
    const UOp& effect = sink.src(i);
    if (effect.is(Op::After)) {
      overwriting.insert(effect.node());
      continue;
    }
    if (!effect.is(Op::Store))
      return Violation{sink, static_cast<int>(i), "a program holds Stores and Afters"};
    const UOp& target = effect.src(0);
    if (!target.is(Op::Param) || !target.as<BufferArg>().name.empty() || effect.src().size() != 2)
      return Violation{effect, 0, "a Store of a program fills a Param, without a gate"};
    if (!filled.insert(target.node()).second)
      return Violation{effect, 0, "a program fills a Param once"};
    filled.insert(effect.node());  // nor does an After wait for that
  }
  for (const UOp& u : nodes) {
    if (u == sink) continue;
    const size_t first = filled.contains(u.node()) ? 1 : 0;
    const int at = first_source(u, first, [&](const UOp& s) { return filled.contains(s.node()); });
    if (at != fine) return Violation{u, at, "nothing else uses a Param that the program fills"};
    if (u.is(Op::After) && !overwriting.contains(u.node()))
      return Violation{u, -1, "a program names every After below it: their Stores all run"};
    if (u.is(Op::Sink)) return Violation{u, -1, "the Sink is the root"};
  }
  return check_names(nodes, VerifyLevel::Program);
}

}  // namespace koine

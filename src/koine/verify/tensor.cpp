// Graphs of values, as Tensors make them, and the programs that Callify makes of them.
#include <absl/container/flat_hash_set.h>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/verify/demand.hpp"

namespace koine {
namespace {

const std::vector<Demand>& value_part() {
  static const std::vector<Demand> part = {
      {group_ops({GroupOp::Codegen}) & ~ops({Op::CustomFunction, Op::Program, Op::Source}),
       "no codegen op stands in a tensor graph", [](const UOp&, const Facts&) { return itself; }},
      {ops({Op::Linear, Op::Range, Op::End}), "Linear, Range and End belong to kernels",
       [](const UOp&, const Facts&) { return itself; }},
      {ops({Op::Param}), "a named Param is a scalar of index between two constants",
       [](const UOp& u, const Facts&) {
         return unless(u.as<BufferArg>().name.empty() || is_bounded_variable(u));
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
      {ops({Op::Reduce}), "the axes of a Reduce are distinct",
       [](const UOp& u, const Facts&) {
         Ints axes = u.as<ReduceArg>().axes;
         std::sort(axes.begin(), axes.end());
         return unless(std::adjacent_find(axes.begin(), axes.end()) == axes.end());
       }},
      {ops({Op::Store}), "a Store writes a value, not Invalid",
       [](const UOp& u, const Facts&) { return unless(!is_invalid(u.src(1)), 1); }},
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
  static const Demands demands{value_part()};
  return demands;
}

const Demands& program_demands() {
  static const Demands demands{
      value_part(),
      {{ops({Op::Buffer}), "a program's memory is in its Params",
        [](const UOp&, const Facts&) { return itself; }},
       {ops({Op::Function, Op::Tuple, Op::GetTuple}), "Functions are inlined",
        [](const UOp&, const Facts&) { return itself; }}}};
  return demands;
}

std::optional<Violation> check_values(const UOp&) { return std::nullopt; }

}  // namespace koine

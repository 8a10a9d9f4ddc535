// Every rule of the verifier: a graph that breaks it, and what is said: the op, the source, the
// rule.
#include "koine/verify/verify.hpp"

#include <set>

#include "check.hpp"
#include "koine/engine/engine.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/effects.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/heuristic.hpp"
#include "koine/lower/optimize.hpp"
#include "koine/lower/pipeline.hpp"
#include "koine/runtime/cpu/cpu.hpp"
#include "koine/verify/demand.hpp"

namespace koine::test {
namespace {

using Nodes = std::vector<UOp>;

UOp memory(int64_t slot, int64_t n = 8, DType dtype = DType::Float32) {
  return param(slot, shape_of({n}), dtype);
}
UOp buffer(AddrSpace space, const UOp& shape, int64_t slot = 0) {
  return UOp::make(Op::Buffer, {shape}, BufferArg{slot, DType::Float32, {}, space});
}
UOp loop(int64_t id = 0, int64_t n = 8, AxisType type = AxisType::Loop) {
  return range(id, index_const(n), type);
}
UOp one() { return constant(DType::Float32, 1); }
UOp element(const UOp& at, int64_t slot = 1) { return load(index(memory(slot), {at})); }
// Sink(End(Store(out[r], value), r)).
UOp kernel(const UOp& value, const UOp& r = loop()) {
  return sink(Nodes{end(store(index(memory(0), {r}), value), Nodes{r})});
}
UOp numbers(int64_t n) {
  Nodes list;
  for (int64_t i = 0; i < n; ++i) list.push_back(index_const(i));
  return stack(list);
}
UOp spread(const UOp& v, int64_t n) { return expand(reshape(v, shape_of({1})), shape_of({n})); }
UOp four() { return load(index(memory(1), {numbers(4)})); }  // a vector of 4 lanes
UOp selected(const UOp& value) {
  return sink(Nodes{store(index(memory(0), {numbers(value.sizes()[0])}), value)});
}
UOp linear(const Nodes& instructions) { return UOp::make(Op::Linear, instructions); }
UOp close(const UOp& r) { return end(UOp::make(Op::Group, {}), Nodes{r}); }

struct Case {
  VerifyLevel level;
  UOp graph;
  Op op;
  int source;
  std::string rule;
};

std::vector<Case> value_cases() {
  const auto tensor = VerifyLevel::Tensor, program = VerifyLevel::Program;
  const auto memory = VerifyLevel::Memory;
  const UOp x = leaf({4}), p = param(0, shape_of({4}), DType::Float32);
  const UOp q = param(1, shape_of({4}), DType::Float32);
  const UOp scalar = leaf({});
  const UOp backwards = UOp::make(Op::Param, {shape_of({}), index_const(3), index_const(1)},
                                  BufferArg{0, DType::Index, {}, AddrSpace::Global, "n"});
  const UOp local_variable = UOp::make(Op::Param, {shape_of({}), index_const(1), index_const(3)},
                                       BufferArg{0, DType::Index, {}, AddrSpace::Local, "n"});
  const UOp other = param(2, shape_of({4}), DType::Float32);
  const UOp body = tuple(Nodes{add(p, p)});
  const UOp r = loop(), i = loop(0, 4);
  const UOp stored = store(index(p, {i}), index(q, {i}));
  const UOp open = UOp::make(Op::Call, {sink(Nodes{stored}), x});
  const UOp lazy = UOp::make(Op::Call, {sink(Nodes{end(stored, Nodes{i})}), add(other, other)});
  const UOp kept = UOp::make(Op::Call, {sink(Nodes{end(stored, Nodes{i})}), other});
  return {
      {tensor, get_tuple(open, 0), Op::Call, 0, "the body of a Call is a kernel"},
      {program, sink(Nodes{store(p, get_tuple(lazy, 0))}), Op::Call, 1,
       "the arguments of a Call are in memory"},
      {tensor, UOp::make(Op::Barrier, {x}), Op::Barrier, -1, "no codegen op"},
      {tensor, add(x, cast(r, DType::Float32)), Op::Range, -1, "belong to kernels"},
      {tensor, reduce_ranges(Op::Add, x, Nodes{range(0, variable("n", 1, 4), AxisType::Reduce)}),
       Op::Range, -1, "belong to kernels"},
      {tensor, UOp::make(Op::Reduce, {x}, ReduceArg{Op::Add, {0, 0}}), Op::Reduce, -1, "distinct"},
      {tensor, reduce(Op::Add, x, {0}, reduce(Op::Max, x, {0})), Op::Reduce, -1,
       "starts from no value"},
      {tensor, after(scalar, {store(scalar, invalid(DType::Float32))}), Op::Store, 1,
       "not Invalid"},
      {tensor, add(backwards, index_const(1)), Op::Param, -1, "between two constants"},
      {tensor,
       add(UOp::make(Op::Param, {shape_of({}), index_const(1), index_const(3)},
                     BufferArg{0, DType::Index}),
           index_const(1)),
       Op::Param, -1, "a shape and no bounds"},
      {tensor, neg(view_base(x)), Op::Param, -1, "the base of a view is a value"},
      {tensor, UOp::make(Op::Reduce, {x}, ReduceArg{Op::Add, {0}, true}), Op::Reduce, -1,
       "starts from no value"},
      {program, sink(Nodes{store(p, neg(traced_param(x)))}), Op::Param, -1,
       "arguments, by slot, and Variables"},
      {program, sink(Nodes{store(p, neg(param(-1, shape_of({4}), DType::Float32)))}), Op::Param, -1,
       "arguments, by slot, and Variables"},
      {program, sink(Nodes{store(p, neg(private_copy(q)))}), Op::Contiguous, -1, "its own"},
      {program, sink(Nodes{store(p, neg(UOp::make(Op::Detach, {q}, MarkArg{Mark::Leaf, 0})))}),
       Op::Detach, -1, "its own"},
      {tensor, expand(reshape(one(), shape_of({1})), shape_of({-4})), Op::Expand, 1, "at least 0"},
      {tensor, UOp::make(Op::Buffer, {shape_of({-4})}, BufferArg{7, DType::Float32, Device("CPU")}),
       Op::Buffer, 0, "at least 0"},
      {tensor, group(Nodes{x}), Op::Group, 0, "holds effects"},
      {tensor, add(local_variable, index_const(1)), Op::Param, -1, "between two constants"},
      {program, store(p, p), Op::Store, -1, "a program is a Sink"},
      {program, sink(Nodes{store(p, x)}), Op::Buffer, -1, "in its Params"},
      {program, sink(Nodes{store(p, get_tuple(function(body, Nodes{p}), 0))}), Op::Tuple, -1,
       "inlined"},
      // Kernels that wait for each other, a fold in place, and stores without an order.
      {program, sink(Nodes{store(p, mul(q, q)), store(q, add(p, p))}), Op::Mul, 0,
       "nothing else uses a Param that the program fills"},
      {program, sink(Nodes{store(p, flip(p, {1}))}), Op::Flip, 0,
       "nothing else uses a Param that the program fills"},
      {program, sink(Nodes{store(p, p)}), Op::Store, 1,
       "nothing else uses a Param that the program fills"},
      {program, sink(Nodes{store(p, q), after(q, {store(p, q)})}), Op::After, 1,
       "nothing else uses a Param that the program fills"},
      {program, sink(Nodes{store(p, q), store(p, add(q, q))}), Op::Store, 0, "fills a Param once"},
      {program,
       sink(Nodes{store(shrink(p, shape_of({1}), shape_of({2})),
                        shrink(q, shape_of({0}), shape_of({2})))}),
       Op::Store, 0, "fills a Param, without a gate"},
      {program, sink(Nodes{UOp::make(Op::Store, {p, q, constant_bool(false)})}), Op::Store, 0,
       "fills a Param, without a gate"},
      // A reader that waits for a Store which nobody asked for.
      {program, sink(Nodes{store(q, after(p, {store(after(p, {store(p, other)}), other)}))}),
       Op::After, -1, "names every After"},
      {program, sink(Nodes{after(shape_of({}), {store(p, q)})}), Op::After, 0, "holds no indices"},
      {program, sink(Nodes{group(Nodes{store(p, q)})}), Op::Sink, 0, "holds Stores and Afters"},
      {program,
       sink(Nodes{store(q, p), store(param(2, shape_of({3}), DType::Float32),
                                     param(0, shape_of({3}), DType::Float32))}),
       Op::Param, -1, "two nodes are slot 0"},
      {memory, sink(Nodes{store(p, q)}), Op::Sink, 0, "holds Afters"},
      {memory,
       sink(Nodes{after(p, {store(p, UOp::make(Op::Pad, {shrink(q, shape_of({0}), shape_of({2})),
                                                         shape_of({1}), shape_of({4})}))})}),
       Op::Pad, -1, "every element is valid"},
      {memory, sink(Nodes{after(p, {store(p, add(contiguous(add(q, q)), q))})}), Op::Add, 0,
       "what asks for memory has a Buffer"},
      {memory, sink(Nodes{after(p, {store(p, get_tuple(function(body, Nodes{q}), 0))})}), Op::Tuple,
       -1, "inlined"},
      {memory, sink(Nodes{after(p, {UOp::make(Op::Fence, {q, p})})}), Op::Fence, -1, "of memory"},
      {memory, sink(Nodes{after(p, {store(p, get_tuple(kept, 0)), store(q, other)})}), Op::After, 1,
       "waits for the Store of that result alone"},
      {memory, sink(Nodes{after(p, {group(Nodes{store(p, get_tuple(kept, 0))})})}), Op::After, 1,
       "waits for the Store of that result alone"},
      {memory,
       sink(
           Nodes{after(q, {store(q, p)}), after(param(0, shape_of({3}), DType::Float32),
                                                {store(param(0, shape_of({3}), DType::Float32),
                                                       param(2, shape_of({3}), DType::Float32))})}),
       Op::Param, -1, "two nodes are slot 0"},
  };
}

std::vector<Case> kernel_cases() {
  const auto k = VerifyLevel::Kernel;
  const UOp r = loop(), at = index(memory(0), {r});
  const UOp folded = loop(1, 8, AxisType::Reduce), narrow = loop(1, 4, AxisType::Unroll);
  const UOp unroll = loop(1, 16384, AxisType::Unroll), lanes = loop(2, 4, AxisType::GroupReduce);
  auto named = [](const char* name, const Nodes& src) {
    return UOp::make(Op::Param, src, BufferArg{0, DType::Index, {}, AddrSpace::Global, name});
  };
  auto with_variable = [&](const UOp& v) { return kernel(cast(v, DType::Float32)); };
  auto with_range = [&](const UOp& s) {
    return kernel(reduce_ranges(Op::Add, element(s), Nodes{s}));
  };
  const UOp special = UOp::make(Op::Special, {index_const(4)}, std::string("thread"));
  return {
      {k, close(r), Op::End, -1, "a program is a Sink"},
      {k, kernel(load(index(permute(memory(1), {0}), {r}))), Op::Permute, -1, "no tensor-level op"},
      {k, kernel(cast(special, DType::Float32)), Op::Special, -1, "no op of later stages"},
      {k, sink(Nodes{store(index(memory(0), {numbers(4)}), load(index(memory(1), {numbers(4)})))}),
       Op::Index, -1, "every value in a kernel is a scalar"},
      {k, kernel(UOp::make(Op::Reduce, {element(r)}, ReduceArg{Op::Add, {}})), Op::Reduce, -1,
       "a Reduce goes over Ranges"},
      {k, kernel(reduce_ranges(Op::Add, element(folded), Nodes{folded, folded})), Op::Reduce, 1,
       "a Reduce goes over Ranges"},
      {k, kernel(reduce_ranges(Op::Add, element(loop()), Nodes{loop()})), Op::Reduce, 1,
       "a Reduce goes over Ranges of reductions"},
      {k,
       kernel(reduce_ranges(Op::Add, element(folded),
                            Nodes{folded, range(2, folded, AxisType::Reduce)})),
       Op::Reduce, 2, "none bounding another"},
      {k,
       kernel(cast(reduce_ranges(Op::Add, load(index(memory(1, 8, DType::Float16), {narrow})),
                                 Nodes{narrow}),
                   DType::Float32)),
       Op::Reduce, 1, "narrow floats over loops"},
      {k, kernel(UOp::make(Op::Add, {one(), element(r)}, {}, 1)), Op::Add, -1, "has no tag"},
      {k, kernel(reduce_ranges(Op::Add, element(folded), Nodes{folded}, element(folded))),
       Op::Reduce, 2, "from a value outside of them"},
      {k,
       kernel(UOp::make(Op::Reduce, {element(folded), folded},
                        ReduceArg{Op::Add, {}, false, "software_16x16x16_f16"})),
       Op::Reduce, -1, "the sum of what it multiplies, along its axes"},
      {k,
       kernel(UOp::make(Op::Reduce, {element(narrow), narrow},
                        ReduceArg{Op::Max, {}, false, "software_16x16x16_f16"})),
       Op::Reduce, -1, "a Reduce on a tensor core"},
      {k, with_range(loop(1, 4, AxisType::Warp)), Op::Reduce, 1, "a Reduce goes over Ranges"},
      // Memory.
      {k, kernel(load(index(memory(-1), {r}))), Op::Param, -1, "a Param is an argument"},
      {k, kernel(load(index(memory(1 << 16), {r}))), Op::Param, -1, "a Param is an argument"},
      {k, kernel(load(index(traced_param(leaf({8})), {r}))), Op::Param, -1,
       "a Param is an argument"},
      {k, kernel(UOp::make(Op::Reduce, {element(folded), folded}, ReduceArg{Op::Add, {}, true})),
       Op::Reduce, -1, "a Reduce goes over Ranges"},
      {k, kernel(load(index(memory(INT64_MAX), {r}))), Op::Param, -1, "a Param is an argument"},
      {k, kernel(load(index(memory(1, -5), {r}))), Op::Param, 0, "a Param is an argument"},
      {k, with_variable(named("two words", {shape_of({}), index_const(0), index_const(3)})),
       Op::Param, -1, "a named scalar"},
      {k, with_variable(named("n", {shape_of({})})), Op::Param, -1, "a named scalar"},
      {k, kernel(load(index(buffer(AddrSpace::Global, shape_of({8})), {r}))), Op::Buffer, -1,
       "a Buffer of a kernel"},
      {k, kernel(load(buffer(AddrSpace::Reg, shape_of({})))), Op::Buffer, -1, "registers come"},
      {k, kernel(load(index(buffer(AddrSpace::Local, shape_of({1 << 20})), {r}))), Op::Buffer, 0,
       "at most 256 KiB"},
      {k, with_range(range(-1, index_const(8), AxisType::Reduce)), Op::Range, -1, "a Range goes"},
      {k, with_range(loop(1, -2, AxisType::Reduce)), Op::Range, 0, "a bound of at least 0"},
      {k, with_range(loop(1, 1000000000, AxisType::Unroll)), Op::Range, 0, "at most 16384"},
      {k, with_range(range(1, variable("n", 1, 8), AxisType::Upcast)), Op::Range, 0, "a constant"},
      {k, with_range(loop(1, 1 << 20, AxisType::Thread)), Op::Range, 0, "65536"},
      {k, with_range(range(1, add(loop(0, 4, AxisType::Unroll), index_const(1)), AxisType::Reduce)),
       Op::Range, 0, "that no number of what becomes shape decides"},
      {k, with_range(loop(1, 8, AxisType::Lane)), Op::Range, -1, "the number of a lane"},
      {k, kernel(load(one())), Op::Load, 0, "a Load reads an element"},
      {k,
       kernel(UOp::make(Op::Load, {index(memory(1), {r})},
                        LoadArg{Device("CPU:1"), AddrSpace::Global})),
       Op::Load, -1, "a Load reads an element"},
      {k, sink(Nodes{store(add(one(), one()), one())}), Op::Store, 0, "a Store writes"},
      {k, sink(Nodes{end(store(at, invalid(DType::Float32)), Nodes{r})}), Op::Store, 1,
       "no store writes Invalid"},
      {k, kernel(load(index(index(param(1, shape_of({2, 8}), DType::Float32), {r}), {r}))),
       Op::Param, -1, "a Param is an argument, memory of one axis"},
      {k, kernel(load(index(param(1, stack(Nodes{r}), DType::Float32), {r}))), Op::Param, 0,
       "memory of one axis of one size"},
      {k, kernel(load(index(memory(1), {cast(r, DType::Int32)}))), Op::Index, 1,
       "an Index is the place"},
      {k, kernel(load(index(element(r), Nodes{}))), Op::Index, 0, "an Index is the place"},
      {k, kernel(add(element(r), index(memory(2), {r}))), Op::Add, 1, "are no values"},
      {k, kernel(load(index(memory(1), {r}), index(memory(2), {r}), constant_bool(true))), Op::Load,
       1, "are no values"},
      // Effects.
      {k, sink(Nodes{element(index_const(0))}), Op::Sink, 0, "holds Stores"},
      {k, sink(Nodes{group(Nodes{element(index_const(0))})}), Op::Group, 0, "holds Stores"},
      {k, sink(Nodes{end(element(r), Nodes{r})}), Op::End, 0, "an End closes"},
      {k, sink(Nodes{end(store(at, one()), Nodes{r, r})}), Op::End, 1, "each once"},
      {k, kernel(load(index(after(element(r), Nodes{r}), Nodes{}))), Op::After, 0,
       "an After orders"},
      {k, kernel(load(index(after(memory(1), Nodes{one()}), {r}))), Op::After, 1,
       "an After orders"},
      {k, kernel(load(index(after(memory(1), Nodes{unroll}), {r}))), Op::After, 1,
       "which are no lanes"},
      // The kernel as a whole.
      {k, sink(Nodes{store(at, one())}), Op::Sink, -1, "every Range is closed"},
      {k, sink(Nodes{sink(Nodes{})}), Op::Sink, 0, "holds Stores"},
      {k, kernel(reduce_ranges(Op::Add, element(add(unroll, lanes)), Nodes{unroll, lanes})),
       Op::Range, 0, "make at most 16384"},
      {k, kernel(add(element(r), load(index(memory(1, 9), {r})))), Op::Param, -1,
       "two nodes are slot 1"},
      // The argument of a program is not that of its kernel.
      {k,
       kernel(add(element(r),
                  load(index(param(1, shape_of({8}), DType::Float32, Device("CPU")), {r})))),
       Op::Param, -1, "two nodes are slot 1"},
      {k, with_range(loop(0, 3, AxisType::Reduce)), Op::Range, -1, "two nodes are Range 0"},
      {k, kernel(cast(add(variable("n", 0, 3), variable("n", 0, 4)), DType::Float32)), Op::Param,
       -1, "two nodes are Variable n"},
  };
}

std::vector<Case> shaped_cases() {
  const auto s = VerifyLevel::Shaped;
  const UOp wide = load(index(memory(1), {reshape(numbers(4), shape_of({1, 4}))}));
  auto stored = [&](const UOp& value) {
    return sink(Nodes{store(
        index(memory(0), {expand(reshape(numbers(4), shape_of({1, 4})), value.shape())}), value)});
  };
  const UOp pair = load(index(memory(1), {reshape(numbers(2), shape_of({1, 2}))}));
  const UOp r = loop(1, 4, AxisType::Upcast);
  return {
      {s, stored(permute(wide, {0, 1})), Op::Permute, -1, "only ops of kernels"},
      {s, kernel(reduce_ranges(Op::Add, element(r), Nodes{r})), Op::Range, -1,
       "are shape or threads"},
      {s,
       sink(Nodes{store(index(memory(0), {numbers(4)}), four()),
                  store(index(memory(0), {reshape(numbers(4), shape_of({1, 4}))}), wide)}),
       Op::Index, -1, "has the axes that all have"},
      {s, stored(expand(wide, shape_of({5000, 4}))), Op::Expand, -1, "at most 16384 elements"},
      {s,
       stored(load(index(memory(1), {reshape(stack(Nodes{index_const(0), index_const(2),
                                                         index_const(1), index_const(3)}),
                                             shape_of({1, 4}))}))),
       Op::Reshape, 0, "a Reshape counts"},
      {s,
       sink(
           Nodes{store(index(memory(0, 8, DType::Float64), {reshape(numbers(1), shape_of({1, 1}))}),
                       bitcast(pair, DType::Float64))}),
       Op::Bitcast, 0, "keeps the size"},
      {s,
       sink(Nodes{store(index(memory(0), {stack(Nodes{index_const(0)})}),
                        load(index(memory(1), {stack(Nodes{index_const(2)})})))}),
       Op::Index, 1, "a Stack is a shape"},
      {s, stored(UOp::make(Op::Reduce, {wide}, ReduceArg{Op::Add, {}})), Op::Reduce, -1,
       "goes over axes"},
      {s,
       kernel(cast(UOp::make(Op::Special, {index_const(1 << 20)}, std::string("thread")),
                   DType::Float32)),
       Op::Special, 0, "the number of a thread"},
      {s,
       kernel(cast(UOp::make(Op::Special, {index_const(4)}, std::string("group")), DType::Float32)),
       Op::Special, -1, "the number of a thread"},
      {s, stored(UOp::make(Op::Wmma, {wide, wide, wide}, WmmaArg{"nobody"})), Op::Wmma, -1,
       "a Wmma is of a tensor core"},
      {s,
       stored(UOp::make(Op::Wmma, {wide, wide, wide}, WmmaArg{"x86_vdpbf16ps", {0}, {0, 1}, {1}})),
       Op::Wmma, 0, "whose elements are axes of its sources"},
      {s,
       sink(Nodes{UOp::make(Op::AtomicAdd, {index(memory(0, 8, DType::Int8), {index_const(0)}),
                                            constant_int(DType::Int8, 1)})}),
       Op::AtomicAdd, 1, "of 32 or 64 bits"},
  };
}

std::vector<Case> vector_cases() {
  const auto v = VerifyLevel::Selected;
  const UOp n = variable("n", 1, 4), r = loop();
  const UOp skewed = stack(Nodes{index_const(0), index_const(2)});
  const UOp whole = cast(r, DType::Int32), closed = constant_bool(false);
  auto vector_load = [](const UOp& alt, const UOp& gate) {
    return load(index(memory(1), {numbers(4)}), alt, gate);
  };
  return {
      {v, selected(flip(four(), {1})), Op::Flip, -1, "only instructions and their order"},
      {v, selected(load(index(memory(1, 512), {numbers(300)}))), Op::Stack, -1,
       "at most 256 lanes"},
      {v,
       sink(Nodes{store(index(memory(0), {reshape(numbers(4), shape_of({2, 2}))}),
                        reshape(four(), shape_of({2, 2})))}),
       Op::Reshape, -1, "a scalar or a vector"},
      {v, selected(add(four(), one())), Op::Add, 1, "as many lanes"},
      {v, kernel(unary(Op::Exp2, element(r)), r), Op::Exp2, 0, "the target computes"},
      {v, kernel(cast(mulacc(whole, whole, whole), DType::Float32), r), Op::Mulacc, 0,
       "the target computes"},
      {v, kernel(cast(load(index(memory(1, 8, DType::Float16), {r})), DType::Float32), r),
       Op::Param, -1, "the target has the dtype"},
      {v, selected(load(index(memory(1), {skewed}))), Op::Load, 0, "contiguous"},
      {v, selected(vector_load(one(), closed)), Op::Load, 1, "as many lanes"},
      {v, selected(expand(stack(Nodes{one()}), shape_of({4}))), Op::Expand, 0, "spreads a scalar"},
      {v, kernel(reshape(stack(Nodes{one()}), shape_of({})), r), Op::Reshape, 0, "ready to spread"},
      {v, kernel(index(four(), {index_const(9)}), r), Op::Index, 1, "takes one lane"},
      {v, kernel(index(four(), {sub(n, index_const(1))}), r), Op::Index, 1, "takes one lane"},
      {v, selected(shrink(four(), stack(Nodes{sub(n, index_const(1))}), shape_of({1}))), Op::Shrink,
       1, "from a constant on"},
      {v, selected(UOp::make(Op::Wmma, {four(), four(), four()}, WmmaArg{"x86_vdpbf16ps"})),
       Op::Wmma, -1, "a Wmma is of a tensor core of the target"},
      {v, sink(Nodes{UOp::make(Op::AtomicAdd, {index(memory(0), {numbers(4)}), four()})}),
       Op::AtomicAdd, 0, "adds a scalar"},
  };
}

std::vector<Case> linear_cases() {
  const auto l = VerifyLevel::Linear;
  const UOp r = loop(0), s = loop(1), maybe = range(2, variable("n", 0, 8), AxisType::Loop);
  const UOp out = memory(0), in = memory(1), to = index(out, {r}), from = index(in, {r});
  const UOp value = load(from), written = store(to, value), v = maybe.src(0);
  const UOp acc = buffer(AddrSpace::Reg, shape_of({})), start = store(acc, one()), kept = load(acc);
  const UOp first = index(out, {index_const(0)});
  return {
      {l, sink(Nodes{}), Op::Sink, -1, "a linear program is a Linear"},
      {l, linear({reduce_ranges(Op::Add, value, Nodes{r})}), Op::Reduce, -1, "only instructions"},
      {l, linear({sink(Nodes{})}), Op::Sink, -1, "only instructions"},
      {l, linear({detach(one())}), Op::Detach, -1, "only instructions"},
      {l, linear({UOp::make(Op::If, {constant_bool(true)})}), Op::If, -1, "every loop is closed"},
      {l, linear({UOp::make(Op::If, {one()})}), Op::If, 0, "an If asks a bool"},
      {l, linear({add(spread(one(), 4), one())}), Op::Add, 1, "as many lanes"},
      {l, linear({store(first, invalid(DType::Float32))}), Op::Store, 1, "no store writes Invalid"},
      // Order.
      {l, linear({out, in, r, to, from, written, value, close(r)}), Op::Store, 1, "before uses"},
      {l, linear({out, r, to, in, value, from, written, close(r)}), Op::Load, 0, "before uses"},
      {l, linear({in, r, from, value, close(r), out, first, store(first, value)}), Op::Store, 1,
       "in the same loop or one around it"},
      {l, linear({out, out}), Op::Param, -1, "stands once"},
      {l, linear({shape_of({})}), Op::Stack, -1, "has lanes"},
      {l, linear({memory(INT64_MAX)}), Op::Param, -1, "a Param is an argument"},
      {l, linear({r, s, close(r), close(s)}), Op::End, -1, "loops and blocks nest"},
      {l, linear({close(r)}), Op::End, -1, "loops and blocks nest"},
      {l, linear({r, s, end(group(Nodes{}), Nodes{r, s})}), Op::End, -1, "loops and blocks nest"},
      {l, linear({UOp::make(Op::Endif, {UOp::make(Op::If, {constant_bool(true)})})}), Op::Endif, -1,
       "loops and blocks nest"},
      {l, linear({r}), Op::Range, -1, "every loop is closed"},
      {l, linear({in, index(in, {})}), Op::Index, 1, "one place in memory"},
      {l, linear({in, load(index(in, {})), index(in, {})}), Op::Load, 0, "is contiguous"},
      {l, linear({acc, kept, start}), Op::Load, 0, "stored before it is read"},
      {l, linear({v, acc, maybe, start, close(maybe), kept}), Op::Load, 0,
       "stored before it is read"},
      {l, linear({memory(0), memory(0, 9)}), Op::Param, -1, "two nodes are slot 0"},
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& part :
       {value_cases(), kernel_cases(), shaped_cases(), vector_cases(), linear_cases()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace

TEST(verify, every_rule_names_op_source_and_what_is_demanded) {
  const Target target = cpu_target("x86-64-v4", false);
  std::set<std::string> broken;
  int number = 0;
  for (const Case& c : all_cases()) {
    const auto violation = find_violation(c.graph, c.level, &target);
    const std::string where = fmt::format("case {}: {} in\n", number++, c.rule);
    ASSERT_TRUE(violation) << where << to_text(c.graph);
    broken.insert(violation->rule);
    EXPECT_EQ(op_name(violation->node.op()), op_name(c.op)) << where << violation_text(*violation);
    EXPECT_EQ(violation->source, c.source) << where << violation_text(*violation);
    EXPECT_NE(violation->rule.find(c.rule), std::string::npos)
        << where << violation_text(*violation);
    try {
      verify(c.graph, c.level, "the test", &target);
      ADD_FAILURE() << where << "was not refused";
    } catch (const VerifyError& e) {
      const std::string source = c.source < 0 ? ": " : fmt::format(", source {}: ", c.source);
      const std::string said = fmt::format("after the test: {}{}", op_name(c.op), source);
      EXPECT_NE(std::string(e.what()).find(said), std::string::npos) << e.what();
    }
  }
  for (const Demands* table :
       {&tensor_demands(), &program_demands(), &memory_demands(), &kernel_demands(),
        &shaped_demands(), &selected_demands(), &linear_demands()})
    for (const Demand& d : table->all())
      EXPECT_TRUE(broken.contains(d.rule)) << "no case breaks the rule: " << d.rule;
}

// Wrong numbers of sources are refused when the node is made, from text too.
TEST(verify, spec_H7_arity) {
  const std::string access =
      "%0 = Const[index 4]()\n%1 = Stack(%0)\n%2 = Param[0 float32 GLOBAL](%1)\n"
      "%3 = Const[index 0]()\n%4 = Index(%2, %3)\n%5 = Const[float32 7]()\n";
  expect_error([&] { (void)parse(access + "%6 = Load(%4, %5)\n"); }, {"Load", "alt and gate"});
  expect_error([&] { (void)parse(access + "%6 = Load(%4)\n"); }, {"Load", "address space"});
  expect_error([&] { (void)parse(access + "%6 = Add(%5)\n"); }, {"Add", "2 sources", "got 1"});
  expect_error([&] { (void)parse(access + "%6 = Add(%5, %5, %5)\n"); },
               {"Add: takes 2 sources, got 3"});
  expect_error([&] { (void)parse(access + "%6 = Const[float32 1](%5)\n"); },
               {"Const: takes 0 sources, got 1"});
  expect_error([&] { (void)parse(access + "%6 = Store(%4)\n"); },
               {"Store: takes 2 to 3 sources, got 1"});
  expect_error([&] { (void)parse(access + "%6 = After()\n"); },
               {"After: takes 1 or more sources, got 0"});
  expect_error([&] { (void)parse(access + "%6 = Const()\n"); }, {"Const", "needs a value"});
  expect_error(
      [&] { (void)parse("%0 = Stack()\n%1 = Stack(%0)\n%2 = Param[0 int8 GLOBAL](%1)\n"); },
      {"Param", "a Stack of index scalars", "with shape (1, 0)"});
  expect_error([&] { (void)parse(access + "%6 = Range[0 LOOP](%5)\n"); },
               {"Range", "bound", "index scalar", "float32"});
}

// What a number may be at most holds, and one more does not.
TEST(verify, limits_hold_at_their_number_and_no_further) {
  auto with_slot = [](int64_t slot) { return kernel(element(loop(), slot)); };
  auto unrolled = [](int64_t n) {
    const UOp r = loop(1, n, AxisType::Unroll);
    return kernel(reduce_ranges(Op::Add, element(r), Nodes{r}));
  };
  auto threaded = [](int64_t n) {
    const UOp r = loop(0, n, AxisType::Thread);
    return kernel(one(), r);
  };
  auto of_threads = [](int64_t n) {
    return kernel(
        cast(UOp::make(Op::Special, {index_const(n)}, std::string("thread")), DType::Float32));
  };
  auto with_local = [](int64_t n) {
    const UOp local = buffer(AddrSpace::Local, shape_of({n}));
    return kernel(load(index(local, {loop()})));
  };
  auto numbered = [](int64_t id) { return kernel(element(loop(id)), loop(id)); };
  struct Limit {
    const char* what;
    VerifyLevel level;
    std::function<UOp(int64_t)> make;
    int64_t most;
  };
  const auto k = VerifyLevel::Kernel, s = VerifyLevel::Shaped;
  for (const Limit& limit :
       std::vector<Limit>{{"slots", k, with_slot, (1 << 16) - 1},
                          {"UNROLL steps", k, unrolled, 1 << 14},
                          {"THREAD steps", k, threaded, 1 << 16},
                          {"numbers of threads", s, of_threads, 1 << 16},
                          {"elements of a LOCAL Buffer", k, with_local, 64 << 10},
                          {"ids of Ranges", k, numbered, (int64_t{1} << 40) - 1}}) {
    const auto at = find_violation(limit.make(limit.most), limit.level);
    EXPECT_FALSE(at) << limit.what << ": " << violation_text(*at);
    EXPECT_TRUE(find_violation(limit.make(limit.most + 1), limit.level)) << limit.what;
  }
}

// And the graphs of which the cases are variations break none.
// What nobody checked while it was built is checked when it is asked for.
TEST(verify, a_request_is_verified) {
  const UOp x = leaf({4});
  const UOp loop = range(0, index_const(4), AxisType::Loop);
  for (const UOp& bad : {add(x, cast(loop, DType::Float32)),
                         UOp::make(Op::Reduce, {x}, ReduceArg{Op::Add, {0, 0}})}) {
    try {
      (void)realize({bad});
      ADD_FAILURE() << to_text(bad);
    } catch (const VerifyError& e) {
      EXPECT_NE(std::string(e.what()).find("the request"), std::string::npos) << e.what();
    }
  }
}

TEST(verify, spec_amend_10_whole_programs_break_no_rule) {
  const Target target = cpu_target("x86-64-v2", false);
  for (const UOp& value : {Tensor(leaf({4, 64})).softmax().uop(), Tensor(leaf({64})).sum().uop(),
                           Tensor(leaf({3, 5}, DType::Float16)).exp2().uop()}) {
    EXPECT_FALSE(find_violation(value, VerifyLevel::Tensor));
    for (const Kernel& k : schedule({value}))
      (void)lower_kernel(k.ast, target, [&](std::string_view stage, const UOp& graph) {
        const auto violation = find_violation(graph, level_after(stage), &target);
        EXPECT_FALSE(violation) << stage << ": " << violation_text(*violation);
      });
  }
}

// Many reduces stand side by side in one kernel: their GROUP_REDUCE axes are not one value's, and
// their registers are numbered one after the other.
TEST(verify, many_reduces_of_one_kernel_break_no_rule) {
  const UOp narrow = leaf({31}, DType::UInt64), wide = leaf({1, 4096});
  std::vector<UOp> sums, products;
  for (int64_t k = 0; k < 9; ++k)
    sums.push_back(reduce(Op::Add, add(narrow, constant_int(DType::UInt64, k)), {0}));
  for (int64_t k = 0; k < 20; ++k)
    products.push_back(reduce(Op::Mul, add(wide, constant(DType::Float32, 0.25 * k)), {1}));
  Options o = options();
  o.verify = 2;
  for (const bool strict : {false, true}) {
    o.strict = strict;
    const OptionScope scope(o);
    expect_same_everywhere(stack(sums));
    expect_same_everywhere(stack(products));
  }
}

// A register that every turn of a loop stores is there after the loop; a loop that surely runs too.
// The verifier refuses them; whoever asks for a plan before gets one.
TEST(verify, loads_of_no_memory_have_no_plan) {
  const UOp r = loop(0, 127), vector = numbers(8);
  for (const UOp& address :
       {index(vector, {r}), one(), r, add(cast(r, DType::Float32), one()), element(r)}) {
    const UOp graph = kernel(
        cast(UOp::make(Op::Load, {address}, LoadArg{{}, AddrSpace::Reg}), DType::Float32), r);
    const auto violation = find_violation(graph, VerifyLevel::Kernel);
    ASSERT_TRUE(violation) << to_text(graph);
    EXPECT_NE(violation->rule, "") << to_text(graph);
    (void)choose_opts(graph, cpu_target());
    EXPECT_THROW((void)lower_kernel(graph, cpu_target()), VerifyError);
    (void)apply_opt(graph, {OptOp::Padto, 0, 8});
  }
}

// Only the sum of a spread scalar and the numbers of the lanes is a vector access.
TEST(verify, a_place_of_lanes_that_are_no_spread_scalar_is_not_contiguous) {
  const UOp start = stack(Nodes{index_const(5)});
  const UOp one = expand(start, shape_of({4})), known = spread(index_const(5), 4);
  EXPECT_FALSE(contiguous_access(index(memory(1), {add(one, numbers(4))})).yes);
  EXPECT_EQ(contiguous_access(index(memory(1), {add(known, numbers(4))})).base, index_const(5));
}

TEST(verify, registers_are_stored_in_loops_that_run) {
  const UOp r = loop(0), acc = buffer(AddrSpace::Reg, shape_of({}));
  const UOp start = store(acc, one());
  EXPECT_FALSE(find_violation(linear({acc, r, start, close(r), load(acc)}), VerifyLevel::Linear));
}

}  // namespace koine::test

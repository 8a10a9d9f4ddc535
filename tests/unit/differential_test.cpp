// KOINE_VERIFY=3: stages that are broken on purpose are found, named and shown on a small graph;
// stages that are not broken are left alone.
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <span>

#include "check.hpp"
#include "graphs.hpp"
#include "koine/differential/reduce.hpp"
#include "koine/differential/run.hpp"
#include "koine/engine/checks.hpp"
#include "koine/engine/executable.hpp"
#include "koine/interp/deviation.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/ir/text.hpp"
#include "koine/lower/expand.hpp"
#include "koine/lower/rangeify.hpp"
#include "koine/lower/schedule.hpp"
#include "koine/runtime/cpu/cpu.hpp"

namespace koine::test {
namespace {

using Values = std::vector<UOp>;

// --- programs ------------------------------------------------------------------------------------

UOp f32(double v) { return constant(DType::Float32, v); }

UOp matmul(const UOp& a, const UOp& b) {
  const int64_t m = a.sizes()[0], k = a.sizes()[1], n = b.sizes()[1];
  const UOp left = expand(reshape(a, shape_of({m, k, 1})), shape_of({m, k, n})),
            right = expand(reshape(b, shape_of({1, k, n})), shape_of({m, k, n}));
  return reshape(reduce(Op::Add, mul(left, right), {1}), shape_of({m, n}));
}

UOp row_sums(const UOp& x) { return reduce(Op::Add, x, {static_cast<int64_t>(x.rank()) - 1}); }

// Every kind of work that a stage has a case for, on small tensors.
std::vector<Values> programs() {
  const UOp x = leaf({6, 8}), y = leaf({6, 8}, DType::Float32, 1), square = leaf({8, 8});
  const UOp i = leaf({24}, DType::Int32), u = leaf({24}, DType::UInt8), cube = leaf({3, 4, 5});
  const UOp half = leaf({16}, DType::BFloat16), quarter = leaf({16}, DType::Float8E4M3);
  std::vector<Values> out;
  out.push_back({add(mul(x, f32(2)), y)});
  out.push_back({maximum(x, f32(0)), where(lt(x, y), x, y)});
  out.push_back({add(contiguous(mul(i, i)), contiguous(flip(i, {1})))});  // two temporaries
  out.push_back({maximum(x, y)});
  out.push_back({idiv(i, constant_int(DType::Int32, 3)), mod(i, constant_int(DType::Int32, 5))});
  out.push_back(
      {add(cast(u, DType::Int32), bit_xor(i, binary(Op::Shl, i, constant_int(DType::Int32, 2))))});
  out.push_back({add(permute(cube, {2, 0, 1}), f32(1))});
  out.push_back({mul(flip(x, {0, 1}), y)});
  out.push_back({pad(x, shape_of({1, 2}), shape_of({9, 11}), f32(7))});
  out.push_back({reduce(Op::Add, pad(x, shape_of({1, 2}), shape_of({9, 11})), {0})});
  out.push_back({add(reshape(shrink(x, shape_of({1, 0}), shape_of({4, 6})), shape_of({3, 8})),
                     leaf({8}, DType::Float32, 2))});
  out.push_back({row_sums(x), reduce(Op::Max, x, {0}), reduce(Op::Mul, y, {1})});
  out.push_back({reduce(Op::Add, leaf({4, 24}, DType::Int32, 3), {1})});
  out.push_back({matmul(square, leaf({8, 8}, DType::Float32, 4))});
  const UOp e = unary(Op::Exp2, x);
  out.push_back({fdiv(e, expand(row_sums(e), x.shape()))});
  out.push_back({unary(Op::Exp2, leaf({9})), unary(Op::Log2, leaf({9})), sine(leaf({9}))});
  out.push_back({add(half, half), mul(half, leaf({16}, DType::BFloat16, 5))});
  out.push_back({add(quarter, quarter)});
  // Loops that may not run at all.
  const UOp few = variable("few", 0, 4);
  const UOp none = shrink(leaf({4}), stack(Values{index_const(0)}), stack(Values{few}));
  out.push_back({reduce(Op::Max, none, {0}), reduce(Op::Add, mul(none, none), {0})});
  // Products of narrow floats that no bound holds for.
  out.push_back({reduce(Op::Mul, leaf({2, 3, 2}, DType::Float8E5M2), {0, 1})});
  // Sums of narrow floats and of equal numbers, and what a mask hides.
  out.push_back({reduce(Op::Add, half, {0}), reduce(Op::Mul, quarter, {0}),
                 reduce(Op::Add, leaf({3, 40}, DType::Float16), {1})});
  out.push_back({reduce(Op::Add, expand(reshape(f32(0.1), shape_of({1})), shape_of({7})), {0}),
                 reduce(Op::Add, expand(leaf({1}, DType::BFloat16), shape_of({14})), {0})});
  out.push_back({reduce(Op::Add, mul(x, cast(lt(y, f32(0)), DType::Float32)), {1})});
  const std::vector<int32_t> at{0, 2, 5, 1};
  const UOp where_to = buffer_from_host(shape_of({4}), DType::Int32, "CPU", at.data());
  out.push_back({index(x, {where_to})});
  out.push_back(
      {Tensor::zeros({6})
           .scatter_add(0, Tensor::from<int32_t>({0, 2, 5, 1}), Tensor::from<float>({1, 2, 3, 4}))
           .uop()});
  out.push_back({stack(Values{x, y})});
  const UOp first = contiguous(add(x, f32(1))), second = contiguous(mul(y, f32(3)));
  out.push_back({add(contiguous(mul(first, first)), contiguous(add(second, first)))});
  out.push_back({add(square, permute(square, {1, 0}))});
  out.push_back({(Tensor::arange(100) * Tensor(2)).uop()});
  // Sizes with several bindings.
  const UOp n = variable("n", 1, 6);
  const UOp rows =
      shrink(x, stack(Values{index_const(0), index_const(0)}), stack(Values{n, index_const(8)}));
  out.push_back({add(rows, f32(1)), reduce(Op::Add, rows, {0})});
  // A Function, an assignment that reads what it overwrites, and threads.
  const UOp p = param(0, x.shape(), DType::Float32);
  out.push_back({get_tuple(function(tuple(Values{mul(p, p)}), Values{add(x, y)}), 0)});
  const UOp old = leaf({6, 8}, DType::Float32, 6);
  out.push_back({after(old, {store(old, add(flip(old, {1, 0}), y))}), mul(y, f32(2))});
  out.push_back({mul(leaf({128, 128}), f32(3))});
  // A loop, whose functions are split into kernels later than the program around it.
  const Tensor looped = fori_loop(
      0, 3, [](const Tensor&, const Tensor& t) { return t * Tensor(2.0) + Tensor(1.0); },
      Tensor(add(x, f32(1))));
  out.push_back({mul(looped.uop(), y)});
  // Two buffers that one After stores into, and LOCAL memory.
  const UOp one = leaf({5}, DType::Int32, 7), other = leaf({5}, DType::Int32, 8);
  out.push_back({after(one, {group(Values{store(one, other), store(other, one)})})});
  out.push_back(
      {reshape(UOp::make(Op::Load, {leaf({6}, DType::Int32)}, LoadArg{{}, AddrSpace::Local}),
               shape_of({2, 3}))});
  return out;
}

// --- broken stages -------------------------------------------------------------------------------

struct Broken {
  const char* name;
  const char* stage;
  std::function<UOp(const UOp& node)> rule;        // one node, in one pass; null: no change
  std::function<UOp(const UOp& graph)> pass = {};  // the whole graph
};

UOp with(const UOp& node, size_t k, const UOp& source) {
  std::vector<UOp> src(node.src().begin(), node.src().end());
  src[k] = source;
  return with_sources(node, src);
}
UOp with_op(const UOp& node, Op op) { return UOp::make(op, node.src(), node.arg(), node.tag()); }
bool is_index(const UOp& u) { return u.dtype() == DType::Index; }
bool is_number(const UOp& u) { return u.is(Op::Const) && !is_invalid(u); }

StageChange changes_of(const Broken& broken) {
  return [&broken](std::string_view stage, const UOp& graph) {
    if (stage != broken.stage) return graph;
    if (broken.pass) return broken.pass(graph);
    return transform_graph(graph, [&](const UOp&, const UOp& node) {
      const UOp changed = broken.rule(node);
      return changed ? changed : node;
    });
  };
}

UOp permuted_backwards(const UOp& u) {
  if (!u.is(Op::Permute)) return {};
  std::vector<int64_t> inverse(u.rank());
  for (size_t k = 0; k < u.rank(); ++k)
    inverse[static_cast<size_t>(u.as<Ints>()[k])] = static_cast<int64_t>(k);
  const UOp other = permute(u.src(0), inverse);
  return other.shape() == u.shape() ? other : reshape(other, u.shape());
}

// A temporary at another place.
UOp moved(const UOp& u, int64_t offset) {
  if (!u.is(Op::Buffer) || u.as<BufferArg>().offset < 0) return {};
  BufferArg arg = u.as<BufferArg>();
  arg.offset = offset;
  return UOp::make(Op::Buffer, u.src(), arg);
}

UOp later_pad(const UOp& u) {
  if (!u.is(Op::Pad)) return {};
  std::vector<UOp> offsets;
  for (size_t k = 0; k < u.rank(); ++k)
    offsets.push_back(index_const(u.sizes()[k] - u.src(0).sizes()[k] - const_int(u.src(1).src(k))));
  return with(u, 1, stack(offsets));
}

bool is_register_store(const UOp& u) {
  return u.is(Op::Store) && is_register(accessed_buffer(u)) && !strip_after(u.src(0)).is(Op::Index);
}

// A constant over the shape of a value.
UOp filled_like(const UOp& value, int64_t number) {
  const UOp one = constant_int(value.dtype(), number);
  if (value.is_scalar()) return one;
  return expand(reshape(one, shape_of(std::vector<int64_t>(value.rank(), 1))), value.shape());
}

// Moves the store before a loop's beginning behind it.
UOp reset_in_loop(const UOp& linear) {
  Values list(linear.src().begin(), linear.src().end());
  for (size_t i = 1; i < list.size(); ++i)
    if (list[i].is(Op::Range) && is_register_store(list[i - 1])) std::swap(list[i], list[i - 1]);
  return UOp::make(Op::Linear, list);
}
UOp without_last_store(const UOp& linear) {
  Values list(linear.src().begin(), linear.src().end());
  for (size_t i = list.size(); i-- > 0;)
    if (list[i].is(Op::Store)) {
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  return UOp::make(Op::Linear, list);
}
// The last store of a loop happens behind it.
UOp close_early(const UOp& linear) {
  Values list(linear.src().begin(), linear.src().end());
  for (size_t i = 1; i < list.size(); ++i)
    if (list[i].is(Op::End) && list[i - 1].is(Op::Store)) std::swap(list[i], list[i - 1]);
  return UOp::make(Op::Linear, list);
}

// The first load behind a loop's beginning happens before it.
UOp hoist_load(const UOp& linear) {
  Values list(linear.src().begin(), linear.src().end());
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is(Op::Range)) continue;
    for (size_t k = i + 1; k < list.size(); ++k)
      if (list[k].is(Op::Load)) {
        std::rotate(list.begin() + static_cast<std::ptrdiff_t>(i),
                    list.begin() + static_cast<std::ptrdiff_t>(k),
                    list.begin() + static_cast<std::ptrdiff_t>(k) + 1);
        return UOp::make(Op::Linear, list);
      }
  }
  return linear;
}

// The kernels of a host program, each changed.
UOp in_kernels(const UOp& program, const std::function<UOp(const UOp& node)>& rule) {
  Values calls;
  for (const Kernel& k : kernels_of(program)) {
    const UOp ast = transform_graph(k.ast, [&](const UOp&, const UOp& node) {
      const UOp changed = k.ast.is(Op::Sink) ? rule(node) : UOp();
      return changed ? changed : node;
    });
    calls.push_back(ast == k.ast ? k.call
                                 : kernel_call(ast, k.buffers, k.reason, k.variables, k.waits));
  }
  return UOp::make(Op::Linear, calls);
}
std::function<UOp(const UOp&)> of_kernels(std::function<UOp(const UOp& node)> rule) {
  return [rule = std::move(rule)](const UOp& program) { return in_kernels(program, rule); };
}

// The first two launches the other way round.
UOp launched_too_early(const UOp& program) {
  Values calls(program.src().begin(), program.src().end());
  if (calls.size() > 1) std::swap(calls[0], calls[1]);
  return UOp::make(Op::Linear, calls);
}

// The last two arguments of a launch the other way round, where they are alike.
UOp launched_on_others(const UOp& program) {
  Values calls;
  for (const UOp& call : program.src()) {
    Values src(call.src().begin(), call.src().end());
    const size_t n = src.size();
    if (n > 3 && src[n - 1].shape() == src[n - 2].shape() &&
        src[n - 1].dtype() == src[n - 2].dtype())
      std::swap(src[n - 1], src[n - 2]);
    calls.push_back(with_sources(call, src));
  }
  return UOp::make(Op::Linear, calls);
}

UOp backwards(const UOp& value) { return flip(value, std::vector<int64_t>(value.rank(), 1)); }

std::vector<Broken> broken_graphs() {
  return {
      {"movement: the order of a Permute is its inverse", "callify", permuted_backwards},
      {"movement: a Flip is dropped", "callify",
       [](const UOp& u) { return u.is(Op::Flip) ? u.src(0) : UOp(); }},
      {"movement: a Pad's offset is counted from the other end", "callify", later_pad},
      {"forward: the larger of x and 0 is x", "callify",
       [](const UOp& u) { return u.is(Op::Max) && is_number(u.src(1)) ? u.src(0) : UOp(); }},
      {"validity: what a Pad fills in is 1", "decide",
       [](const UOp& u) {
         return u.is(Op::Where) && is_float(u.dtype()) && is_const(u.src(2), 0)
                    ? with(u, 2, filled_like(u.src(2), 1))
                    : UOp();
       }},
      {"decide: what gets memory is kept backwards", "decide",
       [](const UOp& u) {
         return u.is(Op::Contiguous) && u.rank() > 0 ? with(u, 0, backwards(u.src(0))) : UOp();
       }},
      {"decide: a row is filled with its mirror image", "decide",
       [](const UOp& u) {
         return u.is(Op::Load) && !u.is_scalar() ? with(u, 0, backwards(u.src(0))) : UOp();
       }},
      {"bufferize: memory is shown before it is filled", "bufferize",
       [](const UOp& u) {
         return u.is(Op::After) && u.src(0).is(Op::Buffer) && u.src(1).is(Op::Store)
                    ? after(u.src(0), {store(u.src(0), u.src(0))})
                    : UOp();
       }},
      {"bufferize: what a Store reads is taken for its value", "bufferize",
       [](const UOp& u) {
         return u.is(Op::Store) && u.src(1).is(Op::Mul) ? with(u, 1, u.src(1).src(0)) : UOp();
       }},
      {"split: a kernel reads what is not made yet", "split", {}, launched_too_early},
      {"split: a kernel gets the memory of another argument", "split", {}, launched_on_others},
      {"index: an axis is read along in both directions", "index", {}, of_kernels([](const UOp& u) {
         const bool reads = u.is(Op::Load) && is_address(u.src(0)) && u.src(0).ranges().size() == 2;
         if (!reads) return UOp();
         const UOp a = UOp::share(u.ranges()[0]), b = UOp::share(u.ranges()[1]);
         return a.src(0) == b.src(0) ? with(u, 0, substitute(u.src(0), {{a, b}, {b, a}})) : UOp();
       })},
      {"index: a place is inside where it is along one axis",
       "index",
       {},
       of_kernels([](const UOp& u) {
         return u.is(Op::And) && u.dtype() == DType::Bool ? UOp(u.src(0)) : UOp();
       })},
      {"merge: of several Stores the first value is stored",
       "merge",
       {},
       of_kernels([](const UOp& u) {
         if (!u.is(Op::Group) || u.src().size() < 2) return UOp();
         Values stores(u.src().begin(), u.src().end());
         for (UOp& s : stores)
           if (s.is(Op::Store) && s.src(1).dtype() == stores[0].src(1).dtype())
             s = with(s, 1, stores[0].src(1));
         return group(stores);
       })},
      {"merge: the last of several Stores is lost", "merge", {}, of_kernels([](const UOp& u) {
         if (!u.is(Op::Group) || u.src().size() < 2) return UOp();
         return group(Values(u.src().begin(), u.src().end() - 1));
       })},
      {"algebra: x * 2 is x + 1", "rangeify",
       [](const UOp& u) {
         return u.is(Op::Mul) && !is_index(u) && is_const(u.src(1), 2)
                    ? add(u.src(0), constant_int(u.dtype(), 1))
                    : UOp();
       }},
      {"algebra: a < b is not (b < a)", "rangeify",
       [](const UOp& u) {
         return u.is(Op::CmpLt) && !is_index(u.src(0)) ? logical_not(lt(u.src(1), u.src(0)))
                                                       : UOp();
       }},
      {"algebra: floor division truncates", "rangeify",
       [](const UOp& u) {
         if (!u.is(Op::Idiv) || u.dtype() != DType::Int32) return UOp();
         const UOp zero = constant_int(u.dtype(), 0);
         return where(lt(u.src(0), zero), sub(zero, idiv(sub(zero, u.src(0)), u.src(1))), u);
       }},
      {"index: a mod c is a mod (c - 1)", "rangeify",
       [](const UOp& u) {
         return u.is(Op::Mod) && is_index(u) && u.src(1).is(Op::Const)
                    ? mod(u.src(0), index_const(const_int(u.src(1)) - 1))
                    : UOp();
       }},
      {"index: a stride is one short", "rangeify",
       [](const UOp& u) {
         return u.is(Op::Mul) && is_index(u) && u.src(1).is(Op::Const) && const_int(u.src(1)) > 1
                    ? mul(u.src(0), index_const(const_int(u.src(1)) - 1))
                    : UOp();
       }},
      {"pad: the guard lets one more in", "rangeify",
       [](const UOp& u) {
         return u.is(Op::CmpLt) && is_index(u.src(0)) && u.src(1).is(Op::Const)
                    ? lt(u.src(0), index_const(const_int(u.src(1)) + 1))
                    : UOp();
       }},
      {"reduce: a fold leaves out its last element", "rangeify",
       [](const UOp& u) {
         return u.is(Op::Range) && u.as<RangeArg>().type == AxisType::Reduce
                    ? with(u, 0, index_const(const_int(u.src(0)) - 1))
                    : UOp();
       }},
      {"reduce: products are sums", "rangeify",
       [](const UOp& u) {
         return u.is(Op::Reduce) && u.as<ReduceArg>().op == Op::Mul
                    ? UOp::make(Op::Reduce, u.src(), ReduceArg{Op::Add, {}})
                    : UOp();
       }},
      {"scatter: what nothing falls into holds 1", "rangeify",
       [](const UOp& u) {
         return u.is(Op::Store) && is_number(u.src(1))
                    ? with(u, 1, constant_int(u.src(1).dtype(), 1))
                    : UOp();
       }},
      {"optimize: division and remainder of a merged axis change places", "optimize",
       [](const UOp& u) {
         return (u.is(Op::Idiv) || u.is(Op::Mod)) && is_index(u)
                    ? with_op(u, u.is(Op::Idiv) ? Op::Mod : Op::Idiv)
                    : UOp();
       }},
      {"optimize: a loop is one short", "optimize",
       [](const UOp& u) {
         return u.is(Op::Range) && u.src(0).is(Op::Const) && const_int(u.src(0)) > 1
                    ? with(u, 0, index_const(const_int(u.src(0)) - 1))
                    : UOp();
       }},
      {"optimize: the outer part of a split axis is not scaled", "optimize",
       [](const UOp& u) {
         return u.is(Op::Add) && is_index(u) && u.src(0).is(Op::Mul) &&
                        u.src(0).src(0).is(Op::Range)
                    ? add(u.src(0).src(0), u.src(1))
                    : UOp();
       }},
      {"optimize: what a Swap moves is stored under the old index", "optimize",
       [](const UOp& u) {
         if (!u.is(Op::Store) || u.ranges().size() != 2) return UOp();
         const UOp a = UOp::share(u.ranges()[0]), b = UOp::share(u.ranges()[1]);
         return with(u, 0, substitute(u.src(0), {{a, b}, {b, a}}));
       }},
      {"expand: an accumulator starts from 1", "expand",
       [](const UOp& u) {
         return is_register_store(u) && u.src(1).ranges().empty()
                    ? with(u, 1, filled_like(u.src(1), 1))
                    : UOp();
       }},
      {"expand: a fold is read before its loop", "expand",
       [](const UOp& u) {
         const bool result =
             u.is(Op::Load) && u.src(0).is(Op::After) && u.src(0).src(1).is(Op::End);
         return result ? load(u.src(0).src(0)) : UOp();
       }},
      {"expand: lane 1 computes what lane 0 does", "expand",
       [](const UOp& u) {
         return u.is(Op::Stack) && u.src().size() > 1 && is_const(u.src(0), 0) &&
                        is_const(u.src(1), 1)
                    ? with(u, 1, u.src(0))
                    : UOp();
       }},
      {"expand: an unrolled fold takes the larger", "expand",
       [](const UOp& u) {
         return u.is(Op::Reduce) && u.as<ReduceArg>().op == Op::Add
                    ? UOp::make(Op::Reduce, u.src(), ReduceArg{Op::Max, u.as<ReduceArg>().axes})
                    : UOp();
       }},
      {"decompositions: a coefficient of a polynomial is off", "select",
       [](const UOp& u) {
         if (!u.is(Op::Const) || u.dtype() != DType::Float32) return UOp();
         const double v = const_double(u);
         return std::isfinite(v) && v != std::trunc(v) ? f32(v * 1.001) : UOp();
       }},
      {"narrow floats: rounding cuts", "select",
       [](const UOp& u) {
         return u.is(Op::Const) && u.dtype() == DType::UInt32 && is_const(u, 0x7fff)
                    ? constant_int(u.dtype(), 0)
                    : UOp();
       }},
      {"gates: what a shut gate gives is 1", "select",
       [](const UOp& u) {
         return u.is(Op::Load) && u.src().size() == 3 ? with(u, 1, filled_like(u.src(1), 1))
                                                      : UOp();
       }},
      {"vectors: the halves of a vector are the same", "select",
       [](const UOp& u) {
         return u.is(Op::Index) && !is_address(u) && !is_const(u.src(1), 0)
                    ? with(u, 1, index_const(0))
                    : UOp();
       }},
      {"contraction: the product's second factor is the summand", "select",
       [](const UOp& u) {
         return u.is(Op::Mulacc) ? mulacc(u.src(0), u.src(2), u.src(1)) : UOp();
       }},
      {"linearize: an accumulator is reset in its loop", "linearize", {}, reset_in_loop},
      {"linearize: a store is left out", "linearize", {}, without_last_store},
      {"linearize: a loop closes before its store", "linearize", {}, close_early},
      {"linearize: a load leaves its loop", "linearize", {}, hoist_load},
      {"render: the larger is the sum", "render",
       [](const UOp& u) { return u.is(Op::Max) ? with_op(u, Op::Add) : UOp(); }},
      {"render: a comparison's sides change places", "render",
       [](const UOp& u) {
         return u.is(Op::CmpLt) && !is_index(u.src(0)) ? UOp::make(Op::CmpLt, {u.src(1), u.src(0)})
                                                       : UOp();
       }},
      {"plan: all temporaries lie at the front", "plan", [](const UOp& u) { return moved(u, 0); }},
      {"plan: temporaries overlap by their end", "plan",
       [](const UOp& u) {
         return u.is(Op::Buffer) ? moved(u, std::max<int64_t>(u.as<BufferArg>().offset - 64, 0))
                                 : UOp();
       }},
  };
}

// --- checking ------------------------------------------------------------------------------------

// What KOINE_VERIFY=3 says of a program; empty: nothing.
std::string verdict(const Values& values, const StageChange& changes) {
  Values destinations;
  for (const UOp& v : values)
    destinations.push_back(v.is(Op::After) ? UOp()
                                           : new_buffer(v.shape(), v.dtype(), Device("CPU")));
  try {
    const Callified made = callify(values, destinations);
    (void)check_callified(values, destinations, made, changes);
    (void)Executable(made.body, "CPU", changes);
  } catch (const InternalError& e) {
    const std::string text = e.what();
    if (text.find("KOINE_VERIFY=3") != text.npos) return text;  // others are for other tests
  }
  return "";
}

Options verified(bool strict) {
  Options o = options();
  o.strict = strict;
  o.verify = 3;
  return o;
}

int64_t reduced_nodes(const std::string& text) {
  const std::string mark = "reduced to ";
  const size_t at = text.find(mark);
  return at == text.npos ? -1 : std::stoll(text.substr(at + mark.size()));
}

// The graph of a message.
std::string reduced_text(const std::string& message) {
  const size_t mark = message.find("reduced to ");
  if (mark == message.npos) return "%0 = Sink()\n";
  const size_t from = message.find('\n', mark) + 1;
  return message.substr(from, message.find("its output:", from) - from);
}

}  // namespace

// Missing deviations are 0.
TEST(differential, numbers_without_deviations_are_equal_or_differ) {
  const auto outcome = [](float v, const std::vector<double>& deviations) {
    Storage s{param(0, shape_of({1}), DType::Float32), DType::Float32, {1}, {}, deviations};
    s.bytes.resize(4);
    std::memcpy(s.bytes.data(), &v, 4);
    Outcome out;
    out.after.memory.push_back(s);
    return out;
  };
  EXPECT_EQ(difference_of(outcome(1, {}), outcome(1, {})), "");
  EXPECT_NE(difference_of(outcome(1, {}), outcome(1.5, {})), "");
  EXPECT_NE(difference_of(outcome(0, {}), outcome(-0.0f, {})), "");
  EXPECT_EQ(difference_of(outcome(1, {0.5}), outcome(1.5, {})), "");
  EXPECT_EQ(difference_of(outcome(1, {}), outcome(1.5, {0.5})), "");
  EXPECT_NE(difference_of(outcome(1, {0.25}), outcome(1.5, {0.125})), "");
}

TEST(differential, stages_that_are_right_raise_no_alarm) {
  for (const bool strict : {true, false}) {
    const OptionScope scope(verified(strict));
    reset_counters();
    for (const Values& p : programs()) EXPECT_EQ(verdict(p, {}), "") << to_text(p[0]);
    EXPECT_GT(counters().checked_stages, 100);
    EXPECT_EQ(counters().unchecked_stages, 0);
  }
}

// A size that is bound is that number on both sides of every stage, and two sizes are two.
TEST(differential, a_program_of_bound_sizes_is_checked_with_their_values) {
  const Variable n("n", 1, 8), m("m", 1, 8);
  const Tensor x = Tensor::arange(64).cast(DType::Float32).reshape({8, 8}).realize();
  for (const bool strict : {true, false}) {
    const OptionScope scope(verified(strict));
    for (const int64_t rows : {3, 8}) {
      const int64_t columns = 9 - rows;
      clear_compile_cache();
      reset_counters();
      const Tensor part = x.shrink({{0, n.bind(rows)}, {0, m.bind(columns)}});
      const std::vector<float> sums = (part * 2).sum({1}).tolist<float>();
      ASSERT_EQ(sums.size(), static_cast<size_t>(rows));
      for (int64_t i = 0; i < rows; ++i)
        EXPECT_EQ(sums[static_cast<size_t>(i)],
                  static_cast<float>(16 * i * columns + columns * (columns - 1)));
      EXPECT_GE(counters().checked_stages, 10);
      EXPECT_EQ(counters().unchecked_stages, 0);
    }
  }
}

// A hand-made kernel adds up what none of its lanes, or only some of its axes, counts.
TEST(differential, a_value_without_the_lanes_it_is_folded_over_is_folded_over_all_of_them) {
  const UOp rows = range(0, index_const(3), AxisType::Loop),
            lanes = range(1, index_const(4), AxisType::Unroll),
            threads = range(2, index_const(2), AxisType::GroupReduce);
  const auto memory = [](int64_t slot) { return param(slot, shape_of({12}), DType::Float32); };
  const UOp alone = load(index(memory(1), {rows})),
            beside = load(index(memory(1), {add(mul(rows, index_const(4)), lanes)}));
  for (const UOp& value : {alone, beside})
    for (const std::vector<UOp>& folded :
         {std::vector<UOp>{lanes}, {lanes, threads}, {threads, lanes}}) {
      std::vector<UOp> src = folded;
      src.insert(src.begin(), value);
      const UOp sum = UOp::make(Op::Reduce, src, ReduceArg{Op::Add, {}});
      const UOp kernel = sink({end(store(index(memory(0), {rows}), sum), {rows})});
      const auto stage = [](const UOp& k) { return expand(k); };
      EXPECT_TRUE(
          check_stage({"expand", kernel, expand(kernel), Level::Kernel, Level::Kernel, stage}))
          << to_text(kernel);
    }
}

// A program with memory in it is run as well: what was never stored is no value.
TEST(differential, a_part_of_rangeify_that_is_wrong_is_found) {
  const UOp x = leaf({6, 8}), w = leaf({8, 8}, DType::Float32, 1);
  const UOp product = matmul(x, w), value = add(product, row_sums(product));
  const UOp out = UOp::make(Op::Buffer, {value.shape()}, BufferArg{77, DType::Float32, {}});
  const UOp decided = decided_program(sink({store(out, value)}));
  using Part = std::function<UOp(const UOp&)>;
  const auto check = [&](const Part& part) {
    StageCheck c{"bufferize", decided, part(decided), Level::Program, Level::Program, part};
    return check_stage(c);
  };
  const Part right = [](const UOp& p) { return bufferized_program(p); };
  const Part unwritten = [&](const UOp& p) {
    return transform_graph(right(p), [&](const UOp& original, const UOp& u) {
      const bool filled = original.is(Op::After) && u.src(0).is(Op::Buffer);
      return filled && u.src(0).as<BufferArg>().slot != 77 ? UOp(u.src(0)) : u;
    });
  };
  EXPECT_TRUE(check(right));
  try {
    check(unwritten);
    FAIL() << "nothing was noticed";
  } catch (const InternalError& e) {
    EXPECT_NE(std::string(e.what()).find("bufferize"), std::string::npos) << e.what();
  }
}

// Edits that the heuristic does not choose for work of this size.
TEST(differential, broken_edits_are_found_named_and_reduced) {
  const OptionScope scope(verified(false));
  const Values sum{reduce(Op::Add, leaf({14}), {0})};
  const Values product{mul(leaf({16, 8}), f32(3))}, row{add(leaf({14}), f32(1))};
  auto thread_0 = [](const UOp& u) { return u.is(Op::Special) ? index_const(0) : UOp(); };
  auto unmasked = [](const UOp& u) {
    if (u.is(Op::Load) && u.src().size() == 3) return load(u.src(0));
    return u.is(Op::Where) && !is_index(u) ? u.src(1) : UOp();
  };
  // Without its gate the store would repeat what the last element has.
  auto padding = [](const UOp& u) {
    const bool gated = u.is(Op::Store) && u.src().size() == 3;
    return gated ? store(u.src(0), u.src(1), logical_not(u.src(2))) : UOp();
  };
  struct Edit {
    Values values;
    std::vector<Opt> opts;
    Broken broken;
  };
  const std::vector<Edit> edits{
      {product,
       {{OptOp::Split, 0, 4, AxisType::Thread, true}},
       {"threads: all do the part of the first", "expand", thread_0}},
      {sum, {{OptOp::Padto, 0, 16}}, {"padto: what is padded is folded in", "optimize", unmasked}},
      {row, {{OptOp::Padto, 0, 16}}, {"padto: only what is padded is stored", "optimize", padding}},
  };
  for (const Edit& e : edits) {
    const UOp ast = schedule(e.values)[0].ast;
    EXPECT_EQ(lower_kernel(ast, generic_target(false), {}, &e.opts).checks.unchecked, 0);
    const StageChange changes = changes_of(e.broken);
    try {
      (void)lower_kernel(ast, generic_target(false), {}, &e.opts, changes);
      ADD_FAILURE() << e.broken.name << ": nothing was found";
    } catch (const InternalError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(std::string("stage ") + e.broken.stage), text.npos) << text;
      EXPECT_LE(reduced_nodes(text), 10) << e.broken.name << ":\n" << text;
    }
  }
}

TEST(differential, realize_checks_what_it_compiles_and_nothing_twice) {
  const OptionScope scope(verified(false));
  const Tensor x = Tensor::arange(64).cast(DType::Float32).realize();
  clear_compile_cache();
  reset_counters();
  EXPECT_EQ((x * x + Tensor(1.0)).sum().item(), 85408);
  const int64_t checked = counters().checked_stages;
  EXPECT_GE(checked, 9);  // callify, decide, bufferize, rangeify, plan, kernel stages, render
  EXPECT_EQ(counters().unchecked_stages, 0);
  EXPECT_EQ((x * x + Tensor(1.0)).sum().item(), 85408);
  EXPECT_EQ(counters().checked_stages, checked);
  // At level 2 nothing is run.
  Options watched = options();
  watched.verify = 2;
  const OptionScope inner(watched);
  clear_compile_cache();
  EXPECT_EQ((x * x + Tensor(1.0)).sum().item(), 85408);
  EXPECT_EQ(counters().checked_stages, checked);
}

TEST(differential, large_kernels_are_counted_and_not_run) {
  const OptionScope scope(verified(false));
  reset_counters();
  EXPECT_EQ(verdict({add(leaf({600, 600}), f32(1))}, {}), "");
  EXPECT_EQ(counters().checked_stages, 0);
  EXPECT_GT(counters().unchecked_stages, 5);
}

TEST(differential, random_graphs_raise_no_alarm) {
  const uint64_t seed = test_seed();
  reset_counters();
  for (int64_t i = 0; i < test_cases(200); ++i) {
    const OptionScope scope(verified(i % 2 == 0));
    std::mt19937_64 random(seed + static_cast<uint64_t>(i));
    const UOp graph = random_graph(random);
    EXPECT_EQ(verdict({graph}, {}), "") << "KOINE_TEST_SEED=" << seed + static_cast<uint64_t>(i);
  }
  EXPECT_GT(counters().checked_stages, 20 * counters().unchecked_stages);
}

// Every broken stage is found by some program, in the mode it belongs to, named, and shown on at
// most ten nodes.
TEST(differential, broken_stages_are_found_named_and_reduced) {
  const std::vector<Values> all = programs();
  const std::vector<Broken> broken = broken_graphs();
  EXPECT_GE(broken.size(), 30u);
  // Of every stage, and of every part of Rangeify.
  std::set<std::string_view> stages;
  for (const Broken& b : broken) stages.insert(b.stage);
  for (const char* stage : {"callify", "decide", "bufferize", "index", "split", "merge", "rangeify",
                            "optimize", "expand", "select", "linearize", "plan", "render"})
    EXPECT_TRUE(stages.contains(stage)) << stage;
  for (const Broken& b : broken) {
    const StageChange changes = changes_of(b);
    std::string found;
    for (const bool strict : {true, false}) {
      Options how = verified(strict);
      if (host_runs("x86-64-v3")) how.cpu = "x86-64-v3";  // one width, whatever machine this is
      const OptionScope scope(how);
      for (size_t k = 0; k < all.size() && found.empty(); ++k) found = verdict(all[k], changes);
    }
    EXPECT_NE(found.find(std::string("stage ") + b.stage), std::string::npos) << b.name << ":\n"
                                                                              << found;
    EXPECT_LE(reduced_nodes(found), 10) << b.name << ":\n" << found;
    EXPECT_GE(reduced_nodes(found), 1) << b.name << ":\n" << found;
    EXPECT_EQ(graph_size(parse(reduced_text(found))), reduced_nodes(found)) << b.name;
    const bool has_inputs = found.find(" Param[") != found.npos;
    EXPECT_TRUE(!has_inputs || found.find("\n  slot ") != found.npos) << found;
    if (std::getenv("KOINE_TEST_SHOW") != nullptr)
      fmt::print("{}: {} nodes\n{}\n", b.name, reduced_nodes(found), found);
  }
}

// --- bounds --------------------------------------------------------------------------------------

TEST(deviation, folds_in_any_order_stay_within_the_bound) {
  std::mt19937_64 random(test_seed());
  for (int i = 0; i < 300; ++i) {
    const Op op = i % 3 == 0 ? Op::Mul : i % 3 == 1 ? Op::Add : Op::Max;
    const bool whole = i % 2 == 0;
    std::vector<Bits> values;
    for (int k = 0; k < 2 + i % 30; ++k)
      values.push_back(double_to_bits(
          DType::Float32, whole ? static_cast<double>(static_cast<int64_t>(random() % 3) - 1)
                                : std::ldexp(static_cast<double>(random() % 100001) - 5e4,
                                             static_cast<int>(random() % 20) - 25)));
    Fold fold(op, DType::Float32, {true, false});
    for (const Bits v : values) fold.add({v, 0, 0});
    const Deviating got = fold.result(true);
    const double value = bits_to_double(DType::Float32, got.bits);
    if (whole && op != Op::Max) {
      EXPECT_EQ(got.deviation, 0);
    }
    for (int order = 0; order < 20; ++order) {
      std::shuffle(values.begin(), values.end(), random);
      Fold other(op, DType::Float32, {});
      for (const Bits v : values) other.add({v, 0, 0});
      const double shuffled = bits_to_double(DType::Float32, other.result(true).bits);
      EXPECT_LE(std::abs(shuffled - value), got.deviation) << op_name(op);
    }
  }
}

// Every order and nesting of three numbers, zeros of both signs, infinities, NaN and the ends of
// the range among them: what comes out differently lies within the bound, or nothing is promised.
TEST(deviation, folds_of_three_special_numbers_in_every_order) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> corners{0,   -0.0f, 1,      -1,    0.1f,   3,      inf,    -inf,
                                   NAN, 3e38f, -3e38f, 2e19f, 1e-45f, 1e-30f, -1e-30f};
  int64_t promised = 0, all = 0;
  for (const Op op : {Op::Add, Op::Mul, Op::Max})
    for (const float a : corners)
      for (const float b : corners)
        for (const float c : corners) {
          Fold fold(op, DType::Float32, {true, false});
          std::vector<Bits> values;
          for (const float v : {a, b, c}) values.push_back(double_to_bits(DType::Float32, v));
          for (const Bits v : values) fold.add({v, 0, 0});
          const Deviating got = fold.result(false);
          auto both = [&](Bits x, Bits y) {
            return interpret_scalar(op, DType::Float32, DType::Float32, std::array{x, y});
          };
          const double value = bits_to_double(DType::Float32, got.bits);
          ++all;
          promised += got.deviation == 0 ? 1 : 0;
          std::vector<size_t> order{0, 1, 2};
          do {
            const Bits x = values[order[0]], y = values[order[1]], z = values[order[2]];
            for (const Bits other : {both(both(x, y), z), both(x, both(y, z))}) {
              const double seen = bits_to_double(DType::Float32, other);
              if (other == got.bits || (std::isnan(seen) && std::isnan(value))) continue;
              const bool finite = std::isfinite(seen) && std::isfinite(value);
              const double apart = finite ? std::abs(seen - value) : undetermined;
              ASSERT_TRUE(got.deviation > 0 && got.deviation >= apart)
                  << op_name(op) << " of " << a << ", " << b << ", " << c << ": " << seen
                  << " in another order, " << value << " +- " << got.deviation;
            }
          } while (std::ranges::next_permutation(order).found);
        }
  EXPECT_GT(promised * 10, all * 5) << "of those that no order changes most are known to be so";
}

TEST(deviation, a_bound_is_no_excuse_for_a_wrong_sum) {
  Fold fold(Op::Add, DType::Float32, {true, true});
  for (int k = 1; k <= 100; ++k) fold.add({double_to_bits(DType::Float32, 0.1 * k), 0, 0});
  const Deviating sum = fold.result(true);
  EXPECT_NEAR(bits_to_double(DType::Float32, sum.bits), 505, 1e-3);
  EXPECT_GT(sum.deviation, 0);
  EXPECT_LT(sum.deviation, 0.01);
}

TEST(deviation, overflow_in_one_order_leaves_a_sum_open) {
  const Bits big = double_to_bits(DType::Float32, 3e38),
             less = double_to_bits(DType::Float32, -3e38);
  Fold fold(Op::Add, DType::Float32, {true, false});
  for (const Bits v : {big, big, less}) fold.add({v, 0, 0});
  EXPECT_EQ(fold.result(true).deviation, undetermined);
  Fold nan(Op::Add, DType::Float32, {true, false});
  for (const double v : {1.0, std::nan(""), 2.0})
    nan.add({double_to_bits(DType::Float32, v), 0, 0});
  EXPECT_EQ(nan.result(true).deviation, 0);
}

// A report shows the inputs with which a stage differs.
TEST(differential, settings_as_text) {
  auto storage_of = [](int64_t slot, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), 1.5F);
    const auto bytes = std::as_bytes(std::span(values));
    return Storage{param(slot, shape_of({count}), DType::Float32),
                   DType::Float32,
                   {count},
                   {bytes.begin(), bytes.end()},
                   {}};
  };
  Setting setting;
  setting.variables = {{"n", 3}};
  setting.memory = {storage_of(2, 3), storage_of(0, 65)};
  std::string many;
  for (int i = 0; i < 64; ++i) many += fmt::format(" {}", 1.5 + i);
  EXPECT_EQ(setting_text(setting), "  n = 3\n  slot 2: float32 1.5 2.5 3.5\n  slot 0: float32" +
                                       many + " ... (65 elements)\n");
}

TEST(differential, outcomes_differ_beyond_their_deviation) {
  auto outcome = [](float value, double deviation) {
    Outcome out;
    const auto bytes = std::as_bytes(std::span(&value, 1));
    out.after.memory = {{param(0, shape_of({1}), DType::Float32),
                         DType::Float32,
                         {1},
                         {bytes.begin(), bytes.end()},
                         {deviation}}};
    return out;
  };
  auto differ = [&](float a, float b, double deviation) {
    const bool either = !difference_of(outcome(a, deviation), outcome(b, 0)).empty();
    EXPECT_EQ(either, !difference_of(outcome(b, 0), outcome(a, deviation)).empty());
    return either;
  };
  EXPECT_FALSE(differ(1, 1, 0));
  EXPECT_TRUE(differ(1, 1.5, 0.25));
  EXPECT_FALSE(differ(1, 1.5, 0.5));
  EXPECT_TRUE(differ(NAN, 1, 8));
  EXPECT_FALSE(differ(NAN, -NAN, 0));
  EXPECT_TRUE(differ(0.0F, -0.0F, 0));
  EXPECT_FALSE(differ(0.0F, -0.0F, 1e-30));
  EXPECT_TRUE(differ(INFINITY, -INFINITY, 8));
  EXPECT_FALSE(differ(NAN, 1, INFINITY)) << "nothing is known of it";
  Outcome failed = outcome(1, 0);
  failed.state = Outcome::State::Failed;
  failed.failure = "it reads out of bounds";
  EXPECT_EQ(difference_of(outcome(1, 0), failed), failed.failure);
}

}  // namespace koine::test

#include "broken_stages.hpp"

#include <algorithm>
#include <cmath>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/lower/schedule.hpp"

namespace koine::test {
namespace {

using Values = std::vector<UOp>;

UOp with(const UOp& node, size_t k, const UOp& source) {
  std::vector<UOp> src(node.src().begin(), node.src().end());
  src[k] = source;
  return with_sources(node, src);
}
UOp with_op(const UOp& node, Op op) { return UOp::make(op, node.src(), node.arg(), node.tag()); }
bool is_index(const UOp& u) { return u.dtype() == DType::Index; }
bool is_number(const UOp& u) { return u.is(Op::Const) && !is_invalid(u); }

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

}  // namespace

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
         return std::isfinite(v) && v != std::trunc(v) ? constant(DType::Float32, v * 1.001)
                                                       : UOp();
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

}  // namespace koine::test

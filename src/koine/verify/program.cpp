// Kernels: before and after Expand turns ranges into shape.
#include "koine/verify/program.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/ir/linear.hpp"
#include "koine/rules/wmma.hpp"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>

namespace koine {
namespace {

constexpr int64_t most_slots = 1 << 16;
constexpr int64_t most_range_ids = int64_t{1} << 40;
constexpr int64_t most_threads = 1 << 16;
constexpr int64_t most_pieces = 1 << 14;  // elements of one shaped value

bool is_effect(const UOp& u) {
  return u.is(Op::Store) || u.is(Op::End) || u.is(Op::Group) || u.is(Op::Barrier) ||
         u.is(Op::AtomicAdd);
}

bool is_concrete(const UOp& value) {
  if (!value.has_concrete_shape()) return false;
  const UOp shape = value.shape();
  return std::all_of(shape.src().begin(), shape.src().end(),
                     [](const UOp& size) { return const_int(size) >= 0; });
}

// Memory, a register, or the place of an element: no value.
bool is_location(const UOp& u) {
  const UOp& base = strip_after(u);
  return base.is(Op::Buffer) || (base.is(Op::Param) && base.as<BufferArg>().name.empty()) ||
         is_address(u);
}

// Whether ranges of this type become shape or a thread's number: their bounds are constants.
int64_t most_steps(AxisType type) {
  switch (type) {
    case AxisType::Upcast:
    case AxisType::Unroll:
    case AxisType::GroupReduce:
      return most_pieces;
    case AxisType::Thread:
      return most_threads;
    default:
      return INT64_MAX;
  }
}

int check_param(const UOp& u, const Facts&) {
  const BufferArg& p = u.as<BufferArg>();
  if (p.space != AddrSpace::Global) return itself;
  if (!p.name.empty()) return unless(is_bounded_variable(u));
  if (p.slot < 0 || p.slot >= most_slots || p.kind != ParamKind::Argument) return itself;
  if (u.src().size() != 1 || u.rank() != 1) return itself;
  return unless(u.src(0).ranges().empty() && (!u.has_concrete_shape() || is_concrete(u)), 0);
}

int check_buffer(const UOp& u, const Facts&) {
  const BufferArg& b = u.as<BufferArg>();
  if (b.space == AddrSpace::Global || b.slot < 0 || b.slot >= most_slots || !b.name.empty())
    return itself;
  if (!is_concrete(u)) return 0;
  if (b.space == AddrSpace::Reg) return fine;
  return unless(
      u.rank() == 1 && u.numel() > 0 && u.numel() * item_size(b.dtype) <= most_local_bytes, 0);
}

int check_range(const UOp& u, const Facts&) {
  const RangeArg& r = u.as<RangeArg>();
  if (r.id < 0 || r.id >= most_range_ids) return itself;
  const int64_t most = most_steps(r.type);
  for (const Node* around : u.src(0).ranges())
    if (most_steps(std::get<RangeArg>(around->arg).type) == most_pieces) return 0;
  if (most == INT64_MAX) return unless(!u.src(0).is(Op::Const) || const_int(u.src(0)) >= 0, 0);
  return unless(u.src(0).is(Op::Const) && const_int(u.src(0)) >= 1 && const_int(u.src(0)) <= most,
                0);
}

int check_load(const UOp& u, const Facts&) {
  if (!is_place(u.src(0))) return 0;
  if (u.src().size() == 2) return 1;
  const LoadArg* arg = std::get_if<LoadArg>(&u.arg());
  return unless(arg == nullptr || !arg->device);
}

int check_store(const UOp& u, const Facts&) {
  if (!is_place(u.src(0))) return 0;
  return unless(u.src().size() == 2 || u.src(0).is(Op::Index), 2);
}

int check_end(const UOp& u, const Facts&) {
  if (!is_effect(u.src(0))) return 0;
  return first_source(
      u, 1, [&](const UOp& r) { return std::count(u.src().begin() + 1, u.src().end(), r) != 1; });
}

int check_special(const UOp& u, const Facts&) {
  const std::string* name = std::get_if<std::string>(&u.arg());
  if (name == nullptr) return itself;
  const UOp& bound = u.src(0);
  for (size_t axis = 0; axis < 3; ++axis)  // of groups there are as many as Variables say
    if (*name == group_index_name(axis))
      return unless(bound.bounds().low >= 0 && bound.ranges().empty(), 0);
  const bool known = *name == "thread" || *name == index_in_group_name(0) ||
                     *name == index_in_group_name(1) || *name == index_in_group_name(2);
  if (!known) return itself;
  return unless(bound.is(Op::Const) && const_int(bound) >= 1 && const_int(bound) <= most_threads,
                0);
}

OpSet kernel_ops() {
  return group_ops({GroupOp::Unary, GroupOp::Binary, GroupOp::Ternary, GroupOp::Memory}) |
         ops({Op::Const, Op::Param, Op::Buffer, Op::Stack, Op::Index, Op::Bitcast, Op::Reduce,
              Op::Range, Op::End, Op::After, Op::Group, Op::Sink, Op::Barrier, Op::AtomicAdd,
              Op::Ins, Op::Custom});
}
OpSet shaped_ops() { return kernel_ops() | ops({Op::Reshape, Op::Expand, Op::Special, Op::Wmma}); }

// Values; not memory, shapes and effects.
OpSet value_ops() {
  return group_ops({GroupOp::Unary, GroupOp::Binary, GroupOp::Ternary}) |
         ops({Op::Index, Op::Bitcast, Op::Reduce, Op::Load, Op::Range, Op::Special, Op::Reshape,
              Op::Expand, Op::Wmma});
}

int same_bits(const UOp& u, const Facts&) {
  return unless(item_size(u.dtype()) == item_size(u.src(0).dtype()), 0);
}

int check_shape(const UOp& u, const Facts& facts) {
  if (u.is_scalar()) return fine;
  if (u.rank() != facts.rank || !is_concrete(u)) return itself;
  const int64_t last = u.sizes().back();
  if (last != 1 && last != facts.lanes) return itself;
  int64_t elements = 1;
  for (const int64_t size : u.sizes()) {
    if (size < 1 || size > most_pieces) return itself;
    elements *= size;
    if (elements > most_pieces) return itself;
  }
  return fine;
}

// The numbers 0, 1, ... along one axis, or a scalar as a value of one element.
int check_reshape(const UOp& u, const Facts&) {
  const UOp& from = u.src(0);
  const std::vector<int64_t> sizes = u.sizes();
  const auto wide = std::count_if(sizes.begin(), sizes.end(), [](int64_t s) { return s != 1; });
  if (from.is_scalar()) return fine;
  if (!from.is(Op::Stack) || from.dtype() != DType::Index || wide > 1) return 0;
  for (size_t i = 0; i < from.src().size(); ++i)
    if (!is_const(from.src(i), static_cast<int64_t>(i))) return 0;
  return fine;
}

int check_shaped_reduce(const UOp& u, const Facts&) {
  Ints axes = u.as<ReduceArg>().axes;
  if (!reduced_ranges(u).empty() || axes.empty() || is_small_float(u.dtype())) return itself;
  if (u.as<ReduceArg>().goes_on) return itself;
  std::sort(axes.begin(), axes.end());
  return unless(std::adjacent_find(axes.begin(), axes.end()) == axes.end());
}

// The elements of a thread are axes of A, B and the accumulator, as long as the core's; the
// accumulator has the other axes of A and B, unless they are summed over.
int check_shaped_core(const UOp& u, const Facts& facts) {
  const WmmaArg& arg = u.as<WmmaArg>();
  const TensorCore* core = find_tensor_core(arg.core);
  if (core == nullptr) return itself;
  int at = 0;
  for (const auto& [matrix, axes] :
       {std::pair{&core->a, &arg.a}, {&core->b, &arg.b}, {&core->accumulator, &arg.accumulator}}) {
    const UOp& source = u.src(static_cast<size_t>(at));
    if (source.dtype() != matrix->dtype || source.rank() != facts.rank ||
        axes->size() != matrix->elements.size())
      return at;
    for (size_t i = 0; i < axes->size(); ++i) {
      const int64_t axis = (*axes)[i];
      if (axis < 0 || axis >= static_cast<int64_t>(facts.rank) ||
          !is_const(source.dim(static_cast<size_t>(axis)), matrix->elements[i].size))
        return at;
    }
    ++at;
  }
  return fine;
}

int check_kernel_reduce(const UOp& u, const Facts&) {
  const std::span<const UOp> ranges = reduced_ranges(u);
  const ReduceArg& arg = u.as<ReduceArg>();
  if (ranges.empty() || !arg.axes.empty() || arg.goes_on) return itself;
  return first_source(u, 1, [&](const UOp& r) {
    if (!r.is(Op::Range))  // its start
      return std::ranges::any_of(ranges, [&](const UOp& loop) { return depends_on(r, loop); });
    const AxisType type = r.as<RangeArg>().type;
    const bool shape = type != AxisType::Thread && most_steps(type) != INT64_MAX;
    const bool bounded =
        std::ranges::any_of(ranges, [&](const UOp& loop) { return depends_on(r.src(0), loop); });
    return bounded || std::count(u.src().begin() + 1, u.src().end(), r) != 1 ||
           !is_reduction(type) || (shape && is_small_float(u.dtype()));
  });
}

}  // namespace

int check_address(const UOp& u) {
  if (strip_after(u.src(0)).rank() != 1 || is_register(strip_after(u.src(0)))) return 0;
  return unless(u.src().size() == 2 && u.src(1).dtype() == DType::Index, 1);
}

bool is_place(const UOp& u) {
  return u.is(Op::Index) ? is_address(u) : is_register(strip_after(u));
}

const std::vector<Demand>& memory_part() {
  static const auto& part = *new const std::vector<Demand>{
      {all_ops() & ~ops({Op::Linear}), "memory and places in it are accessed, and are no values",
       [](const UOp& u, const Facts&) {
         const bool accesses = u.is(Op::Load) || u.is(Op::Store) || u.is(Op::Index) ||
                               u.is(Op::After) || u.is(Op::AtomicAdd);
         return first_source(u, accesses ? 1 : 0, is_location);
       }},
      {ops({Op::Param}),
       "a Param is an argument, memory of one axis of one size in slot 0 to 65535, or a named "
       "scalar "
       "of index between two constants",
       check_param},
      {ops({Op::Buffer}),
       "a Buffer of a kernel is a register, or LOCAL with a constant size of at most 256 KiB",
       check_buffer},
      {ops({Op::Range}), "a LANE Range is the number of a lane while Select takes vectors apart",
       [](const UOp& u, const Facts&) { return unless(u.as<RangeArg>().type != AxisType::Lane); }},
      {ops({Op::Range}),
       "a Range goes from 0 to a bound of at least 0 that no number of what becomes shape decides; "
       "what becomes shape or threads has a constant one of at most 16384 and 65536",
       check_range},
      {ops({Op::Special}),
       "a Special is the number of a thread or, along an axis of the grid, of a group or of a "
       "thread "
       "in its group, at most 65536 of them",
       check_special},
      {ops({Op::Load}),
       "a Load reads an element of memory or a register, with alt and gate or neither", check_load},
      {ops({Op::AtomicAdd}), "an AtomicAdd adds a number of 32 or 64 bits to an element of memory",
       [](const UOp& u, const Facts&) {
         if (!is_address(u.src(0)) || !is_memory(accessed_buffer(u))) return 0;
         const DType d = u.src(1).dtype();
         return unless((is_integer(d) || is_float(d)) && d != DType::Index && item_size(d) >= 4, 1);
       }},
      {ops({Op::Store}), "no store writes Invalid",
       [](const UOp& u, const Facts&) { return unless(!is_invalid(u.src(1)), 1); }},
      {ops({Op::Store}),
       "a Store writes a value to an element of memory, with a gate, or to a register",
       check_store},
  };
  return part;
}

const std::vector<Demand>& effect_part() {
  static const auto& part = *new const std::vector<Demand>{
      {ops({Op::Sink, Op::Group, Op::Barrier}),
       "holds Stores, Ends, Groups, Barriers and AtomicAdds; a Barrier also the Ranges it stands "
       "in",
       [](const UOp& u, const Facts&) {
         return first_source(u, 0, [&](const UOp& s) {
           return !is_effect(s) && !(u.is(Op::Barrier) && s.is(Op::Range));
         });
       }},
      {ops({Op::End}), "an End closes Ranges around an effect, each once", check_end},
      {ops({Op::After}),
       "an After orders accesses of memory behind effects and Ranges, which are no lanes",
       [](const UOp& u, const Facts&) {
         const UOp& base = strip_after(u);
         const bool memory =
             base.is(Op::Buffer) || (base.is(Op::Param) && base.as<BufferArg>().name.empty());
         if (!memory) return 0;
         return first_source(u, 1, [](const UOp& s) {
           return s.is(Op::Range) ? most_steps(s.as<RangeArg>().type) == most_pieces
                                  : !is_effect(s);
         });
       }},
      {ops({Op::Index}),
       "an Index is the place of one element in LOCAL memory or a Param: one index",
       [](const UOp& u, const Facts&) { return is_address(u) ? check_address(u) : 0; }},
  };
  return part;
}

const Demands& kernel_demands() {
  static const auto& demands = *new const Demands{
      {{~kernel_ops(), "no tensor-level op and no op of later stages is left in a kernel", refuse},
       {value_ops(), "every value in a kernel is a scalar",
        [](const UOp& u, const Facts&) { return unless(u.is_scalar()); }},
       {ops({Op::Reduce}),
        "a Reduce goes over Ranges of reductions, each once and none bounding another, and one of "
        "narrow floats over loops, from a value outside of them",
        check_kernel_reduce},
       {ops({Op::Buffer}), "registers come with Expand",
        [](const UOp& u, const Facts&) { return unless(u.addrspace() != AddrSpace::Reg); }},
       {group_ops({GroupOp::Unary, GroupOp::Binary, GroupOp::Ternary}),
        "an operation on values has no tag",
        [](const UOp& u, const Facts&) { return unless(u.tag() == 0); }}},
      memory_part(),
      effect_part()};
  return demands;
}

const Demands& shaped_demands() {
  static const auto& demands = *new const Demands{
      {{~shaped_ops(), "only ops of kernels, Reshape, Expand and Special are left", refuse},
       {ops({Op::Range}), "UPCAST, UNROLL, GROUP_REDUCE and THREAD ranges are shape or threads",
        [](const UOp& u, const Facts&) {
          return unless(most_steps(u.as<RangeArg>().type) == INT64_MAX);
        }}},
      memory_part(),
      {{value_ops() | ops({Op::Const}),
        "a value is a scalar, or has the axes that all have, of at most 16384 elements",
        check_shape},
       {ops({Op::Reshape}), "a Reshape counts along one axis or makes one element of a scalar",
        check_reshape},
       {ops({Op::Bitcast}), "a Bitcast keeps the size of an element", same_bits},
       {~ops({Op::Param, Op::Buffer, Op::Reshape}), "a Stack is a shape, or counts in a Reshape",
        [](const UOp& u, const Facts&) {
          const int at = first_source(u, 0, [](const UOp& s) { return s.is(Op::Stack); });
          return u.is(Op::Expand) && at == 1 ? fine : at;
        }},
       {ops({Op::Reduce}), "a Reduce goes over axes, each once, and holds no narrow floats",
        check_shaped_reduce},
       {ops({Op::Wmma}), "a Wmma is of a tensor core, whose elements are axes of its sources",
        check_shaped_core}},
      effect_part()};
  return demands;
}

namespace {

// The range that makes the shape of a value too large: those that it depends on become its axes.
UOp too_many_elements(const UOp& value) {
  int64_t elements = 1;
  for (const Node* n : value.ranges()) {
    const UOp r = UOp::share(n);
    const AxisType type = r.as<RangeArg>().type;
    if (type != AxisType::Thread && most_steps(type) != INT64_MAX) elements *= const_int(r.src(0));
    if (elements > most_pieces) return r;
  }
  return {};
}

// A Reduce on a tensor core is one sum of what that multiplies along its axes; WARP ranges are its
// threads.
std::optional<Violation> check_cores(std::span<const UOp> nodes) {
  std::vector<UOp> ranges, on_core;
  for (const UOp& u : nodes) {
    if (u.is(Op::Range)) ranges.push_back(u);
    if (u.is(Op::Reduce) && !u.as<ReduceArg>().core.empty()) on_core.push_back(u);
  }
  std::ranges::sort(ranges, {}, [](const UOp& r) { return r.as<RangeArg>().id; });
  if (on_core.size() > 1) return Violation{on_core[1], -1, "a kernel has one sum on a tensor core"};
  if (on_core.size() == 1 && !sum_on_core(on_core[0], ranges))
    return Violation{on_core[0], -1,
                     "a Reduce on a tensor core is the sum of what it multiplies, along its axes: "
                     "WARP, the last UPCAST and the last UNROLL"};
  for (const UOp& r : ranges)
    if (r.as<RangeArg>().type == AxisType::Warp && on_core.empty())
      return Violation{r, -1, "a WARP range is of the threads of a tensor core (TC)"};
  return std::nullopt;
}

}  // namespace

std::optional<Violation> check_names(std::span<const UOp> nodes, VerifyLevel level) {
  // Of an argument of several devices each has its part; a kernel runs on one.
  const bool devices = level == VerifyLevel::Program || level == VerifyLevel::Memory;
  absl::flat_hash_map<std::string, const Node*> taken;
  for (const UOp& u : nodes) {
    std::string name;
    if (is_variable(u))
      name = "Variable " + u.as<BufferArg>().name;
    else if (u.is(Op::Param))
      name = fmt::format("slot {}{}", u.as<BufferArg>().slot,
                         devices && u.device() ? " on " + u.device().name() : "");
    else if (u.is(Op::Buffer))
      name = fmt::format("{} Buffer {}", addrspace_name(u.as<BufferArg>().space),
                         u.as<BufferArg>().slot);
    else if (u.is(Op::Range))
      name = fmt::format("Range {}", u.as<RangeArg>().id);
    else if (u.is(Op::Special))
      name = "Special " + u.as<std::string>();
    else
      continue;
    const auto [it, fresh] = taken.emplace(name, u.node());
    if (!fresh && it->second != u.node())
      return Violation{u, -1, fmt::format("two nodes are {}", name)};
  }
  return std::nullopt;
}

std::optional<Violation> check_kernel(const UOp& sink, std::span<const UOp> nodes,
                                      VerifyLevel level) {
  if (!sink.ranges().empty())
    return Violation{sink, -1,
                     fmt::format("every Range is closed, {} is not",
                                 std::get<RangeArg>(sink.ranges()[0]->arg).id)};
  if (level == VerifyLevel::Kernel)
    if (auto violation = check_cores(nodes)) return violation;
  for (const UOp& u : nodes) {
    if (u.is(Op::Sink) && !(u == sink)) return Violation{u, -1, "the Sink is the root"};
    if (level != VerifyLevel::Kernel) continue;
    if (const UOp r = too_many_elements(u))
      return Violation{
          r, 0, "the UPCAST, UNROLL and GROUP_REDUCE of a value make at most 16384 elements"};
  }
  return check_names(nodes, level);
}

}  // namespace koine

#include "koine/ir/derive.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/call.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"

namespace koine {
namespace {

using Sources = std::span<const UOp>;

UOp stored_shape(const UOp& u) { return u.rank() == 0 ? UOp() : u.shape(); }

bool is_one(const UOp& dim) { return dim.is(Op::Const) && dim.as<ConstArg>().bits == 1; }

// Right-aligned broadcast: each axis equal or 1.
UOp broadcast(Op op, Sources src) {
  const UOp& first = src[0].node()->shape;
  if (first &&
      std::ranges::all_of(src.subspan(1), [&](const UOp& s) { return s.node()->shape == first; }))
    return first;
  UOp result = stored_shape(src[0]);
  for (size_t k = 1; k < src.size(); ++k) {
    UOp next = stored_shape(src[k]);
    if (next == result || !next) continue;
    if (!result) {
      result = next;
      continue;
    }
    const size_t a = result.src().size(), b = next.src().size(), rank = std::max(a, b);
    std::vector<UOp> dims(rank);
    for (size_t i = 0; i < rank; ++i) {
      const UOp x = i + a >= rank ? result.src(i + a - rank) : UOp();
      const UOp y = i + b >= rank ? next.src(i + b - rank) : UOp();
      const bool equal = !x || !y || x == y;
      KOINE_REQUIRE(equal || is_one(x) || is_one(y), Value,
                    "{}: shapes {} and {} do not broadcast at axis {}: sizes must be equal or 1; "
                    "reshape or expand one operand",
                    op_name(op), shape_text(src[0]), shape_text(src[k]), i);
      dims[i] = !x ? y : (!y || !is_one(x)) ? x : y;
    }
    result = UOp::make(Op::Stack, dims);
  }
  return result;
}

void require_shape_operand(Op op, const UOp& shape, size_t index) {
  const bool holds_sizes =
      shape.is(Op::Stack) &&
      (shape.src().empty() || (shape.dtype() == DType::Index && shape.src(0).is_scalar()));
  KOINE_REQUIRE(holds_sizes, Type,
                "{}: source {} must be a Stack of index scalars, got {} of {} with shape {}",
                op_name(op), index, op_name(shape.op()), dtype_name(shape.dtype()),
                shape_text(shape));
}

// Whether `inner` elements from `offset` on are among `outer`.
bool lies_inside(const UOp& offset, const UOp& inner, const UOp& outer) {
  if (offset.is(Op::Const) && inner.is(Op::Const) && outer.is(Op::Const)) {
    const int64_t from = const_int(offset), count = const_int(inner), all = const_int(outer);
    return from >= 0 && count >= 0 && all >= count && from <= all - count;
  }
  const UOp slack = simplify_index(sub(sub(outer, offset), inner));
  return index_span(offset).low >= 0 && inner.bounds().low >= 0 && index_span(slack).low >= 0;
}

UOp shape_from_stack(const UOp& stack) { return stack.src().empty() ? UOp() : stack; }

Derived movement(Op op, Sources src, const Arg& arg) {
  if (src.empty()) return {DType::Index, {}, true};  // the empty Stack: the shape ()
  const UOp& value = src[0];
  const size_t rank = op == Op::Stack ? 0 : value.rank();
  Derived d{value.dtype(), {}, false};
  switch (op) {
    case Op::Permute: {
      const Ints* order = std::get_if<Ints>(&arg);
      std::vector<bool> seen(rank, false);
      bool valid = order != nullptr && order->size() == rank;
      for (size_t i = 0; valid && i < rank; ++i) {
        const int64_t axis = (*order)[i];
        valid = axis >= 0 && axis < static_cast<int64_t>(rank) && !seen[static_cast<size_t>(axis)];
        if (valid) seen[static_cast<size_t>(axis)] = true;
      }
      KOINE_REQUIRE(
          valid, Value, "Permute: order ({}) is not a permutation of the {} axes of shape {}",
          order ? fmt::format("{}", fmt::join(*order, ", ")) : "missing", rank, shape_text(value));
      std::vector<UOp> dims;
      for (const int64_t axis : *order) dims.push_back(value.dim(static_cast<size_t>(axis)));
      d.shape = rank ? UOp::make(Op::Stack, dims) : UOp();
      return d;
    }
    case Op::Flip: {
      const Ints* flags = std::get_if<Ints>(&arg);
      KOINE_REQUIRE(flags && flags->size() == rank, Value,
                    "Flip: needs one flag for each of the {} axes of shape {}", rank,
                    shape_text(value));
      d.shape = stored_shape(value);
      return d;
    }
    case Op::Reshape: {
      require_shape_operand(op, src[1], 1);
      const UOp before = product(value.shape()), after = product(src[1]);
      KOINE_REQUIRE(before == after, Value,
                    "Reshape: {} has {} elements, {} has {}: the products of the sizes must agree",
                    shape_text(value), dim_text(before), stack_text(src[1]), dim_text(after));
      d.shape = shape_from_stack(src[1]);
      return d;
    }
    case Op::Expand: {
      require_shape_operand(op, src[1], 1);
      KOINE_REQUIRE(src[1].src().size() == rank, Value,
                    "Expand: shape {} has {} axes, target {} has {}: reshape first",
                    shape_text(value), rank, stack_text(src[1]), src[1].src().size());
      for (size_t i = 0; i < rank; ++i)
        KOINE_REQUIRE(value.dim(i) == src[1].src(i) || is_one(value.dim(i)), Value,
                      "Expand: axis {} of shape {} has size {}, only size 1 expands to {}", i,
                      shape_text(value), dim_text(value.dim(i)), dim_text(src[1].src(i)));
      d.shape = shape_from_stack(src[1]);
      return d;
    }
    case Op::Pad:
    case Op::Shrink: {
      require_shape_operand(op, src[1], 1);
      require_shape_operand(op, src[2], 2);
      KOINE_REQUIRE(src[1].src().size() == rank && src[2].src().size() == rank, Value,
                    "{}: shape {} has {} axes, offset {} and target {} must have as many",
                    op_name(op), shape_text(value), rank, stack_text(src[1]), stack_text(src[2]));
      for (size_t i = 0; i < rank; ++i) {
        const UOp &offset = src[1].src(i), &size = src[2].src(i);
        const UOp& inner = op == Op::Pad ? value.dim(i) : size;
        const UOp& outer = op == Op::Pad ? size : value.dim(i);
        KOINE_REQUIRE(lies_inside(offset, inner, outer), Value,
                      "{}: axis {} of shape {} with offset {} and target size {} leaves its bounds",
                      op_name(op), i, shape_text(value), dim_text(offset), dim_text(size));
      }
      if (src.size() == 4)
        KOINE_REQUIRE(src[3].dtype() == value.dtype() && src[3].is_scalar(), Type,
                      "Pad: fill must be a scalar of {}, got {} of shape {}",
                      dtype_name(value.dtype()), dtype_name(src[3].dtype()), shape_text(src[3]));
      d.shape = shape_from_stack(src[2]);
      return d;
    }
    case Op::Index: {
      KOINE_REQUIRE(src.size() - 1 <= rank, Value, "Index: {} indices on shape {} with {} axes",
                    src.size() - 1, shape_text(value), rank);
      std::vector<UOp> dims;
      for (size_t i = 1; i < src.size(); ++i) {
        KOINE_REQUIRE(is_integer(src[i].dtype()), Type, "Index: index {} has dtype {}, not integer",
                      i - 1, dtype_name(src[i].dtype()));
        for (size_t k = 0; k < src[i].rank(); ++k) dims.push_back(src[i].dim(k));
      }
      for (size_t k = src.size() - 1; k < rank; ++k) dims.push_back(value.dim(k));
      if (!dims.empty()) d.shape = UOp::make(Op::Stack, dims);
      return d;
    }
    case Op::Stack: {
      bool scalars = true;
      for (size_t i = 0; i < src.size(); ++i) {
        scalars = scalars && src[i].is_scalar();
        KOINE_REQUIRE(src[i].dtype() == src[0].dtype(), Type,
                      "Stack: source {} is {}, source 0 is {}: cast them to one dtype", i,
                      dtype_name(src[i].dtype()), dtype_name(src[0].dtype()));
        KOINE_REQUIRE(stored_shape(src[i]) == stored_shape(src[0]), Value,
                      "Stack: source {} has shape {}, source 0 has shape {}: all must match", i,
                      shape_text(src[i]), shape_text(src[0]));
      }
      if (scalars) return {src[0].dtype(), {}, true};
      std::vector<UOp> dims{index_const(static_cast<int64_t>(src.size()))};
      for (size_t k = 0; k < src[0].rank(); ++k) dims.push_back(src[0].dim(k));
      d.shape = UOp::make(Op::Stack, dims);
      return d;
    }
    case Op::Replicated: {
      const int64_t* axis = std::get_if<int64_t>(&arg);
      KOINE_REQUIRE(axis && *axis >= 0 && *axis < static_cast<int64_t>(rank), Index,
                    "Replicated: needs one of the {} axes of shape {}", rank, shape_text(value));
      const auto dropped = static_cast<size_t>(*axis);
      const auto copies = static_cast<int64_t>(value.device().count());
      KOINE_REQUIRE(value.dim(dropped) == index_const(copies), Value,
                    "Replicated: axis {} of shape {} must have size {}, one copy for each device",
                    dropped, shape_text(value), copies);
      KOINE_REQUIRE(copies == 1 || value.axis() == dropped, Value,
                    "Replicated: axis {} of shape {} is not the one that the devices {} split",
                    dropped, shape_text(value), value.device().name());
      std::vector<UOp> dims;
      for (size_t k = 0; k < rank; ++k)
        if (k != dropped) dims.push_back(value.dim(k));
      if (!dims.empty()) d.shape = UOp::make(Op::Stack, dims);
      return d;
    }
    default:
      break;
  }
  // Bitcast: total bytes stay, so the last axis scales by the item sizes (C9).
  const DType* target = std::get_if<DType>(&arg);
  KOINE_REQUIRE(
      target && *target != DType::Void && *target != DType::Index && value.dtype() != DType::Index,
      Type, "Bitcast: needs a stored target dtype");
  d.dtype = *target;
  const int64_t from = item_size(value.dtype()), to = item_size(*target);
  if (from == to) {
    d.shape = stored_shape(value);
    return d;
  }
  KOINE_REQUIRE(rank > 0, Value, "Bitcast: a scalar {} cannot become {} of another size",
                dtype_name(value.dtype()), dtype_name(*target));
  std::vector<UOp> dims;
  for (size_t k = 0; k < rank; ++k) dims.push_back(value.dim(k));
  const UOp bytes = simplify_index(mul(dims.back(), index_const(from)));
  KOINE_REQUIRE(simplify_index(mod(bytes, index_const(to))) == index_const(0), Value,
                "Bitcast: last axis of {} {} holds {} bytes, not a multiple of {} ({})",
                dtype_name(value.dtype()), shape_text(value), dim_text(bytes), to,
                dtype_name(*target));
  dims.back() = simplify_index(idiv(bytes, index_const(to)));
  d.shape = UOp::make(Op::Stack, dims);
  return d;
}

Derived reduce(Sources src, const Arg& arg) {
  const ReduceArg* reduction = std::get_if<ReduceArg>(&arg);
  KOINE_REQUIRE(reduction && (reduction->op == Op::Add || reduction->op == Op::Max ||
                              reduction->op == Op::Mul),
                Type, "Reduce: op must be Add, Max or Mul");
  const UOp& value = src[0];
  const UOp& start = src.back();
  const bool starts = src.size() > 1 && !start.is(Op::Range) && start.dtype() == value.dtype() &&
                      value.dtype() != DType::Index;
  for (size_t i = 1; i < src.size() - (starts ? 1 : 0); ++i)
    KOINE_REQUIRE(src[i].is(Op::Range), Type,
                  "Reduce: source {} must be a Range, or a {} that it starts from and no index, "
                  "got {} {}",
                  i, dtype_name(value.dtype()), dtype_name(src[i].dtype()), op_name(src[i].op()));
  Derived d{value.dtype(), stored_shape(value), false};
  std::vector<UOp> dims;
  for (size_t k = 0; k < value.rank(); ++k) dims.push_back(value.dim(k));
  for (const int64_t axis : reduction->axes) {
    KOINE_REQUIRE(axis >= 0 && axis < static_cast<int64_t>(dims.size()), Index,
                  "Reduce: axis {} is out of range for shape {} with {} axes", axis,
                  shape_text(value), dims.size());
    dims[static_cast<size_t>(axis)] = index_const(1);
  }
  if (!reduction->axes.empty()) d.shape = UOp::make(Op::Stack, dims);
  KOINE_REQUIRE(!starts || stored_shape(start) == d.shape, Value,
                "Reduce: it starts from a value of shape {}, which is not that of its result",
                shape_text(start));
  return d;
}

bool float_only(Op op) {
  return op == Op::Recip || op == Op::Exp2 || op == Op::Log2 || op == Op::Sin || op == Op::Sqrt ||
         op == Op::Fdiv || op == Op::Pow;
}
bool integer_only(Op op) { return op == Op::Idiv || op == Op::Shl || op == Op::Shr; }
bool bitwise(Op op) { return op == Op::Xor || op == Op::Or || op == Op::And; }

Derived elementwise(Op op, Sources src, const Arg& arg) {
  Derived d{src[0].dtype(), {}, false};
  const size_t first = op == Op::Where ? 1 : 0;
  for (size_t i = 0; i < src.size(); ++i)
    KOINE_REQUIRE(src[i].dtype() != DType::Void, Type, "{}: source {} ({}) has no value",
                  op_name(op), i, op_name(src[i].op()));
  for (size_t i = first + 1; i < src.size(); ++i)
    KOINE_REQUIRE(src[i].dtype() == src[first].dtype(), Type,
                  "{}: source {} is {}, source {} is {}: cast them to one dtype", op_name(op), i,
                  dtype_name(src[i].dtype()), first, dtype_name(src[first].dtype()));
  const DType dtype = src[first].dtype();
  if (op == Op::Where)
    KOINE_REQUIRE(src[0].dtype() == DType::Bool, Type, "Where: the condition is {}, not bool",
                  dtype_name(src[0].dtype()));
  if (float_only(op))
    KOINE_REQUIRE(is_float(dtype), Type, "{}: needs a float dtype, got {}: cast first", op_name(op),
                  dtype_name(dtype));
  if (integer_only(op))
    KOINE_REQUIRE(is_integer(dtype), Type, "{}: needs an integer dtype, got {}", op_name(op),
                  dtype_name(dtype));
  if (op == Op::Mod)
    KOINE_REQUIRE(dtype != DType::Bool, Type, "Mod: needs integers or floats, got bool");
  if (bitwise(op))
    KOINE_REQUIRE(is_integer(dtype) || dtype == DType::Bool, Type,
                  "{}: needs an integer or bool dtype, got {}", op_name(op), dtype_name(dtype));
  if (op == Op::Threefry)
    KOINE_REQUIRE(dtype == DType::UInt64, Type, "Threefry: counter and key are uint64, got {}",
                  dtype_name(dtype));
  if (op == Op::Sin && arg.index() != 0) {
    const int64_t* turns = std::get_if<int64_t>(&arg);
    KOINE_REQUIRE(turns && *turns >= 1 && *turns <= 3, Type,
                  "Sin: the arg is 1, 2 or 3 quarter turns, or none");
  }
  if ((op == Op::Exp2 || op == Op::Log2) && arg.index() != 0)
    KOINE_REQUIRE(arg == Arg(int64_t{1}), Type, "{}: the arg is 1 for base e, or none",
                  op_name(op));
  switch (op_info(op).dtype_rule) {
    case DTypeRule::Arg: {
      const DType* target = std::get_if<DType>(&arg);
      KOINE_REQUIRE(target && *target != DType::Void, Type, "{}: needs a target dtype",
                    op_name(op));
      d.dtype = *target;
      break;
    }
    case DTypeRule::Src1:
      d.dtype = src[1].dtype();
      break;
    case DTypeRule::Bool:
      d.dtype = DType::Bool;
      break;
    default:
      break;
  }
  d.shape = src.size() == 1 ? stored_shape(src[0]) : broadcast(op, src);
  return d;
}

Derived call_result(const UOp& call, int64_t element) {
  require_arguments(call);
  const std::vector<UOp> results = results_of(call.src(0));
  KOINE_REQUIRE(element >= 0 && element < static_cast<int64_t>(results.size()), Index,
                "GetTuple: index {} is out of range: '{}' has {} results", element, call_name(call),
                results.size());
  const UOp& param = results[static_cast<size_t>(element)];
  return {param.dtype(), stored_shape(param), false};
}

Derived get_tuple(Sources src, const Arg& arg) {
  const int64_t* element = std::get_if<int64_t>(&arg);
  KOINE_REQUIRE(element, Type, "GetTuple: needs an index");
  const UOp& source = src[0];
  if (source.is(Op::Call)) return call_result(source, *element);
  const UOp tuple = source.is(Op::Function) ? source.src(0) : source;
  KOINE_REQUIRE(tuple.is(Op::Tuple), Type,
                "GetTuple: source must be a Tuple, a Function or a Call, got {}",
                op_name(source.op()));
  const auto count = static_cast<int64_t>(tuple.src().size());
  KOINE_REQUIRE(*element >= 0 && *element < count, Index,
                "GetTuple: index {} is out of range for a Tuple of {}", *element, count);
  const UOp& value = tuple.src(static_cast<size_t>(*element));
  UOp shape = stored_shape(value);
  const bool symbolic =
      shape && !std::ranges::all_of(shape.src(), [](const UOp& d) { return d.is(Op::Const); });
  if (symbolic && source.is(Op::Function))
    shape = with_variables(shape, variables_from(tuple, source.src().subspan(1)));
  return {value.dtype(), shape, false};
}

// An alt or a gate says something for each element of `whole`.
void require_broadcast(Op op, const char* name, const UOp& part, const UOp& whole) {
  bool fits = part.rank() <= whole.rank();
  for (size_t i = 0; fits && i < part.rank(); ++i) {
    const UOp size = part.dim(i);
    fits = is_one(size) || size == whole.dim(i + whole.rank() - part.rank());
  }
  KOINE_REQUIRE(fits, Value, "{}: {} of shape {} does not broadcast to {}", op_name(op), name,
                shape_text(part), shape_text(whole));
}

// The memory that a value is read from in place, not by a Load; null: it is none.
const Node* memory_of_value(const UOp& value) {
  const Node* n = value.node();
  while (n->op == Op::After || (is_movement(n->op) && n->source_count > 0 && n->op != Op::Stack))
    n = n->sources()[0].node();
  if (n->op != Op::Param && n->op != Op::Buffer) return nullptr;
  return std::get<BufferArg>(n->arg).name.empty() ? n : nullptr;  // a Variable is a number
}

// The axes of a row are axes of the value, ascending, and a row is LOCAL.
void require_row(const UOp& value, const LoadArg& arg) {
  if (arg.axes.empty()) return;
  const auto rank = static_cast<int64_t>(value.rank());
  bool ascends = arg.axes.front() >= 0 && arg.axes.back() < rank;
  for (size_t i = 1; i < arg.axes.size(); ++i) ascends = ascends && arg.axes[i - 1] < arg.axes[i];
  KOINE_REQUIRE(ascends && arg.space == AddrSpace::Local && !arg.device, Value,
                "Load: a row is in LOCAL memory, and its axes ascend from 0 to {}: got {} ({})",
                rank - 1, addrspace_name(arg.space), fmt::join(arg.axes, ", "));
}

Derived memory(Op op, Sources src, const Arg& arg) {
  if (op == Op::Load) {
    KOINE_REQUIRE(src.size() != 2, Type,
                  "Load: takes a buffer, or a buffer, alt and gate; source 1 ({}) has no gate",
                  op_name(src[1].op()));
    for (size_t i = 1; i < src.size(); ++i) {
      const DType wanted = i == 1 ? src[0].dtype() : DType::Bool;
      const char* name = i == 1 ? "alt" : "gate";
      KOINE_REQUIRE(src[i].dtype() == wanted, Type, "Load: {} is {}, must be {}", name,
                    dtype_name(src[i].dtype()), dtype_name(wanted));
      require_broadcast(op, name, src[i], src[0]);
    }
    KOINE_REQUIRE(std::holds_alternative<LoadArg>(arg), Type,
                  "Load: needs the address space that it loads into");
    require_row(src[0], std::get<LoadArg>(arg));
    return {src[0].dtype(), stored_shape(src[0]), false};
  }
  KOINE_REQUIRE(src[0].dtype() == src[1].dtype(), Type,
                "Store: the buffer holds {}, the value is {}: cast it", dtype_name(src[0].dtype()),
                dtype_name(src[1].dtype()));
  KOINE_REQUIRE(stored_shape(src[0]) == stored_shape(src[1]), Value,
                "Store: the buffer has shape {}, the value {}: shapes must be equal",
                shape_text(src[0]), shape_text(src[1]));
  if (src.size() == 3) {
    KOINE_REQUIRE(src[2].dtype() == DType::Bool, Type, "Store: gate is {}, must be bool",
                  dtype_name(src[2].dtype()));
    require_broadcast(op, "gate", src[2], src[0]);
  }
  const Node *to = memory_of_value(src[0]), *from = memory_of_value(src[1]);
  if (to != nullptr && from != nullptr) {
    const AddrSpace target = std::get<BufferArg>(to->arg).space,
                    source = std::get<BufferArg>(from->arg).space;
    KOINE_REQUIRE(target == source, Value,
                  "Store: the buffer is {} memory, the value lies in {} memory: load() it first",
                  addrspace_name(target), addrspace_name(source));
  }
  (void)arg;
  return {};
}

Derived source(Op op, Sources src, const Arg& arg) {
  if (op == Op::Const) {
    const ConstArg* value = std::get_if<ConstArg>(&arg);
    KOINE_REQUIRE(value && value->dtype != DType::Void, Type, "Const: needs a value and a dtype");
    return {value->dtype, {}, false};
  }
  if (op == Op::Binary) {
    const std::string* bytes = std::get_if<std::string>(&arg);
    KOINE_REQUIRE(bytes, Type, "Binary: needs bytes");
    return {DType::UInt8, UOp::make(Op::Stack, {index_const(static_cast<int64_t>(bytes->size()))}),
            false};
  }
  const BufferArg* buffer = std::get_if<BufferArg>(&arg);
  KOINE_REQUIRE(buffer, Type, "{}: needs slot and dtype", op_name(op));
  KOINE_REQUIRE(buffer->dtype != DType::Void, Type, "{}: slot {} has dtype void", op_name(op),
                buffer->slot);
  const bool argument = buffer->kind == ParamKind::Argument;
  KOINE_REQUIRE(argument || (op == Op::Param && buffer->name.empty()), Type,
                "{}: only a Param without a name is {}", op_name(op),
                param_kind_name(buffer->kind));
  KOINE_REQUIRE(
      argument || (buffer->slot == BufferArg::no_slot) == (buffer->kind == ParamKind::ViewBase),
      Type, "Param: what is traced has a slot, and the base of a view has none, got {}",
      buffer->slot);
  KOINE_REQUIRE(src.size() < 4 || src[3].is(Op::Const), Type,
                "{}: what Variable '{}' is bound to must be a constant, got {}", op_name(op),
                buffer->name, op_name(src[3].op()));
  if (!src.empty()) require_shape_operand(op, src[0], 0);
  return {buffer->dtype, src.empty() ? UOp() : shape_from_stack(src[0]), false};
}

// A mark stands on the op that it is made for, with a number or without.
void require_mark(Op op, const MarkArg& arg) {
  KOINE_REQUIRE(op_of(arg.mark) == op, Type, "{}: '{}' marks a {}", op_name(op),
                mark_name(arg.mark), op_name(op_of(arg.mark)));
  KOINE_REQUIRE(is_numbered(arg.mark) ? arg.number >= 0 : arg.number == 0, Type,
                "{}: the mark '{}' has the number {}: {}", op_name(op), mark_name(arg.mark),
                arg.number, is_numbered(arg.mark) ? "it must be at least 0" : "it takes none");
}

// How it is inlined and differentiated (transform/custom_rule, transform/checkpoint).
bool is_kind_of_function(const std::string& arg) {
  return arg == "precompile" || arg.starts_with("rule ") || arg.starts_with("name ") ||
         arg == "checkpoint" || arg.starts_with("checkpoint ");
}

}  // namespace

UOp broadcast_shape(Op op, Sources values) {
  const UOp shape = broadcast(op, values);
  return shape ? shape : UOp::make(Op::Stack, {});
}

Derived derive(Op op, Sources src, const Arg& arg) {
  const OpInfo& info = op_info(op);
  const auto count = static_cast<int>(src.size());
  KOINE_REQUIRE(count >= info.fewest && (info.most < 0 || count <= info.most), Type,
                "{}: takes {}{} sources, got {}", info.name, info.fewest,
                info.most < 0              ? " or more"
                : info.most != info.fewest ? fmt::format(" to {}", info.most)
                                           : "",
                count);
  if (const MarkArg* mark = std::get_if<MarkArg>(&arg)) require_mark(op, *mark);
  switch (info.group) {
    case GroupOp::Source:
      return source(op, src, arg);
    case GroupOp::Movement:
      return movement(op, src, arg);
    case GroupOp::Reduce:
      return reduce(src, arg);
    case GroupOp::Unary:
    case GroupOp::Binary:
    case GroupOp::Ternary:
      return elementwise(op, src, arg);
    case GroupOp::Memory:
      return memory(op, src, arg);
    case GroupOp::Marker:
      return {src[0].dtype(), stored_shape(src[0]), false};
    default:
      break;
  }
  switch (op) {
    case Op::GetTuple:
      return get_tuple(src, arg);
    case Op::Function:
      KOINE_REQUIRE(src[0].is(Op::Tuple), Type, "Function: the body must be a Tuple, got {}",
                    op_name(src[0].op()));
      KOINE_REQUIRE(arg.index() == 0 || (std::holds_alternative<std::string>(arg) &&
                                         is_kind_of_function(std::get<std::string>(arg))),
                    Type,
                    "Function: the arg is \"precompile\", \"rule\" or \"name\" and a name, "
                    "\"checkpoint\" and what it keeps, or none");
      return {};
    case Op::After:
      KOINE_REQUIRE(!is_variable(src[0]), Type,
                    "After: {} is a Variable, a number for each run: only memory is stored into "
                    "and read after that",
                    src[0].as<BufferArg>().name);
      KOINE_REQUIRE(
          !is_movement(src[0].op()) || memory_of_value(src[0]) == nullptr, Value,
          "After: {} of shape {} is a view of memory, of which no state is named: let the "
          "After hold the memory, and view that",
          op_name(src[0].op()), shape_text(src[0]));
      return {src[0].dtype(), stored_shape(src[0]), false};
    case Op::Range:
      KOINE_REQUIRE(src[0].dtype() == DType::Index && src[0].is_scalar(), Type,
                    "Range: the bound must be an index scalar, got {} of shape {}",
                    dtype_name(src[0].dtype()), shape_text(src[0]));
      KOINE_REQUIRE(std::holds_alternative<RangeArg>(arg), Type,
                    "Range: needs an axis id and type");
      return {DType::Index, {}, false};
    case Op::End:
      for (size_t i = 1; i < src.size(); ++i)
        KOINE_REQUIRE(src[i].is(Op::Range), Type, "End: source {} must be a Range, got {}", i,
                      op_name(src[i].op()));
      return {};
    case Op::Special:
      return {DType::Index, {}, false};
    case Op::Wmma:
      KOINE_REQUIRE(std::holds_alternative<WmmaArg>(arg), Type,
                    "Wmma: needs a tensor core and the axes of its elements");
      return {src[2].dtype(), stored_shape(src[2]), false};
    case Op::CustomFunction:
      KOINE_REQUIRE(std::holds_alternative<std::string>(arg), Type,
                    "CustomFunction: needs the name of a function of the host");
      return {};
    case Op::Ins:
    case Op::Custom: {
      const CodeArg* code = std::get_if<CodeArg>(&arg);
      KOINE_REQUIRE(code, Type, "{}: needs code text and a dtype", info.name);
      return {code->dtype, {}, false};
    }
    default:
      return {};
  }
}

}  // namespace koine

#include "koine/ir/build.hpp"

#include <algorithm>
#include <atomic>
#include <limits>

#include "koine/base/error.hpp"
#include "koine/ir/origin.hpp"

namespace koine {

UOp constant_bits(DType dtype, Bits bits) {
  return UOp::make(Op::Const, {}, ConstArg{dtype, bits});
}
UOp constant(DType dtype, double value) {
  return constant_bits(dtype, double_to_bits(dtype, value));
}
UOp constant_int(DType dtype, int64_t value) {
  return constant_bits(dtype, int_to_bits(dtype, value));
}
UOp constant_bool(bool value) { return constant_bits(DType::Bool, value); }
UOp index_const(int64_t value) {
  // Most are small, and wanted all the time.
  constexpr int64_t low = -16, high = 256;
  static const auto& small = *[] {
    auto* made = new std::vector<UOp>;
    for (int64_t i = low; i < high; ++i)
      made->push_back(constant_bits(DType::Index, static_cast<Bits>(i)));
    return made;
  }();
  if (value >= low && value < high) return small[static_cast<size_t>(value - low)];
  return constant_bits(DType::Index, static_cast<Bits>(value));
}
UOp invalid(DType dtype) { return UOp::make(Op::Const, {}, ConstArg{dtype, 0, true}); }

UOp shape_of(std::span<const int64_t> sizes) {
  std::vector<UOp> dims;
  dims.reserve(sizes.size());
  for (const int64_t size : sizes) dims.push_back(index_const(size));
  return UOp::make(Op::Stack, dims);
}
UOp shape_of(std::initializer_list<int64_t> sizes) {
  return shape_of(std::span<const int64_t>(sizes.begin(), sizes.size()));
}
UOp stack(std::span<const UOp> values) { return UOp::make(Op::Stack, values); }

bool is_variable_name(std::string_view name) {
  auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !name.empty() && letter(name[0]) &&
         std::ranges::all_of(name, [&](char c) { return letter(c) || (c >= '0' && c <= '9'); });
}
UOp variable(std::string_view name, int64_t low, int64_t high) {
  KOINE_REQUIRE(is_variable_name(name) && low <= high, Value,
                "Variable('{}', {}, {}): needs a name (letters, digits and _, no digit first) and "
                "min <= max",
                name, low, high);
  return UOp::make(
      Op::Param, {shape_of({}), index_const(low), index_const(high)},
      BufferArg{BufferArg::no_slot, DType::Index, {}, AddrSpace::Global, std::string(name)});
}
bool is_variable(const UOp& node) {
  return node.is(Op::Param) && !node.as<BufferArg>().name.empty();
}
void require_in_range(const UOp& variable, int64_t value) {
  const Interval& range = variable.bounds();
  KOINE_REQUIRE(value >= range.low && value <= range.high, Value,
                "Variable '{}' is bound to {}: its range is {} to {}",
                variable.as<BufferArg>().name, value, static_cast<int64_t>(range.low),
                static_cast<int64_t>(range.high));
}
UOp param(int64_t slot, const UOp& shape, DType dtype, Device device, AddrSpace space) {
  return UOp::make(Op::Param, {shape}, BufferArg{slot, dtype, device, space});
}
namespace {
std::atomic<int64_t> next_slot{0};

// On one device there is no axis to name.
BufferArg placed(BufferArg arg, AxisSet axes) {
  arg.axes = arg.device.count() > 1 ? axes : 0;
  return arg;
}

// On one device a value may get its place later, and several say how they hold it.
enum class Place { Always, IfSeveral };

UOp param_like(const UOp& value, int64_t slot, ParamKind kind, Place place) {
  const Placement& at = value.node()->placement;
  const bool placeless = place == Place::IfSeveral && at.device.count() == 1;
  BufferArg arg = placed({slot, value.dtype(), placeless ? Device() : at.device}, at.axes);
  arg.kind = kind;
  return UOp::make(Op::Param, {value.shape()}, arg);
}
}  // namespace
int64_t fresh_slot() { return next_slot.fetch_add(1, std::memory_order_relaxed); }
void reserve_slot(int64_t slot) {
  int64_t next = next_slot.load(std::memory_order_relaxed);
  while (next <= slot && !next_slot.compare_exchange_weak(next, slot + 1)) {
  }
}
UOp param_for(int64_t slot, const UOp& value) {
  return param_like(value, slot, ParamKind::Argument, Place::Always);
}
UOp traced_param(const UOp& argument) {
  return param_like(argument, fresh_slot(), ParamKind::Traced, Place::Always);
}
UOp view_base(const UOp& base) {
  return param_like(base, BufferArg::no_slot, ParamKind::ViewBase, Place::IfSeveral);
}
bool is_argument_param(const UOp& node) {
  return node.is(Op::Param) && !is_variable(node) &&
         node.as<BufferArg>().kind == ParamKind::Argument;
}
UOp argument_param(int64_t slot, const UOp& argument) {
  return param_like(argument, slot, ParamKind::Argument, Place::IfSeveral);
}
UOp argument_param(int64_t slot, const UOp& argument, const UOp& beside) {
  return beside.device() ? param_for(slot, argument) : argument_param(slot, argument);
}
UOp new_buffer(const UOp& shape, DType dtype, Device device, AxisSet axes) {
  return UOp::make(Op::Buffer, {shape}, placed(BufferArg{fresh_slot(), dtype, device}, axes));
}

UOp unary(Op op, const UOp& a) { return UOp::make(op, {a}); }
namespace {
Arg arg_of(Base base) { return base == Base::E ? Arg(int64_t{1}) : Arg(); }
}  // namespace
UOp exponential(const UOp& a, Base base) { return UOp::make(Op::Exp2, {a}, arg_of(base)); }
UOp logarithm(const UOp& a, Base base) { return UOp::make(Op::Log2, {a}, arg_of(base)); }
Base base_of(const Arg& arg) { return arg.index() == 0 ? Base::Two : Base::E; }
UOp sine(const UOp& a, int64_t quarter_turns) {
  const int64_t turns = quarter_turns & 3;
  return UOp::make(Op::Sin, {a}, turns == 0 ? Arg() : Arg(turns));
}
int64_t quarter_turns_of(const Arg& arg) {
  const int64_t* turns = std::get_if<int64_t>(&arg);
  return turns != nullptr ? *turns : 0;
}
UOp binary(Op op, const UOp& a, const UOp& b) { return UOp::make(op, {a, b}); }
UOp cast(const UOp& a, DType dtype) {
  return a.dtype() == dtype ? a : UOp::make(Op::Cast, {a}, dtype);
}
UOp bitcast(const UOp& a, DType dtype) {
  return a.dtype() == dtype ? a : UOp::make(Op::Bitcast, {a}, dtype);
}
UOp add(const UOp& a, const UOp& b) { return binary(Op::Add, a, b); }
UOp mul(const UOp& a, const UOp& b) { return binary(Op::Mul, a, b); }
UOp neg(const UOp& a) {
  KOINE_REQUIRE(a.dtype() != DType::Bool, Type, "Neg: bool has no negative: use logical_not");
  return mul(a, constant_int(a.dtype(), -1));
}
UOp magnitude_of(const UOp& x) { return where(lt(x, constant_like(x, 0)), neg(x), x); }
UOp sub(const UOp& a, const UOp& b) { return add(a, neg(b)); }
UOp idiv(const UOp& a, const UOp& b) { return binary(Op::Idiv, a, b); }
UOp mod(const UOp& a, const UOp& b) { return binary(Op::Mod, a, b); }
UOp fdiv(const UOp& a, const UOp& b) { return binary(Op::Fdiv, a, b); }
UOp maximum(const UOp& a, const UOp& b) { return binary(Op::Max, a, b); }
UOp minimum(const UOp& a, const UOp& b) {
  if (is_float(a.dtype()) || a.dtype() == DType::Index) return neg(maximum(neg(a), neg(b)));
  const UOp ones = a.dtype() == DType::Bool ? constant_bool(true) : constant_int(a.dtype(), -1);
  return bit_xor(maximum(bit_xor(a, ones), bit_xor(b, ones)), ones);
}
UOp lt(const UOp& a, const UOp& b) { return binary(Op::CmpLt, a, b); }
UOp gt(const UOp& a, const UOp& b) { return lt(b, a); }
UOp ne(const UOp& a, const UOp& b) { return binary(Op::CmpNe, a, b); }
UOp logical_not(const UOp& a) {
  KOINE_REQUIRE(a.dtype() == DType::Bool, Type,
                "Not: needs bool, got {}: compare with 0, or xor with -1 for the bitwise not",
                dtype_name(a.dtype()));
  return ne(a, constant_bool(true));
}
UOp eq(const UOp& a, const UOp& b) { return logical_not(ne(a, b)); }
UOp ge(const UOp& a, const UOp& b) {
  if (is_float(a.dtype())) return bit_or(lt(b, a), eq(a, b));
  return logical_not(lt(a, b));
}
UOp le(const UOp& a, const UOp& b) { return ge(b, a); }
UOp bit_and(const UOp& a, const UOp& b) { return binary(Op::And, a, b); }
UOp bit_or(const UOp& a, const UOp& b) { return binary(Op::Or, a, b); }
UOp bit_xor(const UOp& a, const UOp& b) { return binary(Op::Xor, a, b); }
UOp where(const UOp& condition, const UOp& a, const UOp& b) {
  return UOp::make(Op::Where, {condition, a, b});
}
UOp rounded_product(const UOp& product) { return UOp::make(Op::Mul, product.src(), int64_t{1}); }
bool is_rounded_product(const UOp& u) { return u.is(Op::Mul) && u.arg().index() != 0; }
UOp mulacc(const UOp& a, const UOp& b, const UOp& c) { return UOp::make(Op::Mulacc, {a, b, c}); }

UOp reshape(const UOp& a, const UOp& shape) { return UOp::make(Op::Reshape, {a, shape}); }
UOp in_shape(const UOp& a, const UOp& shape) { return a.shape() == shape ? a : reshape(a, shape); }
UOp expand(const UOp& a, const UOp& shape) { return UOp::make(Op::Expand, {a, shape}); }
UOp permute(const UOp& a, std::vector<int64_t> order) {
  return UOp::make(Op::Permute, {a}, Ints(std::move(order)));
}
UOp permute_back(const UOp& a, const std::vector<int64_t>& order) {
  Ints back(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  return permute(a, std::move(back));
}
UOp flip(const UOp& a, std::vector<int64_t> flags) {
  return UOp::make(Op::Flip, {a}, Ints(std::move(flags)));
}
UOp pad(const UOp& a, const UOp& offset, const UOp& shape, const UOp& fill) {
  if (fill) return UOp::make(Op::Pad, {a, offset, shape, fill});
  return UOp::make(Op::Pad, {a, offset, shape});
}
UOp shrink(const UOp& a, const UOp& offset, const UOp& shape) {
  return UOp::make(Op::Shrink, {a, offset, shape});
}
UOp slice(const UOp& a, size_t axis, const UOp& first, const UOp& count) {
  std::vector<UOp> offsets(a.rank(), index_const(0));
  std::vector<UOp> sizes(a.shape().src().begin(), a.shape().src().end());
  offsets[axis] = first;
  sizes[axis] = count;
  return shrink(a, stack(offsets), stack(sizes));
}
UOp index(const UOp& a, std::span<const UOp> indices) {
  std::vector<UOp> src{a};
  src.insert(src.end(), indices.begin(), indices.end());
  return UOp::make(Op::Index, src);
}
UOp index(const UOp& a, std::initializer_list<UOp> indices) {
  return index(a, std::span<const UOp>(indices.begin(), indices.size()));
}
UOp replicated(const UOp& a, int64_t axis) { return UOp::make(Op::Replicated, {a}, axis); }
UOp reduce(Op op, const UOp& a, std::vector<int64_t> axes, const UOp& start) {
  const UOp src[] = {a, start};
  return UOp::make(Op::Reduce, std::span<const UOp>(src, start ? 2 : 1),
                   ReduceArg{op, std::move(axes)});
}
UOp reduce_ranges(Op op, const UOp& a, std::span<const UOp> ranges, const UOp& start) {
  std::vector<UOp> src{a};
  src.insert(src.end(), ranges.begin(), ranges.end());
  if (start) src.push_back(start);
  return UOp::make(Op::Reduce, src, ReduceArg{op, {}});
}
UOp reduce_ranges(Op op, const UOp& a, std::initializer_list<UOp> ranges, const UOp& start) {
  return reduce_ranges(op, a, std::span<const UOp>(ranges.begin(), ranges.size()), start);
}
UOp reduce_as(const UOp& other, const UOp& a, std::span<const UOp> ranges, const UOp& start) {
  const UOp fold = reduce_ranges(other.as<ReduceArg>().op, a, ranges, start);
  return UOp::make(Op::Reduce, fold.src(), other.arg());
}
UOp start_of(const UOp& reduce) {
  const UOp& last = reduce.src().back();
  return reduce.src().size() > 1 && !last.is(Op::Range) ? last : UOp();
}
std::span<const UOp> reduced_ranges(const UOp& reduce) {
  const size_t others = start_of(reduce) ? 2 : 1;
  return reduce.src().subspan(1, reduce.src().size() - others);
}
UOp identity_of(Op op, DType dtype) {
  if (op == Op::Add) return constant_int(dtype, 0);
  if (op == Op::Mul) return constant_int(dtype, 1);
  if (dtype == DType::Float8E4M3) return constant(dtype, -448);  // it has no infinity
  if (is_float(dtype)) return constant(dtype, -std::numeric_limits<double>::infinity());
  return constant_int(dtype, static_cast<int64_t>(integer_range(dtype).low));
}

UOp neutral_of(Op op, DType dtype) {
  return op == Op::Add && is_float(dtype) ? constant(dtype, -0.0) : identity_of(op, dtype);
}

UOp fold_start(Op op, DType dtype, std::span<const UOp> ranges) {
  const UOp identity = identity_of(op, dtype);
  if (op != Op::Add || !is_float(dtype)) return identity;
  UOp single = constant_bool(true);
  for (const UOp& r : ranges) {
    if (r.src(0).bounds().low > 1) return identity;
    single = bit_and(single, eq(r.src(0), index_const(1)));
  }
  return where(single, constant(dtype, -0.0), identity);
}

UOp load(const UOp& buffer, const UOp& alt, const UOp& gate) {
  const LoadArg arg{{}, AddrSpace::Reg};
  if (gate) return UOp::make(Op::Load, {buffer, alt, gate}, arg);
  return UOp::make(Op::Load, {buffer}, arg);
}
UOp copy_to(const UOp& value, Device device) {
  return UOp::make(Op::Load, {value}, LoadArg{device, AddrSpace::Global});
}
namespace {
// Equal copies, one each device, and of these the one.
UOp copy_to_each(const UOp& value, Device devices) {
  std::vector<UOp> one{index_const(1)}, many{index_const(static_cast<int64_t>(devices.count()))};
  for (size_t k = 0; k < value.rank(); ++k) {
    one.push_back(value.dim(k));
    many.push_back(value.dim(k));
  }
  return replicated(copy_to(expand(reshape(value, stack(one)), stack(many)), devices), 0);
}
}  // namespace
UOp copy_to(const UOp& value, const Placement& place) {
  const Placement& now = value.node()->placement;
  if (place.device.count() == 1) return copy_to(value, place.device);
  if (now == place) return value;
  if (place.axes.empty()) return copy_to_each(value, place.device);
  const auto axis = static_cast<int64_t>(*place.axes.first());
  std::vector<int64_t> order{axis}, back;
  for (int64_t k = 0; k < static_cast<int64_t>(value.rank()); ++k) {
    if (k != axis) order.push_back(k);
    back.push_back(k == axis ? 0 : k < axis ? k + 1 : k);
  }
  if (axis == 0) return copy_to(value, place.device);
  return permute(copy_to(permute(value, std::move(order)), place.device), std::move(back));
}
UOp store(const UOp& buffer, const UOp& value, const UOp& gate) {
  if (gate) return UOp::make(Op::Store, {buffer, value, gate});
  return UOp::make(Op::Store, {buffer, value});
}
UOp after(const UOp& buffer, std::span<const UOp> deps) {
  std::vector<UOp> src{buffer};
  src.insert(src.end(), deps.begin(), deps.end());
  return UOp::make(Op::After, src);
}
UOp after(const UOp& buffer, std::initializer_list<UOp> deps) {
  return after(buffer, std::span<const UOp>(deps.begin(), deps.size()));
}
UOp range(int64_t id, const UOp& bound, AxisType type) {
  return UOp::make(Op::Range, {bound}, RangeArg{id, type});
}
AxisType type_of(const UOp& range) { return range.as<RangeArg>().type; }
UOp end(const UOp& body, std::span<const UOp> ranges) {
  if (ranges.empty()) return body;
  std::vector<UOp> src{body};
  src.insert(src.end(), ranges.begin(), ranges.end());
  return UOp::make(Op::End, src);
}
UOp end(const UOp& body, std::initializer_list<UOp> ranges) {
  return end(body, std::span<const UOp>(ranges.begin(), ranges.size()));
}
UOp group(std::span<const UOp> effects) { return UOp::make(Op::Group, effects); }
UOp group(std::initializer_list<UOp> effects) { return UOp::make(Op::Group, effects); }
UOp sink(std::span<const UOp> effects) { return UOp::make(Op::Sink, effects); }
UOp sink(std::initializer_list<UOp> effects) { return UOp::make(Op::Sink, effects); }
UOp contiguous(const UOp& a) { return UOp::make(Op::Contiguous, {a}); }
UOp detach(const UOp& a) { return UOp::make(Op::Detach, {a}); }
UOp tuple(std::span<const UOp> values) { return UOp::make(Op::Tuple, values); }
UOp get_tuple(const UOp& tuple, int64_t index) { return UOp::make(Op::GetTuple, {tuple}, index); }
UOp function(const UOp& body, std::span<const UOp> arguments, Resolve how) {
  return function(body, arguments,
                  how == Resolve::Precompile ? Arg(std::string("precompile")) : Arg());
}
UOp function(const UOp& body, std::span<const UOp> arguments, const Arg& kind) {
  std::vector<UOp> src{body};
  src.insert(src.end(), arguments.begin(), arguments.end());
  return UOp::make(Op::Function, src, kind);
}
Resolve resolve_of(const UOp& function) {
  const auto* words = std::get_if<std::string>(&function.arg());
  return words != nullptr && *words == "precompile" ? Resolve::Precompile : Resolve::Substitute;
}

UOp with_sources(const UOp& node, std::span<const UOp> src) {
  const std::span<const UOp> now = node.src();
  if (std::equal(src.begin(), src.end(), now.begin(), now.end())) return node;
  const OriginScope from(origin_of(node));
  return UOp::make(node.op(), src, node.arg(), node.tag());
}
UOp with_source(const UOp& node, size_t i, const UOp& source) {
  if (node.src(i) == source) return node;
  std::vector<UOp> src(node.src().begin(), node.src().end());
  src[i] = source;
  return with_sources(node, src);
}

int64_t const_int(const UOp& node) {
  const ConstArg& value = node.as<ConstArg>();
  return bits_to_int(value.dtype, value.bits);
}
double const_double(const UOp& node) {
  const ConstArg& value = node.as<ConstArg>();
  return bits_to_double(value.dtype, value.bits);
}
bool is_const(const UOp& node, int64_t value) {
  if (!node.is(Op::Const) || is_invalid(node)) return false;
  const ConstArg& c = node.as<ConstArg>();
  return c.bits == int_to_bits(c.dtype, value);
}
bool is_invalid(const UOp& node) { return node.is(Op::Const) && node.as<ConstArg>().invalid; }

}  // namespace koine

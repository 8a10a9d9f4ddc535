#pragma once
#include <span>
#include <vector>

#include "koine/ir/uop.hpp"

// Builders: one short function an op or composition. They only put nodes together; derivation
// checks them. Sources broadcast; dtypes must agree (Tensor promotes before it comes here).
namespace koine {

UOp constant(DType dtype, double value);
UOp constant_bits(DType dtype, Bits bits);
UOp constant_int(DType dtype, int64_t value);
UOp constant_bool(bool value);
UOp index_const(int64_t value);
/// The poison element of amendment C27.
UOp invalid(DType dtype);
/// A constant of the dtype of `like`.
inline UOp constant_like(const UOp& like, double value) { return constant(like.dtype(), value); }

/// A shape operand: a Stack of index scalars.
UOp shape_of(std::span<const int64_t> sizes);
UOp shape_of(std::initializer_list<int64_t> sizes);
UOp stack(std::span<const UOp> values);

/// A symbolic integer low..high, usable in shapes (amendment C37). Equal arguments are one node.
/// Throws Error (Value) where the name is none or low > high.
UOp variable(std::string_view name, int64_t low, int64_t high);
/// Letters, digits and _, no digit first.
bool is_variable_name(std::string_view name);
bool is_variable(const UOp& node);
/// Throws Error (Value) naming the Variable and its range where it may not take this value.
void require_in_range(const UOp& variable, int64_t value);
UOp param(int64_t slot, const UOp& shape, DType dtype, Device device = {},
          AddrSpace space = AddrSpace::Global);
/// A Param that stands for a value: its shape, dtype and place.
UOp param_for(int64_t slot, const UOp& value);
/// The Param of a function's body for an argument. Bodies are the same on every device; of what
/// several devices split, they say how.
UOp argument_param(int64_t slot, const UOp& argument);
/// The same beside another Param of a body: it says its device where that does.
UOp argument_param(int64_t slot, const UOp& argument, const UOp& beside);
/// The Param that stands for an argument while a function is traced; equal to no other.
UOp traced_param(const UOp& argument);
/// The Param that stands for the memory below a view.
UOp view_base(const UOp& base);
/// Whether a node is the Param of an argument: no Variable, and nothing that is being traced.
bool is_argument_param(const UOp& node);
/// A buffer with a slot that no other buffer has. Several devices split it along `axes`; none: each
/// holds all of it.
UOp new_buffer(const UOp& shape, DType dtype, Device device, AxisSet axes = 0);
/// A number for a buffer, a traced Param or a mark, which none of these has had.
int64_t fresh_slot();
/// Later ones are others than this, which a text has named.
void reserve_slot(int64_t slot);

UOp unary(Op op, const UOp& a);
/// Of exponentials and logarithms: Exp2 and Log2 mean base 2, and with the arg 1 base e, which a
/// product with a rounded log2(e) would give only to some digits.
enum class Base { Two, E };
UOp exponential(const UOp& a, Base base);
UOp logarithm(const UOp& a, Base base);
/// What the arg of an Exp2 or a Log2 says.
Base base_of(const Arg& arg);
/// sin(a + quarter_turns pi/2), without rounding the sum: 1 is the cosine.
UOp sine(const UOp& a, int64_t quarter_turns = 0);
/// What the arg of a Sin says: 0 to 3.
int64_t quarter_turns_of(const Arg& arg);
UOp binary(Op op, const UOp& a, const UOp& b);
UOp cast(const UOp& a, DType dtype);  ///< the input itself where nothing changes
UOp bitcast(const UOp& a, DType dtype);
UOp add(const UOp& a, const UOp& b);
UOp mul(const UOp& a, const UOp& b);
UOp sub(const UOp& a, const UOp& b);
UOp neg(const UOp& a);
/// The negative of what is below 0; else the value itself, -0 and NaN among them.
UOp magnitude_of(const UOp& x);
UOp idiv(const UOp& a, const UOp& b);
UOp mod(const UOp& a, const UOp& b);
UOp fdiv(const UOp& a, const UOp& b);
UOp maximum(const UOp& a, const UOp& b);
/// Composition: -max(-a, -b) for floats, ~max(~a, ~b) for integers (exact at the limits).
UOp minimum(const UOp& a, const UOp& b);
UOp lt(const UOp& a, const UOp& b);
UOp gt(const UOp& a, const UOp& b);
UOp ne(const UOp& a, const UOp& b);
UOp eq(const UOp& a, const UOp& b);
/// Floats: a > b or a == b, false on NaN (amendment C1); integers: not (a < b).
UOp ge(const UOp& a, const UOp& b);
UOp le(const UOp& a, const UOp& b);
UOp logical_not(const UOp& a);
UOp bit_and(const UOp& a, const UOp& b);
UOp bit_or(const UOp& a, const UOp& b);
UOp bit_xor(const UOp& a, const UOp& b);
UOp where(const UOp& condition, const UOp& a, const UOp& b);
UOp mulacc(const UOp& a, const UOp& b, const UOp& c);
/// A product of floats that is rounded wherever it is computed: no sum becomes a Mulacc of it.
UOp rounded_product(const UOp& product);
bool is_rounded_product(const UOp& u);

UOp reshape(const UOp& a, const UOp& shape);
/// A value reshaped, or itself where it has the shape.
UOp in_shape(const UOp& a, const UOp& shape);
UOp expand(const UOp& a, const UOp& shape);
UOp permute(const UOp& a, std::vector<int64_t> order);
/// The value that permuted by `order` is `a`.
UOp permute_back(const UOp& a, const std::vector<int64_t>& order);
UOp flip(const UOp& a, std::vector<int64_t> flags);
UOp pad(const UOp& a, const UOp& offset, const UOp& shape, const UOp& fill = {});
UOp shrink(const UOp& a, const UOp& offset, const UOp& shape);
/// `count` elements along an axis, from `first` on.
UOp slice(const UOp& a, size_t axis, const UOp& first, const UOp& count);
UOp index(const UOp& a, std::span<const UOp> indices);
UOp index(const UOp& a, std::initializer_list<UOp> indices);
/// Of n equal copies along the axis that n devices split, the one (amendment C8).
UOp replicated(const UOp& a, int64_t axis);
/// Over axes, which keep size 1. `start`: a value of the result's shape that the fold starts from.
UOp reduce(Op op, const UOp& a, std::vector<int64_t> axes, const UOp& start = {});
/// Over Ranges. `start`: a value that the fold starts from, outside of them.
UOp reduce_ranges(Op op, const UOp& a, std::span<const UOp> ranges, const UOp& start = {});
UOp reduce_ranges(Op op, const UOp& a, std::initializer_list<UOp> ranges, const UOp& start = {});
/// By the op of another Reduce over ranges, and on its tensor core.
UOp reduce_as(const UOp& other, const UOp& a, std::span<const UOp> ranges, const UOp& start = {});
/// What a Reduce starts from: its last source, if that is no Range. Null: it starts from what
/// `fold_start` says, or from the first of its values along axes.
UOp start_of(const UOp& reduce);
/// The Ranges that a Reduce goes over; of one over axes none.
std::span<const UOp> reduced_ranges(const UOp& reduce);
/// The value that leaves every other unchanged: 0, 1, or the smallest of the dtype.
UOp identity_of(Op op, DType dtype);
/// The same, that leaves the sign of a zero unchanged too: -0 for sums of floats.
UOp neutral_of(Op op, DType dtype);
/// What a fold over ranges starts from: the identity, but -0 for a float sum of a single element,
/// which is that element, whatever its sign.
UOp fold_start(Op op, DType dtype, std::span<const UOp> ranges);

UOp load(const UOp& buffer, const UOp& alt = {}, const UOp& gate = {});
/// The value on another device; the spec's Copy.
UOp copy_to(const UOp& value, Device device);
/// The same, split along any axis or whole on each device: the collectives scatter and broadcast.
/// The value itself where it lies so.
UOp copy_to(const UOp& value, const Placement& place);
UOp store(const UOp& buffer, const UOp& value, const UOp& gate = {});
UOp after(const UOp& buffer, std::span<const UOp> deps);
UOp after(const UOp& buffer, std::initializer_list<UOp> deps);
UOp range(int64_t id, const UOp& bound, AxisType type);
/// Of a Range.
AxisType type_of(const UOp& range);
UOp end(const UOp& body, std::span<const UOp> ranges);
UOp end(const UOp& body, std::initializer_list<UOp> ranges);
UOp group(std::span<const UOp> effects);
UOp group(std::initializer_list<UOp> effects);
UOp sink(std::span<const UOp> effects);
UOp sink(std::initializer_list<UOp> effects);
UOp contiguous(const UOp& a);
UOp detach(const UOp& a);
UOp tuple(std::span<const UOp> values);
UOp get_tuple(const UOp& tuple, int64_t index);
/// How a Function is resolved (row F4): its body becomes part of the kernels around it, or it is
/// lowered to calls of kernels of its own, on memory, which equal Functions share.
enum class Resolve { Substitute, Precompile };
UOp function(const UOp& body, std::span<const UOp> arguments, Resolve how = Resolve::Substitute);
/// The same of the kind that another Function's arg says.
UOp function(const UOp& body, std::span<const UOp> arguments, const Arg& kind);
Resolve resolve_of(const UOp& function);

/// The same op, arg and tag over other sources: the node itself where these are its own.
UOp with_sources(const UOp& node, std::span<const UOp> src);
/// The same with one other source.
UOp with_source(const UOp& node, size_t i, const UOp& source);

/// Value of a Const, as int or double.
int64_t const_int(const UOp& node);
double const_double(const UOp& node);
bool is_const(const UOp& node, int64_t value);
bool is_invalid(const UOp& node);

}  // namespace koine

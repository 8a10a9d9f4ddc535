// The column of vmap: an op for many examples at once, which lie along axis 0 of what is carried.
#include "koine/base/error.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/forward.hpp"
#include "koine/transform/table.hpp"
#include "koine/transform/written.hpp"

namespace koine {
namespace {

UOp shape_of_all(const ForwardStep& s) { return shape_for_each(s.node, s.examples); }

// What a source carries; of one that is equal in all examples, as often as there are.
UOp carried_or_repeated(const ForwardStep& s, size_t k) {
  return s.carried[k] ? s.carried[k] : for_each_example(s.node.src(k), s.examples);
}

// With axes of size 1 behind that of the examples, so that an example has `rank` axes.
UOp with_rank(const UOp& carried, size_t rank) {
  if (carried.rank() == rank + 1) return carried;
  std::vector<UOp> dims{carried.dim(0)};
  dims.resize(rank + 2 - carried.rank(), index_const(1));
  for (size_t k = 1; k < carried.rank(); ++k) dims.push_back(carried.dim(k));
  return reshape(carried, stack(dims));
}

// Operands align on the right, so what is equal in all examples stands as it is.
UOp elementwise_batch(const ForwardStep& s) {
  std::vector<UOp> sources;
  for (size_t k = 0; k < s.carried.size(); ++k)
    sources.push_back(s.carried[k] ? with_rank(s.carried[k], s.node.rank()) : s.node.src(k));
  return with_sources(s.node, sources);
}

UOp cast_batch(const ForwardStep& s) {
  KOINE_REQUIRE(s.node.dtype() != DType::Index, Type,
                "vmap: a size or a position of a view that depends on the values of an example: "
                "all examples have one shape; pick by index tensors or where() instead");
  return elementwise_batch(s);
}

UOp reshape_batch(const ForwardStep& s) { return reshape(s.carried[0], shape_of_all(s)); }
UOp expand_batch(const ForwardStep& s) { return expand(s.carried[0], shape_of_all(s)); }

UOp permute_batch(const ForwardStep& s) {
  Ints order{0};
  for (const int64_t axis : s.node.as<Ints>()) order.push_back(axis + 1);
  return permute(s.carried[0], order);
}

UOp flip_batch(const ForwardStep& s) {
  Ints flags{0};
  flags.insert(flags.end(), s.node.as<Ints>().begin(), s.node.as<Ints>().end());
  return flip(s.carried[0], flags);
}

UOp offsets_of_all(const ForwardStep& s) {
  KOINE_REQUIRE(!s.carried[1] && !s.carried[2], Type,
                "vmap: {} at a position that is different in each example: all examples have one "
                "shape; pick by index tensors or where() instead",
                op_name(s.node.op()));
  std::vector<UOp> offsets{index_const(0)};
  offsets.insert(offsets.end(), s.node.src(1).src().begin(), s.node.src(1).src().end());
  return stack(offsets);
}

UOp shrink_batch(const ForwardStep& s) {
  return shrink(s.carried[0], offsets_of_all(s), shape_of_all(s));
}

UOp pad_batch(const ForwardStep& s) {
  const UOp offsets = offsets_of_all(s), value = carried_or_repeated(s, 0);
  if (s.node.src().size() == 3) return pad(value, offsets, shape_of_all(s));
  if (!s.carried[3]) return pad(value, offsets, shape_of_all(s), s.node.src(3));
  const UOp inside = pad(spread(constant_bool(true), s.node.src(0).shape()), s.node.src(1),
                         s.node.shape(), constant_bool(false));
  return where(inside, pad(value, offsets, shape_of_all(s), like(value, 0)),
               with_rank(s.carried[3], s.node.rank()));
}

UOp stack_batch(const ForwardStep& s) {
  std::vector<UOp> parts;
  for (size_t k = 0; k < s.carried.size(); ++k) parts.push_back(carried_or_repeated(s, k));
  return moved_axis(stack(parts), 1, 0);
}

// Positions in all examples, where each has rows of its own: those of a flat axis that the examples
// and the indexed axes make.
UOp flat_index(const ForwardStep& s) {
  const UOp& source = s.node.src(0);
  const size_t indices = s.node.src().size() - 1;
  size_t rank = 0, at = 0;  // of the axes that the indices give
  for (size_t k = 1; k <= indices; ++k) rank += s.node.src(k).rank();
  UOp flat, good, rows = index_const(1);
  for (size_t k = 0; k < indices; ++k) rows = simplify_index(mul(rows, source.dim(k)));
  for (size_t k = 0; k < indices; ++k) {
    const UOp &which = s.node.src(k + 1), &size = source.dim(k);
    const UOp own = s.carried[k + 1] ? s.carried[k + 1] : which;
    std::vector<UOp> dims(rank + 1, index_const(1));
    if (s.carried[k + 1]) dims[0] = s.examples;
    for (size_t d = 0; d < which.rank(); ++d) dims[1 + at++] = which.dim(d);
    const UOp place = reshape(cast(own, DType::Int64), stack(dims)), n = cast(size, DType::Int64);
    // What is out of bounds reads 0, and not the next row.
    const UOp fits = bit_and(ge(place, like(place, 0)), lt(place, n));
    good = good ? bit_and(good, fits) : fits;
    flat = flat ? add(mul(flat, n), place) : place;
  }
  UOp all = source;
  std::vector<UOp> dims;
  if (s.carried[0]) {
    std::vector<UOp> ones(rank + 1, index_const(1));
    ones[0] = s.examples;
    const UOp first = mul(iota(s.examples, DType::Int64), cast(rows, DType::Int64));
    flat = add(flat, reshape(first, stack(ones)));
    rows = simplify_index(mul(rows, s.examples));
    all = s.carried[0];
  }
  dims.push_back(rows);
  for (size_t k = indices; k < source.rank(); ++k) dims.push_back(source.dim(k));
  return index(reshape(all, stack(dims)), {where(good, flat, like(flat, -1))});
}

UOp index_batch(const ForwardStep& s) {
  const size_t indices = s.node.src().size() - 1;
  size_t carried = 0, last = 0, before = 0;
  for (size_t k = 1; k <= indices; ++k) {
    if (!s.carried[k]) continue;
    ++carried;
    last = k;
  }
  if (carried == 0) {  // the examples become the last axis, which no index takes
    std::vector<UOp> sources(s.node.src().begin(), s.node.src().end());
    sources[0] = moved_axis(s.carried[0], 0, s.carried[0].rank() - 1);
    const UOp out = with_sources(s.node, sources);
    return moved_axis(out, out.rank() - 1, 0);
  }
  if (carried > 1 || s.carried[0]) return flat_index(s);
  for (size_t k = 1; k < last; ++k) before += s.node.src(k).rank();
  return moved_axis(with_source(s.node, last, s.carried[last]), before, 0);
}

UOp reduce_batch(const ForwardStep& s) {
  ReduceArg arg = s.node.as<ReduceArg>();
  for (int64_t& axis : arg.axes) ++axis;
  std::vector<UOp> sources;
  for (size_t k = 0; k < s.carried.size(); ++k) sources.push_back(carried_or_repeated(s, k));
  return UOp::make(Op::Reduce, sources, arg);
}

UOp replicated_batch(const ForwardStep& s) {
  return replicated(s.carried[0], s.node.as<int64_t>() + 1);
}

// Of an op that does to its first source what it did for one example.
UOp same_batch(const ForwardStep& s) { return with_source(s.node, 0, s.carried[0]); }
UOp bitcast_batch(const ForwardStep& s) { return bitcast(s.carried[0], s.node.dtype()); }

UOp fence_batch(const ForwardStep& s) {
  std::vector<UOp> sources;
  for (size_t k = 0; k < s.carried.size(); ++k)
    sources.push_back(s.carried[k] ? s.carried[k] : s.node.src(k));
  return with_sources(s.node, sources);
}

UOp assume_batch(const ForwardStep& s) {
  KOINE_REQUIRE(s.carried[0] && !s.carried[1] && !s.carried[2], Type,
                "vmap: the limits of positions depend on the values of an example");
  return with_source(s.node, 0, s.carried[0]);
}

UOp load_batch(const ForwardStep& s) {
  KOINE_REQUIRE(s.carried.size() == 1, Type, "vmap: a gated Load is a part of kernels");
  Placement place = s.node.node()->placement;
  place.axes = place.axes.shifted(1);
  return copy_to(s.carried[0], place);
}

UOp after_batch(const ForwardStep& s) {
  std::vector<UOp> inputs, of_inputs, stored;
  auto value = [&](const UOp& plain, const UOp& carried) {
    if (!carried) return plain;
    inputs.push_back(new_buffer(plain.shape(), plain.dtype(), plain.device()));
    of_inputs.push_back(carried);
    return inputs.back();
  };
  const UOp memory = value(s.node.src(0), s.carried[0]);
  for (size_t k = 1; k < s.carried.size(); ++k) {
    const UOp& effect = s.node.src(k);
    stored.push_back(value(effect.src(effect.is(Op::Store) ? 1 : 0), s.carried[k]));
  }
  const std::vector<UOp> outputs{after_value(s.node, memory, stored)};
  return batched(outputs, inputs, of_inputs, s.examples)[0];
}
// A Store carries what the stored value does.
UOp store_batch(const ForwardStep& s) { return s.carried[1]; }

}  // namespace

ForwardCell batch_cell(Op op) {
  using C = ForwardCell;
  switch (op) {
    case Op::Recip:
    case Op::Trunc:
    case Op::Exp2:
    case Op::Log2:
    case Op::Sin:
    case Op::Sqrt:
    case Op::Add:
    case Op::Mul:
    case Op::Max:
    case Op::Mod:
    case Op::Idiv:
    case Op::CmpLt:
    case Op::CmpNe:
    case Op::Xor:
    case Op::Or:
    case Op::And:
    case Op::Shr:
    case Op::Shl:
    case Op::Fdiv:
    case Op::Pow:
    case Op::Threefry:
    case Op::Where:
    case Op::Mulacc:
      return C::by(elementwise_batch);
    case Op::Cast:
      return C::by(cast_batch);
    case Op::Reshape:
      return C::by(reshape_batch);
    case Op::Expand:
      return C::by(expand_batch);
    case Op::Permute:
      return C::by(permute_batch);
    case Op::Flip:
      return C::by(flip_batch);
    case Op::Shrink:
      return C::by(shrink_batch);
    case Op::Pad:
      return C::by(pad_batch);
    case Op::Stack:
      return C::by(stack_batch);
    case Op::Index:
      return C::by(index_batch);
    case Op::Reduce:
      return C::by(reduce_batch);
    case Op::Replicated:
      return C::by(replicated_batch);
    case Op::Bitcast:
      return C::by(bitcast_batch);
    case Op::Contiguous:
    case Op::ContiguousBackward:
    case Op::Detach:
      return C::by(same_batch);
    case Op::Fence:
      return C::by(fence_batch);
    case Op::Assume:
      return C::by(assume_batch);
    case Op::Load:
      return C::by(load_batch);
    case Op::After:
      return C::by(after_batch);
    case Op::Store:
      return C::by(store_batch);
    case Op::Param:
    case Op::Buffer:
    case Op::Const:
    case Op::Binary:
      return C::nothing("it has no sources");
    case Op::Function:
    case Op::Call:
    case Op::Scan:
    case Op::While:
    case Op::Switch:
    case Op::Tuple:
    case Op::GetTuple:
      return C::nothing("the driver goes through calls");
    case Op::Group:
      return C::refused(of_groups);
    case Op::Range:
    case Op::End:
    case Op::Sink:
    case Op::Linear:
    case Op::Barrier:
    case Op::Special:
    case Op::If:
    case Op::Endif:
    case Op::Wmma:
    case Op::Ins:
    case Op::Custom:
    case Op::AtomicAdd:
    case Op::CustomFunction:
    case Op::Program:
    case Op::Source:
      return C::refused(of_kernels_alone);
  }
  return C::refused(of_kernels_alone);
}

}  // namespace koine

// The column of several devices: what one of them computes of an op's value.
#include "koine/ir/build.hpp"
#include "koine/transform/parts.hpp"
#include "koine/transform/table.hpp"

namespace koine {
namespace {

UOp leaf_shard(const ShardStep& s) {
  BufferArg arg = s.node.as<BufferArg>();
  arg.device = arg.device.part(s.device);
  arg.axes = 0;
  return UOp::make(s.node.op(), {part_shape(s.node)}, arg);
}

// Of an op that does to its part what it does to the whole.
UOp same_shard(const ShardStep& s) { return with_sources(s.node, s.parts); }

// Of an op whose operands align on the right: of what is whole, the slice that meets the part.
UOp aligned_shard(const ShardStep& s) {
  const UOp &u = s.node, &like = u.is(Op::Store) ? u.src(0) : u;
  std::vector<UOp> sources(s.parts.begin(), s.parts.end());
  for (size_t k = 0; k < sources.size(); ++k) {
    const UOp& source = u.src(k);
    if (source.axis() || !like.axis() || source.rank() + *like.axis() < like.rank()) continue;
    const size_t axis = source.rank() + *like.axis() - like.rank();
    if (!is_const(source.dim(axis), 1))
      sources[k] = sliced(sources[k], {axis, s.device, 1, u.device().count()});
  }
  return with_sources(u, sources);
}

UOp shaped_shard(const ShardStep& s) {
  return with_sources(s.node, std::vector<UOp>{s.parts[0], part_shape(s.node)});
}

UOp placed_shard(const ShardStep& s) {
  std::vector<UOp> sources(s.parts.begin(), s.parts.end());
  sources[1] = s.node.src(1);
  sources[2] = part_shape(s.node);
  return with_sources(s.node, sources);
}

UOp replicated_shard(const ShardStep& s) { return reshape(s.parts[0], s.node.shape()); }

}  // namespace

ShardCell shard_cell(Op op) {
  using C = ShardCell;
  switch (op) {
    case Op::Param:
    case Op::Buffer:
      return C::by(leaf_shard);
    case Op::Recip:
    case Op::Trunc:
    case Op::Cast:
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
    case Op::Contiguous:
    case Op::ContiguousBackward:
    case Op::Assume:
    case Op::Detach:
    case Op::Stack:
    case Op::Store:
    case Op::Load:
      return C::by(aligned_shard);
    case Op::Index:
    case Op::Permute:
    case Op::Flip:
    case Op::Bitcast:
    case Op::Reduce:
    case Op::Fence:
      return C::by(same_shard);
    case Op::Reshape:
    case Op::Expand:
      return C::by(shaped_shard);
    case Op::Pad:
    case Op::Shrink:
      return C::by(placed_shard);
    case Op::Replicated:
      return C::by(replicated_shard);
    case Op::Const:
    case Op::Binary:
      return C::nothing("it lies on no device");
    case Op::After:
    case Op::Group:
    case Op::Sink:
      return C::nothing("the driver gives each device its own effects");
    case Op::Function:
    case Op::Tuple:
      return C::nothing("bodies are inlined before");
    case Op::Scan:
    case Op::While:
    case Op::Switch:
      return C::nothing("the driver makes one loop of all parts");
    case Op::Call:
    case Op::GetTuple:
      return C::refused("runs on one device");
    case Op::Range:
    case Op::End:
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

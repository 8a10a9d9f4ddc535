#include "koine/transform/clamped_positions.hpp"

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/transform/compose.hpp"
#include "koine/transform/function.hpp"

namespace koine {
namespace {

UOp any_of(const UOp& condition) {
  if (condition.is_scalar()) return condition;
  const UOp most = reduce(Op::Max, cast(condition, DType::UInt8), all_axes(condition));
  return ne(reshape(most, shape_of({})), constant_int(DType::UInt8, 0));
}

}  // namespace

ClampedPositions with_clamped_positions(const UOp& values) {
  if ((values.node()->ops_below & mask_of(Op::Assume)) == 0) return {values, {}};
  UOp broken;
  const UOp out =
      transform_graph(inline_functions(values), [&](const UOp&, const UOp& node) -> UOp {
        if (!node.is(Op::Assume)) return node;
        const UOp &at = node.src(0), &low = node.src(1), &high = node.src(2);
        if (at.bounds().low >= low.bounds().high && at.bounds().high <= high.bounds().low)
          return node;
        const UOp own = any_of(bit_or(lt(at, low), lt(high, at)));
        broken = broken ? bit_or(broken, own) : own;
        return minimum(maximum(at, low), high);
      });
  return {out, broken};
}

}  // namespace koine

#include "koine/rules/wmma.hpp"

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"
#include "koine/target/tensor_core.hpp"

namespace koine {

bool is_flat(const UOp& wmma) { return wmma.as<WmmaArg>().accumulator.empty(); }

UOp as_sum(const UOp& wmma) {
  const UOp& accumulator = wmma.src(2);
  const TensorCore& core = tensor_core_named(wmma.as<WmmaArg>().core);
  auto factor = [&](const UOp& value, DType dtype) {  // Select hands on narrow floats as bits
    const bool bits = is_small_float(dtype) && value.dtype() != dtype;
    return cast(bits ? bitcast(value, dtype) : value, accumulator.dtype());
  };
  const UOp product = mul(factor(wmma.src(0), core.a.dtype), factor(wmma.src(1), core.b.dtype));
  const std::vector<int64_t> all = product.sizes(), kept = accumulator.sizes();
  std::vector<int64_t> folded;
  for (size_t k = 0; k < all.size(); ++k)
    if (all[k] != kept[k]) folded.push_back(static_cast<int64_t>(k));
  return reduce(Op::Add, product, folded, accumulator);
}

UOp without_software_cores(const UOp& kernel) {
  return transform_graph(kernel, [](const UOp&, const UOp& node) {
    const bool software = node.is(Op::Wmma) && tensor_core_named(node.as<WmmaArg>().core).software;
    return software ? as_sum(node) : node;
  });
}

}  // namespace koine

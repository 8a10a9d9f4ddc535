#include "koine/rules/wmma.hpp"

#include <algorithm>

#include "koine/ir/build.hpp"
#include "koine/ir/graph.hpp"

namespace koine {
namespace {

// 0 or -0.
bool is_zero_number(const UOp& u) { return u.is(Op::Const) && const_double(u) == 0; }

UOp without_cast(const UOp& u, DType wide) {
  return u.is(Op::Cast) && u.dtype() == wide ? u.src(0) : UOp();
}

bool have_sizes(std::span<const UOp> ranges, std::span<const CoreAxis> axes) {
  return std::ranges::equal(ranges, axes, [](const UOp& r, const CoreAxis& axis) {
    return is_const(r.src(0), axis.size);
  });
}

// Whether a value runs over rows (m) or columns (n) of a core.
bool runs_along(const UOp& value, char along, const TensorCore& core, const CoreRanges& ranges) {
  return std::ranges::any_of(value.ranges(), [&](const Node* n) {
    const CoreAxis* axis = ranges.axis_of(core, UOp::share(n));
    return axis != nullptr && axis->along == along;
  });
}

}  // namespace

Factors factors_of(const UOp& reduce) {
  UOp body = reduce.src(0), counts;
  if (body.is(Op::Where) && is_zero_number(body.src(2))) {
    counts = body.src(0);
    body = body.src(1);
  }
  if (!body.is(Op::Mul)) return {};
  const UOp x = without_cast(body.src(0), reduce.dtype()),
            y = without_cast(body.src(1), reduce.dtype());
  return x && y ? Factors{x, y, counts} : Factors{};
}

const CoreAxis* CoreRanges::axis_of(const TensorCore& core, const UOp& range) const {
  for (size_t i = 0; i < threads.size(); ++i)
    if (threads[i] == range) return &core.accumulator.threads[i];
  for (size_t i = 0; i < elements.size(); ++i)
    if (elements[i] == range) return &core.accumulator.elements[i];
  return nullptr;
}

std::optional<CoreSum> sum_on_core(const UOp& reduce, std::span<const UOp> ranges) {
  const ReduceArg& arg = reduce.as<ReduceArg>();
  const TensorCore* core = find_tensor_core(arg.core);
  if (core == nullptr || arg.op != Op::Add || reduce.dtype() != core->accumulator.dtype)
    return std::nullopt;
  CoreSum out{core, {}, factors_of(reduce)};
  auto& [threads, elements, step] = out.ranges;
  for (const UOp& r : ranges) {
    if (type_of(r) == AxisType::Warp) threads.push_back(r);
    if (type_of(r) == AxisType::Upcast) elements.push_back(r);
  }
  for (const UOp& r : reduced_ranges(reduce))
    if (type_of(r) == AxisType::Unroll) step = r;
  const size_t held = core->accumulator.elements.size();
  if (elements.size() > held)
    elements.erase(elements.begin(), elements.end() - static_cast<std::ptrdiff_t>(held));
  if (!have_sizes(threads, core->accumulator.threads) ||
      !have_sizes(elements, core->accumulator.elements) || !step ||
      !is_const(step.src(0), core->k) || !out.factors.x)
    return std::nullopt;
  auto runs = [&](const UOp& value, char along) {
    return runs_along(value, along, *core, out.ranges);
  };
  auto& [a, b, counts] = out.factors;
  if (runs(a, 'n')) std::swap(a, b);
  if (runs(a, 'n') || runs(b, 'm') || (counts && (runs(counts, 'm') || runs(counts, 'n'))))
    return std::nullopt;
  return out;
}

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
